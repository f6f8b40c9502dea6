//! The list of ready sources. A source is polled only after it was woken, and is listed at most once.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use crate::boundary::ConnectionId;

/// A source that can become ready.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// The listening socket at this index.
    Listener(usize),
    /// A connection.
    Connection(ConnectionId),
}

/// Sources that were woken and not polled since, and the waker of the worker that polls them. noq's tasks share the list. They run
/// on the worker's thread, so the lock is never contended.
#[derive(Debug, Default)]
pub(super) struct ReadyList(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    woken: VecDeque<Arc<SourceWaker>>,
    worker: Option<Waker>,
}

impl ReadyList {
    /// Sets the worker's waker.
    pub(super) fn register(&self, worker: &Waker) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut state.worker {
            Some(known) => known.clone_from(worker),
            None => state.worker = Some(worker.clone()),
        }
    }

    /// Removes and returns the source that has waited longest. From then on, the source can be listed again.
    pub(super) fn next(&self) -> Option<Source> {
        let woken = self.0.lock().unwrap_or_else(PoisonError::into_inner).woken.pop_front()?;
        // If the source is woken after this store, it is listed again. The poll that follows handles earlier wakes.
        woken.listed.store(false, Ordering::SeqCst);
        Some(woken.source)
    }

    /// Makes the waker of a source, and lists it for its first poll.
    pub(super) fn waker(self: &Arc<Self>, source: Source) -> Waker {
        let waker =
            Waker::from(Arc::new(SourceWaker { source, listed: AtomicBool::new(false), list: self.clone() }));
        waker.wake_by_ref();
        waker
    }
}

#[derive(Debug)]
struct SourceWaker {
    source: Source,
    listed: AtomicBool,
    list: Arc<ReadyList>,
}

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        if self.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        let list = self.list.clone();
        let mut state = list.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.woken.push_back(self);
        let worker = state.worker.clone();
        // `wake` is foreign code, so it does not run under the lock.
        drop(state);
        if let Some(worker) = worker {
            worker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(std::sync::atomic::AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn source_is_listed_once_and_again_after_it_was_taken() {
        let list = Arc::new(ReadyList::default());
        let count = Arc::new(Count(0.into()));
        list.register(&Waker::from(count.clone()));

        let source = Source::Connection(ConnectionId(7));
        let waker = list.waker(source);
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(list.next(), Some(source));
        assert_eq!(list.next(), None);

        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert_eq!(list.next(), Some(source));
    }
}
