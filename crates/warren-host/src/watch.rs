//! Hearing from the kernel that somebody has changed the network or the firewall.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        recv, socket_with,
    },
};
use tokio::{io::unix::AsyncFd, time::sleep_until};

/// Two netlink sockets in the groups that tell of links, addresses, routes, rules and nftables.
///
/// What exactly has happened is not looked at: whoever hears of a change compares the host with its plan, which also
/// covers what was lost when the kernel had more to tell than the socket holds.
#[derive(Debug)]
pub struct Watch {
    network: AsyncFd<OwnedFd>,
    firewall: AsyncFd<OwnedFd>,
    /// When to return, once something was heard of.
    due: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
}

impl Watch {
    /// Opens the sockets in the calling thread's network namespace. To be called within a tokio runtime.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub fn open() -> io::Result<Self> {
        Self::open_with(PAUSE)
    }

    /// Opens them with another shortest time between two looks.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub fn open_with(pause: Duration) -> io::Result<Self> {
        Ok(Self {
            network: subscribe(NETLINK_ROUTE, NETWORK_GROUPS)?,
            firewall: subscribe(Some(netlink::NETFILTER), FIREWALL_GROUPS)?,
            due: None,
            last: None,
            pause,
        })
    }

    /// Waits until something has changed, and a moment longer for what belongs to the same change. However much goes on,
    /// it pauses between two returns, for half a second unless opened otherwise. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub async fn changed(&mut self) -> io::Result<()> {
        let due = match self.due {
            Some(due) => due,
            None => {
                tokio::select! {
                    heard = self.network.readable() => drop(heard?),
                    heard = self.firewall.readable() => drop(heard?),
                }
                let soon = Instant::now() + SETTLE;
                let due = self.last.map_or(soon, |last| soon.max(last + self.pause));
                self.due = Some(due);
                due
            }
        };
        sleep_until(due.into()).await;
        self.due = None;
        self.last = Some(Instant::now());
        drain(&self.network)?;
        drain(&self.firewall)
    }

    /// Puts the next return of [`Self::changed`] off by a pause: what changes now is this process's own doing.
    pub fn put_off(&mut self) {
        self.due = Some(Instant::now() + self.pause);
    }

    /// Makes [`Self::changed`] return after a pause although nothing may have changed.
    pub fn look_again(&mut self) {
        self.due.get_or_insert(Instant::now() + self.pause);
    }
}

#[allow(deprecated, reason = "its successor is unsafe; an OwnedFd is what that one asks for")]
fn subscribe(protocol: Option<Protocol>, groups: &[u32]) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    let mask = groups.iter().fold(0, |mask, group| mask | 1 << (group - 1));
    bind(&socket, &SocketAddrNetlink::new(0, mask))?;
    AsyncFd::new(socket)
}

/// Reads until nothing is left.
fn drain(socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut buffer = [0; 8192];
    while let Some(ready) = socket.readable().now_or_never() {
        let read = ready?.try_io(|socket| Ok(recv(socket, &mut buffer[..], RecvFlags::empty()).map(drop)?));
        match read {
            Ok(Ok(())) => {}
            // The kernel had more to tell than it could keep.
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_nothing_left) => break,
        }
    }
    Ok(())
}

/// It is number 0, which is also that of no protocol.
const NETLINK_ROUTE: Option<Protocol> = None;
/// RTNLGRP_* of `linux/rtnetlink.h`: links, then addresses, routes and rules of IPv4 and of IPv6.
const NETWORK_GROUPS: &[u32] = &[1, 5, 7, 8, 9, 11, 19];
/// NFNLGRP_NFTABLES of `linux/netfilter/nfnetlink.h`.
const FIREWALL_GROUPS: &[u32] = &[7];
/// How long a change takes that consists of several.
const SETTLE: Duration = Duration::from_millis(20);
/// The shortest time between two looks, unless told otherwise.
const PAUSE: Duration = Duration::from_millis(500);
