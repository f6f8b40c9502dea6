//! Keys that change under load (RFC 9001 section 6), past the short ways that packets of datagrams take.

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

use super::{CLIENTS, CONNECTIONS, Client, World, random::Trace};
use crate::listening::listen;

const UPDATES: usize = 100;

#[test]
fn keys_change_a_hundred_times_under_load_and_nothing_is_lost() {
    let changed = Arc::new(AtomicUsize::new(0));
    let _listening = listen(Counter(changed.clone()));
    let mut world = World::new(1, &Trace::default());
    world.wire.is_kind();
    world.go_on(Duration::from_secs(5));
    let changed_before = changed.load(Ordering::Relaxed);
    for _ in 0..UPDATES {
        world.clients.iter_mut().for_each(Client::change_keys);
        // The old keys are kept for three probe timeouts, and until then there are no others.
        world.go_on(Duration::from_secs(2));
    }
    world.next_speech += Duration::from_secs(60);
    world.go_on(Duration::from_secs(5));

    // Both ends count each.
    let changes = changed.load(Ordering::Relaxed) - changed_before;
    // Release builds have no such line in their log.
    if LevelFilter::TRACE <= STATIC_MAX_LEVEL {
        assert_eq!(changes, 2 * UPDATES * CLIENTS * CONNECTIONS as usize);
    }
    let made: Vec<_> = world.clients.iter().map(Client::connections_made).collect();
    assert_eq!(made, [u64::from(CONNECTIONS); CLIENTS], "a connection was lost");
    for client in &world.clients {
        let heard: u64 = client.heard().sum();
        assert!(heard > 10 * UPDATES as u64);
        assert_eq!(heard, client.said());
    }
}

/// Counts what noq-proto tells its log of changed keys.
struct Counter(Arc<AtomicUsize>);

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().ends_with("packet_crypto")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&self.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message<'c>(&'c AtomicUsize);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        if format!("{value:?}") == "executing key update" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
