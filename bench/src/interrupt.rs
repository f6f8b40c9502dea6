//! Turns Ctrl-C and similar signals into a flag that loops check. So destructors run, which end the child processes and remove
//! the namespaces and devices.

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

/// A flag that the user or the program sets to stop something. Clones share the flag.
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
        // Relaxed is enough, because no other memory depends on the flag.
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

    /// Waits until the flag is set, but no longer than `time`. Without a time, it waits without a limit.
    pub(crate) fn wait(&self, time: Option<Duration>) {
        let start = Instant::now();
        // Sleeps for short times, because a signal does not end `thread::sleep` early.
        while !self.is_set() && time.is_none_or(|time| start.elapsed() < time) {
            thread::sleep(time.map_or(LOOK, |time| LOOK.min(time.saturating_sub(start.elapsed()))));
        }
    }
}
