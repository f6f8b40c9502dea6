//! Kernel notifications of changes to the network or the firewall.

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

/// Two netlink sockets in the multicast groups of links, addresses, routes, rules and nftables.
///
/// The notifications' content is ignored, because after any change the caller compares the whole host with its plan. So lost
/// notifications do no harm either.
#[derive(Debug)]
pub struct Watch {
    network: AsyncFd<OwnedFd>,
    firewall: AsyncFd<OwnedFd>,
    /// The earliest time to return once a notification has arrived.
    due: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
}

impl Watch {
    /// Opens the sockets in the calling thread's network namespace. Call this within a tokio runtime.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        Self::open_with(PAUSE)
    }

    /// Opens the sockets with another minimum time between two returns.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open_with(pause: Duration) -> io::Result<Self> {
        Ok(Self {
            network: subscribe(NETLINK_ROUTE, NETWORK_GROUPS)?,
            firewall: subscribe(Some(netlink::NETFILTER), FIREWALL_GROUPS)?,
            due: None,
            last: None,
            pause,
        })
    }

    /// Waits until something has changed, and a moment longer for related changes. Between two returns there is always a pause,
    /// of half a second or the time given to [`Self::open_with`]. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn changed(&mut self) -> io::Result<()> {
        let due = match self.due {
            Some(due) => due,
            None => {
                tokio::select! {
                    heard = self.network.readable() => drop(heard?),
                    heard = self.firewall.readable() => drop(heard?),
                }
                let soon = Instant::now() + SETTLE;
                // The time is stored in `self`, so that a cancelled wait does not start again.
                let due = self.last.map_or(soon, |last| soon.max(last + self.pause));
                self.due = Some(due);
                due
            }
        };
        sleep_until(due.into()).await;
        self.due = None;
        self.last = Some(Instant::now());
        // The sockets are emptied before the caller checks the host, so that a later change wakes the caller again.
        drain(&self.network)?;
        drain(&self.firewall)
    }

    /// Delays the next return of [`Self::changed`] by a pause, because the current changes are this process's own.
    pub fn put_off(&mut self) {
        self.due = Some(Instant::now() + self.pause);
    }

    /// Makes [`Self::changed`] return after a pause even if nothing has changed.
    pub fn look_again(&mut self) {
        self.due.get_or_insert(Instant::now() + self.pause);
    }
}

#[allow(deprecated, reason = "its successor is unsafe, and requires what an OwnedFd guarantees")]
fn subscribe(protocol: Option<Protocol>, groups: &[u32]) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    // Groups are counted from 1, and group 1 is bit 0.
    let mask = groups.iter().fold(0, |mask, group| mask | 1 << (group - 1));
    bind(&socket, &SocketAddrNetlink::new(0, mask))?;
    AsyncFd::new(socket)
}

/// Reads all pending notifications.
fn drain(socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
    // A longer notification is truncated, which does not matter, because the content is ignored.
    let mut buffer = [0; 8192];
    while let Some(ready) = socket.readable().now_or_never() {
        let read = ready?.try_io(|socket| Ok(recv(socket, &mut buffer[..], RecvFlags::empty()).map(drop)?));
        match read {
            Ok(Ok(())) => {}
            // The socket's buffer has overflowed. Lost notifications do no harm, because the caller compares the whole host.
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_nothing_left) => break,
        }
    }
    Ok(())
}

/// NETLINK_ROUTE is 0, which rustix expresses as `None`.
const NETLINK_ROUTE: Option<Protocol> = None;
/// RTNLGRP_* of `linux/rtnetlink.h`: links, then addresses, routes and rules of IPv4 and of IPv6.
const NETWORK_GROUPS: &[u32] = &[1, 5, 7, 8, 9, 11, 19];
/// NFNLGRP_NFTABLES of `linux/netfilter/nfnetlink.h`.
const FIREWALL_GROUPS: &[u32] = &[7];
/// How long to wait after a notification for related changes.
const SETTLE: Duration = Duration::from_millis(20);
/// The shortest time between two returns, unless opened otherwise.
const PAUSE: Duration = Duration::from_millis(500);
