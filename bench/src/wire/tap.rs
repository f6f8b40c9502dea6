//! One end of the wire: a TAP device in a namespace.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    os::fd::{AsFd, BorrowedFd},
};

use anyhow::Context as _;
use rustix::io::{Errno, read, write};
use tun_rs::{DeviceBuilder, Layer};

use super::frame::{ETHERNET, Frame};
use crate::{
    namespace::{Namespace, join},
    tun_device::duplicate,
};

/// Maximum number of frames that the kernel queues until the wire reads them. The kernel drops and counts further frames.
const KERNEL_QUEUE: u32 = 10_000;

/// A TAP device. The kernel removes it once its file is closed.
#[derive(Debug)]
pub(super) struct Tap {
    name: String,
    file: File,
    /// The namespace's `net/dev` file. An open file shows the counters of the namespace in which it was opened, whatever thread
    /// reads it.
    counters: File,
    buffer: Vec<u8>,
}

impl Tap {
    /// Makes a device and brings it up.
    pub(super) fn create(namespace: &Namespace, name: &str, mtu: u16) -> anyhow::Result<Self> {
        let device = name.to_owned();
        let make = move || {
            // `/proc/self` would be the process's main thread, which is not in the namespace.
            let counters = File::open("/proc/thread-self/net/dev").context("cannot open the counters")?;
            // If a TAP device of this name exists, the kernel would attach to it instead of making a new one.
            if line_of(&text(&counters)?, &device).is_some() {
                anyhow::bail!("there is a device {device} already");
            }
            let tap = DeviceBuilder::new().name(&device).layer(Layer::L2).mtu(mtu).enable(false);
            let tap = tap.tx_queue_len(KERNEL_QUEUE).build_sync()?;
            // Reads must not block, because the wire's thread waits for both devices in poll(2).
            tap.set_nonblocking(true)?;
            Ok((duplicate(&tap)?, counters))
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

    /// Writes a frame. Returns false if the device refuses it, for example because it is down.
    pub(super) fn write(&self, frame: &Frame) -> bool {
        loop {
            match write(&self.file, frame) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns the number of frames that the kernel dropped because the wire did not read them in time.
    pub(super) fn missed(&self) -> anyhow::Result<u64> {
        let devices = text(&self.counters)?;
        // The twelfth of the sixteen columns of /proc/net/dev is the number of packets dropped on transmission.
        let dropped =
            line_of(&devices, &self.name).and_then(|line| line.split_whitespace().nth(11)?.parse().ok());
        dropped.with_context(|| format!("the device {} is gone; somebody deleted it", self.name))
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns a device's columns of /proc/net/dev. Short names are padded with spaces on the left.
fn line_of<'a>(devices: &'a str, device: &str) -> Option<&'a str> {
    devices.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))
}

fn text(mut file: &File) -> anyhow::Result<String> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).context("cannot read the counters")?;
    Ok(text)
}
