//! Hands over packets that a worker read for another worker's connection. A turn's packets go in one batch.
//!
//! The kernel steers a flow's reads to the queue that last wrote the flow, so only a flow's first packets and one-way flows are
//! handed over. A flow's packets stay in order. The channel to a worker is bounded in bytes. The caller drops and counts the
//! packets that do not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::sync::mpsc;
use warren_packet::virtio::VirtioNetHeader;
use warren_quic::driver::ConnectionId;

use super::arena::Arena;

/// How many bytes may wait for a worker, from each of the other workers.
const LIMIT: usize = 1024 * 1024;
/// Batches that may wait for a worker, from all others together.
const BATCHES: usize = 1024;
/// A client stops reading its TUN while this many bytes wait.
const HIGH_WATER: usize = LIMIT / 2;

/// One worker's channels to the other workers, and its own inbox.
pub(crate) struct HandOver {
    /// Indexed by worker number; `None` at this worker's own.
    ways: Vec<Option<Way>>,
    inbox: mpsc::Receiver<Batch>,
}

/// The result of one TUN read: a packet or a super-packet.
pub(crate) struct HandedOver {
    /// The connection that the packet is for, according to the worker that read it.
    pub connection: ConnectionId,
    pub header: VirtioNetHeader,
    pub packet: BytesMut,
}

/// The packets that one turn has read for another worker. Their bytes count as waiting until the batch is freed.
pub(crate) struct Batch {
    reads: Vec<HandedOver>,
    bytes: usize,
    waiting: Arc<AtomicUsize>,
}

struct Way {
    to: mpsc::Sender<Batch>,
    /// Bytes that were handed over and are not processed yet.
    waiting: Arc<AtomicUsize>,
    reads: Vec<HandedOver>,
    bytes: usize,
}

/// Creates the channels between all workers. Returns each worker's end, in the order of their numbers.
pub(crate) fn between(workers: usize) -> Vec<HandOver> {
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(BATCHES)).unzip();
    let way = |to: &mpsc::Sender<Batch>| Way {
        to: to.clone(),
        waiting: Arc::default(),
        reads: Vec::new(),
        bytes: 0,
    };
    let ways = |own| senders.iter().enumerate().map(move |(index, to)| (index != own).then(|| way(to)));
    inboxes
        .into_iter()
        .enumerate()
        .map(|(own, inbox)| HandOver { ways: ways(own).collect(), inbox })
        .collect()
}

impl HandOver {
    /// Copies a read into the batch for the worker that has the connection. Returns whether there was room.
    pub(crate) fn push(
        &mut self,
        connection: ConnectionId,
        header: VirtioNetHeader,
        packet: &[u8],
        arena: &mut Arena,
    ) -> bool {
        // This worker has no channel to itself, and no worker has one to an unknown worker.
        let Some(Some(way)) = self.ways.get_mut(connection.worker()) else { return false };
        // Only this worker adds to `waiting`. If it sees a subtraction late, the channel looks fuller than it is, never emptier,
        // so `Relaxed` is enough.
        if way.waiting.load(Relaxed) + way.bytes + packet.len() > LIMIT {
            return false;
        }
        let buffer = arena.room(packet.len());
        buffer.extend_from_slice(packet);
        way.bytes += packet.len();
        way.reads.push(HandedOver { connection, header, packet: buffer.split() });
        true
    }

    /// Ends a turn: sends every batch, and passes each read that could not be sent to `lost`.
    pub(crate) fn send(&mut self, mut lost: impl FnMut(HandedOver)) {
        for way in self.ways.iter_mut().flatten().filter(|way| !way.reads.is_empty()) {
            let bytes = std::mem::take(&mut way.bytes);
            way.waiting.fetch_add(bytes, Relaxed);
            let reads = std::mem::take(&mut way.reads);
            let batch = Batch { reads, bytes, waiting: way.waiting.clone() };
            // Never waits: two workers that wait for each other would deadlock.
            if let Err(unsent) = way.to.try_send(batch) {
                // Dropping the batch subtracts its bytes from `waiting` again.
                unsent.into_inner().take_reads().for_each(&mut lost);
            }
        }
    }

