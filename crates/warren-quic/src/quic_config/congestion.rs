//! No congestion control: nothing holds a connection back but the flows inside it.

use std::{any::Any, sync::Arc, time::Instant};

use noq_proto::congestion::{Controller, ControllerFactory};

/// A window that is never full; above `u32::MAX`, noq does not pace either.
const WINDOW: u64 = 1 << 40;

/// A controller that never limits.
#[derive(Clone, Debug)]
pub(super) struct Unlimited;

impl ControllerFactory for Unlimited {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Self)
    }
}

impl Controller for Unlimited {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        WINDOW
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self)
    }

    fn initial_window(&self) -> u64 {
        WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
