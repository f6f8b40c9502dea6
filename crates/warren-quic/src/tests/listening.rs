//! Helpers for tests that capture the log.

use tracing::{
    Dispatch, Subscriber,
    subscriber::{DefaultGuard, NoSubscriber, set_default},
};

/// A guard. Capturing stops when it is dropped.
pub(crate) struct Listening {
    _guard: DefaultGuard,
    _second: Dispatch,
}

/// Sends this thread's log to `subscriber`.
///
/// With one subscriber, tracing asks only the subscriber of the thread that first reaches a log line, and caches the answer for
/// all threads. With a second subscriber it asks both.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync) -> Listening {
    Listening { _second: Dispatch::new(NoSubscriber::default()), _guard: set_default(subscriber) }
}
