//! One end of the wire: a TAP device in a namespace, and its file.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use anyhow::Context as _;
use rustix::{
    io::{Errno, read, write},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use tun_rs::{DeviceBuilder, Layer};

use super::frame::{ETHERNET, Frame};
use crate::namespace::{Namespace, join};

/// Frames that the kernel keeps while the wire's process does not run; more are dropped, and counted.
const KERNEL_QUEUE: u32 = 10_000;

/// The device goes when its file is closed.
#[derive(Debug)]
pub(super) struct Tap {
    name: String,
    file: File,
    /// The namespace's counters of devices, whatever namespace reads them.
    counters: File,
    buffer: Vec<u8>,
}

impl Tap {
    /// Makes a device and brings it up.
    ///
    /// # Errors
    /// A sentence when it cannot be made.
    pub(super) fn create(namespace: &Namespace, name: &str, mtu: u16) -> anyhow::Result<Self> {
        let device = name.to_owned();
        let make = move || {
            let counters = File::open("/proc/thread-self/net/dev").context("cannot open the counters")?;
            if text(&counters)?.contains(&format!(" {device}:")) {
                anyhow::bail!("there is a device {device} already");
            }
            let tap = DeviceBuilder::new().name(&device).layer(Layer::L2).mtu(mtu).enable(false);
            let tap = tap.tx_queue_len(KERNEL_QUEUE).build_sync()?;
            tap.set_nonblocking(true)?;
            // Taking the descriptor out of this very process is the safe way to one that reads are made on directly.
            let process = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open this process")?;
            let file = pidfd_getfd(process, tap.as_raw_fd(), PidfdGetfdFlags::empty());
            Ok((File::from(file.context("cannot duplicate the device's descriptor")?), counters))
        };
        let (file, counters) = join(namespace.enter(make)?)
            .with_context(|| format!("cannot make the TAP device {name} in {}", namespace.name()))?;
        namespace.ip(&format!("link set {name} up"))?;
        Ok(Self { name: name.to_owned(), file, counters, buffer: vec![0; usize::from(mtu) + ETHERNET + 4] })
    }

    /// Reads a frame, if there is one.
    pub(super) fn read(&mut self) -> anyhow::Result<Option<Frame>> {
        loop {
            match read(&self.file, &mut self.buffer) {
                Ok(length) => return Ok(Some(self.buffer.get(..length).unwrap_or_default().to_vec())),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read from {}", self.name)),
            }
        }
    }

    /// Writes a frame; false if the device did not take it, as one that is down.
    pub(super) fn write(&self, frame: &Frame) -> bool {
        loop {
            match write(&self.file, frame) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Frames that the kernel had for the wire and dropped, since this was not quick enough to read them.
    pub(super) fn missed(&self) -> anyhow::Result<u64> {
        let devices = text(&self.counters)?;
        let line =
            devices.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{}:", self.name)));
        // Of proc_net_dev's sixteen columns the twelfth is what was dropped on transmission.
        let dropped = line.and_then(|line| line.split_whitespace().nth(11)?.parse().ok());
        dropped.with_context(|| format!("the device {} is gone; somebody deleted it", self.name))
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn text(mut file: &File) -> anyhow::Result<String> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).context("cannot read the counters")?;
    Ok(text)
}
