//! A running wire, and the namespaces at its ends.

use std::{
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::{Context as _, bail};
use rustix::event::{EventfdFlags, eventfd};

use super::{
    control::Control,
    link::Link,
    pump::Pump,
    request::{Handle, Request, State},
    tap::Tap,
};
use crate::namespace::{Namespace, join};

/// The namespaces at the ends of a wire, and the name of the devices in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<'a> {
    pub(crate) client: &'a Namespace,
    pub(crate) exit: &'a Namespace,
    pub(crate) device: &'a str,
}

/// A running wire. Dropping this value stops the wire and removes its devices.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<anyhow::Result<State>>>,
    control: Option<Control>,
}

impl Wire {
    /// Makes a device in each namespace, and starts a thread that moves frames between them. The devices are up and have no
    /// addresses, and frames pass unchanged.
    ///
    /// Leaves nothing behind if it fails.
    pub(crate) fn start(ends: &Ends<'_>, mtu: u16, seed: u64) -> anyhow::Result<Self> {
        let Ends { client, exit, device } = ends;
        if client.name() == exit.name() {
            bail!("both ends are in the namespace {}; give two namespaces", client.name());
        }
        let taps = [Tap::create(client, device, mtu)?, Tap::create(exit, device, mtu)?];
        let (sender, requests) = mpsc::channel();
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let wake = Arc::new(eventfd(0, flags).context("cannot make an event descriptor")?);
        let handle = Handle { requests: sender, wake: wake.clone() };
        let start = Instant::now();
        // Each direction has its own seed. Because the seed is doubled, wires with different seeds have no direction's seed in
        // common.
        let links = [Link::new(seed.wrapping_mul(2), start), Link::new(seed.wrapping_mul(2) + 1, start)];
        let pump = Pump { taps, links, requests, wake, start };
        let thread = thread::Builder::new().name("wire".to_owned()).spawn(|| pump.run());
        Ok(Self { handle, thread: Some(thread.context("cannot start a thread")?), control: None })
    }

    /// Makes a control socket with this name, through which other processes can send requests. Fails if the name is in use.
    pub(crate) fn listen(&mut self, name: &str) -> anyhow::Result<()> {
        self.control = Some(Control::start(name, self.handle.clone())?);
        Ok(())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the wire, which removes the devices, and returns the last account.
    pub(crate) fn stop(mut self) -> anyhow::Result<State> {
        // The listener is stopped first, so that no request is in progress when the wire stops.
        self.control = None;
        // If the wire's thread has failed, sending the request fails too. The thread's error is returned below.
        let _ = self.handle.send(Request::Stop);
        join(self.thread.take().context("the wire was stopped before")?).context("the wire failed")
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.control = None;
        if let Some(thread) = self.thread.take() {
            let _ = self.handle.send(Request::Stop);
            let _ = thread.join();
        }
    }
}
