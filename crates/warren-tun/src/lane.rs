//! The two lanes of a [`Queue`](crate::Queue), each of which is one of the kernel's queues, and the order of reading them.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tun_rs::SyncDevice;

use crate::file;

/// The lane in which a flow's packets wait to be read.
///
/// The kernel uses the lane through which the flow was last written to, if that was within three seconds. Otherwise, and for
/// flows beyond 4,096, it selects a lane by the flow's hash (`tun_flow_update` in drivers/net/tun.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Read first.
    #[default]
    Prompt,
    /// Read while the prompt lane is empty or has had its share.
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

    /// Reads a packet or super-packet with its header. Returns the number of bytes read.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let readiness = self.registered()?;
        loop {
            let mut guard = ready!(readiness.poll_read_ready(context))?;
            // A read that would block clears the readiness. The loop then waits for the file to become ready again.
            let read = guard.try_io(|file| Ok(rustix::io::read(file.get_ref(), &mut *buffer)?));
            if let Ok(result) = read {
                return Poll::Ready(result);
            }
        }
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.readiness.is_some()
    }

    /// The lane's registration with the tokio runtime, which the first call makes.
    pub(crate) fn registered(&mut self) -> io::Result<&AsyncFd<Arc<SyncDevice>>> {
        let readiness = match self.readiness.take() {
            Some(readiness) => readiness,
            None => file::register(Arc::clone(&self.file))?,
        };
        Ok(self.readiness.insert(readiness))
    }
}

/// Bytes read from a busy prompt lane before the bulk lane gets a turn. A flow that moves to the bulk lane usually has less
/// than this waiting in the prompt lane, so its packets stay in order. The share is limited because the prompt lane carries
/// bulk traffic as well: half of the one-way flows are in it.
const PROMPT_SHARE: usize = 256 * 1024;
/// Bytes read from the bulk lane before the prompt lane is checked again. A check costs a fifth of reading a small packet.
const BULK_SHARE: usize = 64 * 1024;

/// Decides which lane is read next: the prompt lane, unless it is empty or has had its share while both are busy.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    current: Lane,
    /// Bytes read consecutively from the current lane.
    bytes: usize,
}

impl Turns {
    /// The lane to try first, and the lane to try if the first is empty.
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
        // If this lane was read although its share was used up, the other lane is empty, and a new share begins.
        if lane != self.current || self.has_had_its_share() {
            (self.current, self.bytes) = (lane, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Records that both lanes are empty.
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