    /// Receives a batch that another worker handed over, or wakes `cx` once there is one.
    pub(crate) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Batch> {
        // Without other workers, no batch will come.
        if self.ways.len() < 2 {
            return Poll::Pending;
        }
        match self.inbox.poll_recv(cx) {
            Poll::Ready(Some(batch)) => Poll::Ready(batch),
            // All other workers have ended. The control plane learns that from their reports.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Whether so many bytes wait for some worker that the senders should be held back.
    pub(crate) fn is_filling(&self) -> bool {
        let is_full = |way: &Way| way.waiting.load(Relaxed) + way.bytes >= HIGH_WATER;
        // Many small batches fill the channel before they reach the limit of bytes.
        self.ways.iter().flatten().any(|way| is_full(way) || way.to.capacity() < BATCHES / 2)
    }
}

impl Batch {
    /// Removes and returns the reads, in order.
    pub(crate) fn take_reads(&mut self) -> impl Iterator<Item = HandedOver> + use<> {
        std::mem::take(&mut self.reads).into_iter()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn push(from: &mut HandOver, to: u64, packet: &[u8]) -> bool {
        // The bits of a connection's number from 40 on are its worker's number.
        from.push(ConnectionId(to << 40 | 1), VirtioNetHeader::default(), packet, &mut Arena::default())
    }

    fn received(at: &mut HandOver) -> Option<Batch> {
        match at.poll_receive(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(batch) => Some(batch),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_turns_reads_arrive_as_one_batch_in_order_at_the_worker_they_are_for() {
        let mut workers = between(3);
        for byte in 0..5 {
            assert!(push(&mut workers[0], 2, &[byte; 3]));
        }
        assert!(received(&mut workers[2]).is_none());
        workers[0].send(|_| panic!("all are sent"));
        let mut batch = received(&mut workers[2]).unwrap();
        assert!(batch.take_reads().map(|read| read.packet).eq((0..5).map(|byte| vec![byte; 3])));
        assert!(received(&mut workers[2]).is_none() && received(&mut workers[1]).is_none());
    }

    #[test]
    fn a_way_is_bounded_until_the_other_end_has_dealt_with_its_batches() {
        let mut workers = between(2);
        let packet = vec![0; 60_000];
        let mut taken = 0;
        while push(&mut workers[0], 1, &packet) {
            taken += 1;
            workers[0].send(|_| panic!("all are sent"));
        }
        assert_eq!(taken, LIMIT / packet.len());
        assert!(workers[0].is_filling() && !workers[1].is_filling());
        let batch = received(&mut workers[1]).unwrap();
        assert!(!push(&mut workers[0], 1, &packet), "it is taken out but not processed");
        drop(batch);
        assert!(push(&mut workers[0], 1, &packet));
        while received(&mut workers[1]).is_some() {}
        assert!(!workers[0].is_filling());
    }

    #[test]
    fn what_is_for_a_worker_that_ended_or_for_oneself_is_given_back() {
        let mut workers = between(2);
        drop(workers.pop());
        assert!(push(&mut workers[0], 1, &[1]));
        let mut lost = 0;
        workers[0].send(|_| lost += 1);
        assert_eq!(lost, 1);
        assert!(!push(&mut workers[0], 0, &[1]));
        assert!(received(&mut workers[0]).is_none());
    }

    #[test]
    fn threads_that_hand_over_to_each_other_get_everything_whole_and_in_order() {
        // Each channel carries 20 MiB in total, twenty times its capacity. The arena reuses its slabs many times.
        const READS: u32 = 5_000;
        const BYTES: usize = 4_096;
        fn run(own: usize, mut worker: HandOver, workers: usize) {
            let mut arena = Arena::default();
            let mut expected = vec![0; workers];
            let mut take = |worker: &mut HandOver| {
                while let Some(mut batch) = received(worker) {
                    for read in batch.take_reads() {
                        let from = usize::from(read.packet[0]);
                        assert!(
                            read.packet.iter().all(|byte| *byte == read.packet[0])
                                && read.packet.len() == BYTES
                        );
                        assert_eq!(read.connection.0 & 0xffff_ffff, expected[from], "from {from} to {own}");
                        expected[from] += 1;
                    }
                }
                expected.iter().sum::<u64>()
            };
            let packet = [u8::try_from(own).unwrap(); BYTES];
            for number in 0..u64::from(READS) {
                for to in (0..workers).filter(|to| *to != own) {
                    let connection = ConnectionId((to as u64) << 40 | number);
                    while !worker.push(connection, VirtioNetHeader::default(), &packet, &mut arena) {
                        worker.send(|_| panic!("all are sent"));
                        take(&mut worker);
                        thread::yield_now();
                    }
                }
                if number % 7 == 0 {
                    worker.send(|_| panic!("all are sent"));
                    take(&mut worker);
                }
            }
            worker.send(|_| panic!("all are sent"));
            while take(&mut worker) < u64::from(READS) * (workers as u64 - 1) {
                thread::yield_now();
            }
        }
        let workers = between(3);
        let count = workers.len();
        thread::scope(|scope| {
            for (own, worker) in workers.into_iter().enumerate() {
                scope.spawn(move || run(own, worker, count));
            }
        });
    }
}
