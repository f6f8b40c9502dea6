//! One queue of a TUN device: one super-packet a read, one `writev` a write.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tun_rs::SyncDevice;
use warren_packet::coalesce::{self, Merge};
use warren_packet::virtio::{self, VirtioNetHeader};

use crate::file;

/// The least size of the buffer given to [`Queue::poll_read`]: a virtio-net header and the largest IP packet.
pub const READ_BUFFER_BYTES: usize = virtio::LEN + 65_536;

/// The most parts that [`Queue::write`] gathers into one packet.
pub const MAX_PARTS: usize = coalesce::MAX_PARTS;

/// One queue of a TUN device, read and written without blocking.
pub struct Queue {
    file: Arc<SyncDevice>,
    readiness: Option<AsyncFd<Arc<SyncDevice>>>,
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
        let readiness = self.registered()?;
        loop {
            let mut guard = ready!(readiness.poll_read_ready(context))?;
            let read = guard.try_io(|file| Ok(rustix::io::read(file.get_ref(), &mut *buffer)?));
            if let Ok(result) = read {
                return Poll::Ready(result.and_then(|bytes| parse(buffer, bytes)));
            }
        }
    }

    /// Writes one packet, or one super-packet, gathered from `parts`, with one system call.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for more than [`MAX_PARTS`] parts and where the kernel refuses header or packet (`EINVAL`),
    /// `EIO` while the device is down, `WouldBlock` when the kernel takes nothing more now.
    pub fn write(&mut self, header: VirtioNetHeader, parts: &[&[u8]]) -> io::Result<()> {
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
        rustix::io::writev(&self.file, filled)?;
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
        self.registered().map(|_| ())
    }

    pub(crate) fn new(device: SyncDevice, takes: Merge, device_index: u32) -> Self {
        Self { file: Arc::new(device), readiness: None, takes, device_index }
    }

    fn registered(&mut self) -> io::Result<&AsyncFd<Arc<SyncDevice>>> {
        let readiness = match self.readiness.take() {
            Some(readiness) => readiness,
            None => file::register(Arc::clone(&self.file))?,
        };
        Ok(self.readiness.insert(readiness))
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registered = self.readiness.is_some();
        formatter
            .debug_struct("Queue")
            .field("file", &self.as_raw_fd())
            .field("registered", &registered)
            .finish()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
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
