//! Ctrl-C and its like, as a flag that loops look at: whatever runs is ended and removed on the way out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How often a wait looks at the flag.
const LOOK: Duration = Duration::from_millis(20);

/// Set once the user wants to stop; clones share the flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Turns SIGINT, SIGTERM and SIGHUP into the flag, from here to the end of the process.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupt.0.clone()).context("cannot catch signals")?;
        }
        Ok(interrupt)
    }

    /// Sets the flag, as a signal would.
    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Fails if the flag is set, so that `?` ends what is under way.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits for a time, or for ever, but no longer than to the flag.
    pub(crate) fn wait(&self, time: Option<Duration>) {
        let start = Instant::now();
        while !self.is_set() && time.is_none_or(|time| start.elapsed() < time) {
            thread::sleep(time.map_or(LOOK, |time| LOOK.min(time.saturating_sub(start.elapsed()))));
        }
    }
}
