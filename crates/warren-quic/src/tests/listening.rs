//! Tests that listen to the log.

use tracing::{
    Dispatch, Subscriber,
    subscriber::{DefaultGuard, NoSubscriber, set_default},
};

/// What was listened with; nothing is heard once it is dropped.
pub(crate) struct Listening {
    _guard: DefaultGuard,
    _second: Dispatch,
}

/// Lets `subscriber` have what this thread logs.
///
/// If it were the only one, tracing would ask whichever thread comes by a line first, and that thread's subscriber alone,
/// whether anybody wants the line. With a second one it asks both.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync) -> Listening {
    Listening { _second: Dispatch::new(NoSubscriber::default()), _guard: set_default(subscriber) }
}
