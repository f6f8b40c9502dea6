//! One queue of a TUN device, with up to two lanes. Each read returns one super-packet, and a batch of writes is one
//! system call where there is a ring.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd};
use std::task::{Context, Poll};

use tun_rs::SyncDevice;
use warren_packet::coalesce::{self, Merge};
use warren_packet::virtio::{self, VirtioNetHeader};

use crate::batch::Gathered;
use crate::lane::{Lane, OpenLane, Turns};
use crate::{Ring, WriteBatch};

/// Minimum size of the buffer for [`Queue::poll_read`]: a virtio-net header and the largest IP packet.
pub const READ_BUFFER_BYTES: usize = virtio::LEN + 65_536;

/// Maximum number of parts that [`Queue::write`] gathers into one packet.
pub const MAX_PARTS: usize = coalesce::MAX_PARTS;

/// One queue of a TUN device, read and written without blocking.
///
/// ```no_run
/// use std::future::poll_fn;
/// use warren_tun::{DeviceConfig, Lane, READ_BUFFER_BYTES, create};
///
/// # async fn echo() -> Result<(), Box<dyn std::error::Error>> {
/// let config =
///     DeviceConfig { name: "warren0".into(), mtu: 1380, queues: 1, bulk_lane: false, offload: true };
/// let (_device, mut queues) = create(&config)?;
/// let mut buffer = vec![0; READ_BUFFER_BYTES];
/// let (header, packet) = poll_fn(|context| queues[0].poll_read(context, &mut buffer)).await?;
/// queues[0].write(Lane::Prompt, header, &[&buffer[packet]])?;
/// # Ok(())
/// # }
/// ```
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
    /// Returns the virtio-net header and the packet's range in `buffer`. `buffer` must hold at least [`READ_BUFFER_BYTES`],
    /// because the kernel silently truncates larger packets.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a smaller buffer, `InvalidData` if the read has no valid header, or the kernel's error, such as
    /// `EBADFD` once the device is gone.
    ///
    /// # Panics
    ///
    /// On the first call outside a tokio runtime with I/O enabled.
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
        // A lane without packets registers the waker, so a packet in either lane wakes the reader.
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

    /// Writes one packet or super-packet, gathered from `parts`, with one system call. The kernel then delivers the flow's
    /// replies through `lane`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for more than [`MAX_PARTS`] parts, or if the kernel refuses header or packet (`EINVAL`). `EIO` while the
    /// device is down. `WouldBlock` if the kernel accepts no more now.
    pub fn write(&mut self, lane: Lane, header: VirtioNetHeader, parts: &[&[u8]]) -> io::Result<()> {
        if parts.len() > MAX_PARTS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a TUN write gathers at most 64 parts"));
        }
        let header = header.to_bytes();
        // On the stack, so that a write allocates nothing.
        let mut slices = [IoSlice::new(&[]); 1 + MAX_PARTS];
        let all = std::iter::once(&header[..]).chain(parts.iter().copied());
        for (slice, part) in slices.iter_mut().zip(all) {
            *slice = IoSlice::new(part);
        }
        let filled = slices.get(..=parts.len()).unwrap_or_default();
        rustix::io::writev(&self.lane(lane).file, filled)?;
        Ok(())
    }

    /// Makes the writes of a batch in their order, and pushes the result of each: that of [`write`](Self::write), or
    /// `WriteZero` if the kernel took only a part. With a ring, one system call makes up to 256 writes.
    ///
    /// # Errors
    /// If the kernel refuses the ring. The ring is then closed, and the remaining writes are made one by one.
    pub fn write_all(
        &self,
        batch: &WriteBatch<'_>,
        ring: &mut Option<Ring>,
        results: &mut Vec<io::Result<()>>,
    ) -> io::Result<()> {
        let file = |lane| match (lane, &self.bulk) {
            (Lane::Bulk, Some(bulk)) => bulk.file.as_fd(),
            _ => self.prompt.file.as_fd(),
        };
        batch.gather(file, |writes| {
            let before = results.len();
            // A ring saves nothing for a single write.
            let usable = ring.as_mut().filter(|_| writes.len() > 1);
            let outcome = usable.map_or(Ok(()), |ring| ring.write_all(writes, results));
            if outcome.is_err() {
                *ring = None;
            }
            let made = results.len() - before;
            results.extend(writes.iter().skip(made).map(Gathered::write));
            outcome
        })
    }

    /// Returns the kinds of super-packets that [`write`](Self::write) accepts.
    pub fn takes(&self) -> Merge {
        self.takes
    }

    /// Returns the interface index of the queue's device.
    pub fn device_index(&self) -> u32 {
        self.device_index
    }

    /// Registers the queue with the current tokio runtime. Without this call, the first
    /// [`poll_read`](Self::poll_read) registers it.
    ///
    /// # Errors
    ///
    /// The kernel's error on registration (`EMFILE`, `ENOSPC`).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
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

    /// Returns the lane, or the prompt lane if there is no bulk lane.
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

/// Splits the bytes of one read into header and packet.
fn parse(buffer: &[u8], bytes: usize) -> io::Result<(VirtioNetHeader, Range<usize>)> {
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidData, "the kernel gave a packet without a virtio-net header");
    let header = buffer.get(..bytes.min(virtio::LEN)).ok_or_else(invalid)?;
    let header = VirtioNetHeader::parse(header).map_err(|_| invalid())?;
    Ok((header, virtio::LEN..bytes))
}
