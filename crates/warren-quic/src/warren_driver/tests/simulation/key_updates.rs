//! Keys that change under load (RFC 9001 section 6), while packets of datagrams take the fast paths.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
    span::{Attributes, Id, Record},
};

use super::{CLIENTS, CONNECTIONS, Client, World, trace::Trace};
use crate::tests::listening::listen;

const UPDATES: usize = 100;

/// A connection's first keys serve fewer packets than this. noq-proto draws the number.
const FIRST_KEYS_PACKETS: u64 = 1_000;

/// Release builds do not log each change.
const ARE_CHANGES_LOGGED: bool = matches!(STATIC_MAX_LEVEL, LevelFilter::TRACE);

#[test]
fn keys_change_by_themselves_and_nothing_is_lost() {
    let counter = Counter::default();
    let _listening = listen(counter.clone());
    let mut world = World::new(2, &Trace::default());
    world.wire.is_kind();
    let enough = 2 * FIRST_KEYS_PACKETS * u64::from(CONNECTIONS);
    while world.clients.iter().any(|client| client.said() < enough) {
        world.go_on(Duration::from_secs(10));
    }
    assert_nothing_was_lost(&mut world);

    let connections = CLIENTS * CONNECTIONS as usize;
    // Either side may begin the update, or both at once.
    let begun = counter.begun_by_itself.load(Ordering::Relaxed);
    assert!((connections..=2 * connections).contains(&begun), "{begun}");
    if ARE_CHANGES_LOGGED {
        assert_eq!(counter.changed.load(Ordering::Relaxed), 2 * connections);
    }
}

#[test]
fn keys_change_a_hundred_times_under_load_and_nothing_is_lost() {
    let counter = Counter::default();
    let _listening = listen(counter.clone());
    let mut world = World::new(1, &Trace::default());
    world.wire.is_kind();
    world.go_on(Duration::from_secs(5));
    let changed_before = counter.changed.load(Ordering::Relaxed);
    for _ in 0..UPDATES {
        world.clients.iter_mut().for_each(Client::change_keys);
        // The old keys are kept for three probe timeouts. Until then, there is no further update.
        world.go_on(Duration::from_secs(2));
    }
    assert_nothing_was_lost(&mut world);

    // Both ends count each change.
    let changes = counter.changed.load(Ordering::Relaxed) - changed_before;
    if ARE_CHANGES_LOGGED {
        assert_eq!(changes, 2 * UPDATES * CLIENTS * CONNECTIONS as usize);
    }
}

fn assert_nothing_was_lost(world: &mut World) {
    world.next_speech += Duration::from_secs(60);
    world.go_on(Duration::from_secs(5));
    let made: Vec<_> = world.clients.iter().map(Client::connections_made).collect();
    assert_eq!(made, [u64::from(CONNECTIONS); CLIENTS], "a connection was lost");
    for client in &world.clients {
        let heard: u64 = client.heard().sum();
        assert!(heard > FIRST_KEYS_PACKETS);
        assert_eq!(heard, client.said());
    }
}

/// Counts the key changes that noq-proto logs.
#[derive(Clone, Default)]
struct Counter {
    begun_by_itself: Arc<AtomicUsize>,
    changed: Arc<AtomicUsize>,
}

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().ends_with("packet_crypto") || metadata.target().ends_with("packet_builder")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(self));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message<'c>(&'c Counter);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        match format!("{value:?}").as_str() {
            "executing key update" => &self.0.changed,
            "routine key update due to phase exhaustion" => &self.0.begun_by_itself,
            _ => return,
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}
