//! The two lanes of a [`Queue`](crate::Queue), each one of the kernel's queues, and which of them is read next.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tun_rs::SyncDevice;

use crate::file;

/// Where what a flow sends is to wait until it is read.
///
/// The kernel has it wait in the lane by which the flow was last written to, if that was within three seconds, and in one by the flow's hash
/// otherwise, as flows beyond 4,096 (`tun_flow_update` of drivers/net/tun.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Read first.
    #[default]
    Prompt,
    /// Read while nothing waits in the other, or that has had its share.
    Bulk,
}

/// One of the kernel's queues.
pub(crate) struct OpenLane {
    pub(crate) file: Arc<SyncDevice>,
    readiness: Option<AsyncFd<Arc<SyncDevice>>>,
}

impl OpenLane {
    pub(crate) fn new(device: SyncDevice) -> Self {
        Self { file: Arc::new(device), readiness: None }
    }

    /// Reads a packet or super-packet with its header; returns how many bytes these are.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let readiness = self.registered()?;
        loop {
            let mut guard = ready!(readiness.poll_read_ready(context))?;
            let read = guard.try_io(|file| Ok(rustix::io::read(file.get_ref(), &mut *buffer)?));
            if let Ok(result) = read {
                return Poll::Ready(result);
            }
        }
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.readiness.is_some()
    }

    /// Its registration with the tokio runtime, which the first call makes.
    pub(crate) fn registered(&mut self) -> io::Result<&AsyncFd<Arc<SyncDevice>>> {
        let readiness = match self.readiness.take() {
            Some(readiness) => readiness,
            None => file::register(Arc::clone(&self.file))?,
        };
        Ok(self.readiness.insert(readiness))
    }
}

/// Bytes of the prompt lane that are read before the other has a turn, if it never is empty. What a flow has there when it changes
/// lanes is mostly less, and so not overtaken. Not all of it is prompt: half of the flows that nobody answers are there.
const PROMPT_SHARE: usize = 256 * 1024;
/// Bytes of the bulk lane that are read before the other is asked again, which costs as much as a fifth of reading a small packet.
const BULK_SHARE: usize = 64 * 1024;

/// Decides which lane is read next: the prompt one, unless it is empty or both have more than can be read at once.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    current: Lane,
    /// Read in a row from the current one.
    bytes: usize,
}

impl Turns {
    /// Which lane is tried first, and which one if that is empty.
    pub(crate) fn order(&self) -> [Lane; 2] {
        let other = match self.current {
            Lane::Prompt => Lane::Bulk,
            Lane::Bulk => Lane::Prompt,
        };
        if self.has_had_its_share() { [other, self.current] } else { [self.current, other] }
    }

    fn has_had_its_share(&self) -> bool {
        let share = match self.current {
            Lane::Prompt => PROMPT_SHARE,
            Lane::Bulk => BULK_SHARE,
        };
        self.bytes >= share
    }

    /// Counts a read.
    pub(crate) fn count(&mut self, lane: Lane, bytes: usize) {
        // The same one again after its share: the other is empty.
        if lane != self.current || self.has_had_its_share() {
            (self.current, self.bytes) = (lane, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Both are empty.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_both_always_have_more_each_has_its_share() {
        let mut turns = Turns::default();
        for _ in 0..3 {
            for _ in 0..PROMPT_SHARE / 1_024 {
                assert_eq!(turns.order(), [Lane::Prompt, Lane::Bulk]);
                turns.count(Lane::Prompt, 1_024);
            }
            for _ in 0..BULK_SHARE / 1_024 {
                assert_eq!(turns.order(), [Lane::Bulk, Lane::Prompt]);
                turns.count(Lane::Bulk, 1_024);
            }
        }
    }

    #[test]
    fn the_prompt_lane_is_looked_at_before_each_super_packet_of_the_other_and_after_a_pause() {
        let mut turns = Turns::default();
        for _ in 0..3 {
            assert_eq!(turns.order(), [Lane::Prompt, Lane::Bulk]);
            turns.count(Lane::Bulk, 65_536);
        }
        turns.count(Lane::Bulk, 100);
        turns.end();
        assert_eq!(turns.order(), [Lane::Prompt, Lane::Bulk]);
    }
}
