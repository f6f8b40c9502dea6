//! One queue of a TUN device, in two lanes: one super-packet a read, one `writev` a write.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll};

use tun_rs::SyncDevice;
use warren_packet::coalesce::{self, Merge};
use warren_packet::virtio::{self, VirtioNetHeader};

use crate::lane::{Lane, OpenLane, Turns};

/// The least size of the buffer given to [`Queue::poll_read`]: a virtio-net header and the largest IP packet.
pub const READ_BUFFER_BYTES: usize = virtio::LEN + 65_536;

/// The most parts that [`Queue::write`] gathers into one packet.
pub const MAX_PARTS: usize = coalesce::MAX_PARTS;

/// One queue of a TUN device, read and written without blocking.
pub struct Queue {
    prompt: OpenLane,
    bulk: Option<OpenLane>,
    turns: Turns,
    takes: Merge,
    device_index: u32,
}

impl Queue {
    /// Reads one packet, or one super-packet, into `buffer`.
    ///
    /// The result is the virtio-net header and where in `buffer` the packet stands. `buffer` holds at least
    /// [`READ_BUFFER_BYTES`], because the kernel cuts off what does not fit without a word.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a smaller buffer, `InvalidData` when what was read has no valid header, and what the kernel
    /// says, such as `EBADFD` once the device is gone.
    ///
    /// # Panics
    ///
    /// On its first call outside a tokio runtime that has its I/O driver on.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(VirtioNetHeader, Range<usize>)>> {
        if buffer.len() < READ_BUFFER_BYTES {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the TUN read buffer is too small",
            )));
        }
        let lanes = if self.bulk.is_some() { 2 } else { 1 };
        for lane in self.turns.order().into_iter().take(lanes) {
            if let Poll::Ready(read) = self.lane(lane).poll_read(context, buffer) {
                let bytes = read?;
                self.turns.count(lane, bytes);
                return Poll::Ready(parse(buffer, bytes));
            }
        }
        self.turns.end();
        Poll::Pending
    }

    /// Writes one packet, or one super-packet, gathered from `parts`, with one system call, and has what its flow answers come by
    /// `lane`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for more than [`MAX_PARTS`] parts and where the kernel refuses header or packet (`EINVAL`),
    /// `EIO` while the device is down, `WouldBlock` when the kernel takes nothing more now.
    pub fn write(&mut self, lane: Lane, header: VirtioNetHeader, parts: &[&[u8]]) -> io::Result<()> {
        if parts.len() > MAX_PARTS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a TUN write gathers at most 64 parts"));
        }
        let header = header.to_bytes();
        let mut slices = [IoSlice::new(&[]); 1 + MAX_PARTS];
        let all = std::iter::once(&header[..]).chain(parts.iter().copied());
        for (slice, part) in slices.iter_mut().zip(all) {
            *slice = IoSlice::new(part);
        }
        let filled = slices.get(..=parts.len()).unwrap_or_default();
        rustix::io::writev(&self.lane(lane).file, filled)?;
        Ok(())
    }

    /// Tells which super-packets [`write`](Self::write) takes.
    pub fn takes(&self) -> Merge {
        self.takes
    }

    /// Returns the interface index of the device that the queue was made with.
    pub fn device_index(&self) -> u32 {
        self.device_index
    }

    /// Registers the queue with the current tokio runtime, which the first [`poll_read`](Self::poll_read) does otherwise.
    ///
    /// # Errors
    ///
    /// What the kernel says to the registration (`EMFILE`, `ENOSPC`).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime that has its I/O driver on.
    pub fn register(&mut self) -> io::Result<()> {
        self.prompt.registered()?;
        if let Some(bulk) = &mut self.bulk {
            bulk.registered()?;
        }
        Ok(())
    }

    pub(crate) fn new(prompt: SyncDevice, bulk: Option<SyncDevice>, takes: Merge, device_index: u32) -> Self {
        let (prompt, bulk) = (OpenLane::new(prompt), bulk.map(OpenLane::new));
        Self { prompt, bulk, turns: Turns::default(), takes, device_index }
    }

    /// The lane, or the only one that there is.
    fn lane(&mut self, lane: Lane) -> &mut OpenLane {
        match (lane, &mut self.bulk) {
            (Lane::Bulk, Some(bulk)) => bulk,
            _ => &mut self.prompt,
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registered = self.prompt.is_registered();
        formatter
            .debug_struct("Queue")
            .field("file", &self.as_raw_fd())
            .field("registered", &registered)
            .finish()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.prompt.file.as_raw_fd()
    }
}

/// Splits what one read brought into header and packet.
fn parse(buffer: &[u8], bytes: usize) -> io::Result<(VirtioNetHeader, Range<usize>)> {
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidData, "the kernel gave a packet without a virtio-net header");
    let header = buffer.get(..bytes.min(virtio::LEN)).ok_or_else(invalid)?;
    let header = VirtioNetHeader::parse(header).map_err(|_| invalid())?;
    Ok((header, virtio::LEN..bytes))
}
