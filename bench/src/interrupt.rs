//! Ctrl-C and similar signals, as a flag that loops check. Everything that runs is ended and removed on the way out.

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

/// How often a wait checks the flag.
const LOOK: Duration = Duration::from_millis(20);

/// A flag that is set once something has to stop, by the user or by the program. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Makes SIGINT, SIGTERM and SIGHUP set the flag, until the process ends.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupt.0.clone()).context("cannot catch signals")?;
        }
        Ok(interrupt)
    }

    /// Sets the flag, as a signal does.
    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Fails if the flag is set, so that `?` ends the caller.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits for a time, or without one forever, but only until the flag is set.
    pub(crate) fn wait(&self, time: Option<Duration>) {
        let start = Instant::now();
        while !self.is_set() && time.is_none_or(|time| start.elapsed() < time) {
            thread::sleep(time.map_or(LOOK, |time| LOOK.min(time.saturating_sub(start.elapsed()))));
        }
    }
}
