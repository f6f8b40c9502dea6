//! One direction of a copier: reads super-packets from one TUN device and writes them to the other one unchanged.

use std::{fs::File, os::fd::AsFd as _};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read, write},
};
use serde::Serialize;
use warren_packet::virtio;
use warren_tun::READ_BUFFER_BYTES;

use crate::{
    interrupt::Interrupt,
    stats::float,
    usage::{Mark, Usage},
};

/// How often an idle direction checks whether to stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The traffic of one direction.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Direction {
    /// The number of successful reads. Each returns one super-packet, which is up to 64 KiB of one flow.
    pub(crate) super_packets: u64,
    /// Bytes of IP packets. The IP and TCP headers count once for each super-packet.
    pub(crate) bytes: u64,
    /// The number of writes that the kernel refused, which dropped the packets.
    pub(crate) refused: u64,
    /// The resource use of this direction's thread.
    pub(crate) usage: Usage,
}

impl Direction {
    pub(crate) fn mbit_per_s(&self) -> f64 {
        if self.usage.seconds > 0.0 { float(self.bytes) * 8e-6 / self.usage.seconds } else { 0.0 }
    }
}

/// Copies until `stop` is set. The virtio-net header of each packet is copied without being parsed.
pub(super) fn copy(from: &File, to: &File, stop: &Interrupt) -> anyhow::Result<Direction> {
    let start = Mark::of_thread()?;
    let mut carried = Direction::default();
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    while !stop.is_set() {
        match read(from, &mut buffer) {
            Ok(length) => {
                let packet = buffer.get(..length).unwrap_or_default();
                match write(to, packet) {
                    Ok(_) => {
                        carried.super_packets += 1;
                        // The virtio-net header is not part of the packet.
                        carried.bytes += length.saturating_sub(virtio::LEN) as u64;
                    }
                    Err(_) => carried.refused += 1,
                }
            }
            Err(Errno::AGAIN) => wait(from)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot read from the TUN device"),
        }
    }
    carried.usage = start.until(&Mark::of_thread()?);
    Ok(carried)
}

/// Waits for a packet, but not longer than [`LOOK`].
fn wait(file: &File) -> anyhow::Result<()> {
    let mut descriptors = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
    match poll(&mut descriptors, Some(&LOOK)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for the TUN device"),
    }
}
