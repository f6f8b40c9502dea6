//! The writes of a batch, and their results.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use warren_packet::coalesce::MAX_PARTS;
use warren_packet::virtio::{self, VirtioNetHeader};

use crate::lane::Lane;

/// Writes that a [`Queue`](crate::Queue) makes at once. Each is one packet or super-packet.
#[derive(Debug, Default)]
pub struct WriteBatch<'a> {
    headers: Vec<[u8; virtio::LEN]>,
    parts: Vec<IoSlice<'a>>,
    writes: Vec<Planned>,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    lane: Lane,
    /// Index after the write's last part. Its first part follows the previous write's last one.
    end: usize,
    bytes: usize,
}

/// One write in the form in which the kernel takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered<'b> {
    pub(crate) file: BorrowedFd<'b>,
    pub(crate) slices: &'b [IoSlice<'b>],
    bytes: usize,
}

impl<'a> WriteBatch<'a> {
    /// Makes an empty batch with room for this many writes.
    pub fn with_capacity(writes: usize) -> Self {
        Self {
            headers: Vec::with_capacity(writes),
            parts: Vec::with_capacity(2 * writes),
            writes: Vec::with_capacity(writes),
        }
    }

    /// Adds a write. The kernel then delivers the flow's replies through `lane`.
    ///
    /// # Panics
    /// For more than [`MAX_PARTS`](crate::MAX_PARTS) parts.
    pub fn push(&mut self, lane: Lane, header: VirtioNetHeader, parts: &[&'a [u8]]) {
        assert!(parts.len() <= MAX_PARTS, "a TUN write gathers at most {MAX_PARTS} parts");
        self.headers.push(header.to_bytes());
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>() + virtio::LEN;
        self.parts.extend(parts.iter().map(|part| IoSlice::new(part)));
        self.writes.push(Planned { lane, end: self.parts.len(), bytes });
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Puts each header before its parts, and passes all writes to `take`. `file` returns a lane's file.
    pub(crate) fn gather<'f, T>(
        &self,
        file: impl Fn(Lane) -> BorrowedFd<'f>,
        take: impl FnOnce(&[Gathered<'_>]) -> T,
    ) -> T {
        let mut slices = Vec::with_capacity(self.parts.len() + self.headers.len());
        let mut begin = 0;
        for (header, write) in self.headers.iter().zip(&self.writes) {
            slices.push(IoSlice::new(header));
            slices.extend_from_slice(self.parts.get(begin..write.end).unwrap_or_default());
            begin = write.end;
        }
        // A second pass, because each write borrows a part of the finished list.
        let mut rest = slices.as_slice();
        let mut gathered = Vec::with_capacity(self.writes.len());
        begin = 0;
        for write in &self.writes {
            let (slices, others) = rest.split_at(1 + write.end - begin);
            (rest, begin) = (others, write.end);
            gathered.push(Gathered { file: file(write.lane), slices, bytes: write.bytes });
        }
        take(&gathered)
    }
}

impl<'b> Gathered<'b> {
    #[cfg(test)]
    pub(crate) fn new(file: BorrowedFd<'b>, slices: &'b [IoSlice<'b>]) -> Self {
        Self { file, slices, bytes: slices.iter().map(|slice| slice.len()).sum() }
    }

    /// Makes the write with a separate system call.
    pub(crate) fn write(&self) -> io::Result<()> {
        self.complete(rustix::io::writev(self.file, self.slices)?)
    }

    /// Converts a ring's result for this write: the number of bytes written, or a negative error number.
    pub(crate) fn result(&self, result: i32) -> io::Result<()> {
        match usize::try_from(result) {
            Ok(taken) => self.complete(taken),
            Err(_) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
        }
    }

    fn complete(&self, taken: usize) -> io::Result<()> {
        // One write is one packet. If the kernel took only a part of it, the packet is damaged.
        if taken < self.bytes { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }
}
