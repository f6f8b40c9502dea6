//! Shared parts of the simulations: seeds, reproducible random numbers, and bugs planted on purpose.
//!
//! A crate declares its bugs with [`planted_bugs!`] and checks `is_planted(Bug::...)` at the place of each one. Its simulation
//! must find every bug ([`find_every_bug`]), which shows that it can find real ones. The bugs exist in test builds, and in builds
//! with debug assertions if the declaration names an environment variable. In any other build `is_planted` is a constant `false`.
//!
//! ```
//! warren_simulation::planted_bugs! {
//!     /// The second packet is lost.
//!     PacketLost,
//! }
//!
//! fn passes(packet: u32) -> bool {
//!     packet != 2 || !is_planted(Bug::PacketLost)
//! }
//!
//! assert!(passes(2));
//! ```
#![forbid(unsafe_code)]

use std::{
    fmt::Debug,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Declares the enum `Bug` and the function `is_planted`.
///
/// In test builds `Bug` implements [`Planted`], and each thread plants its own bug. A test that starts a whole program can name a
/// bug in an environment variable. For that, the declaration must begin with the variable's name, and the program must be built
/// with debug assertions. Releases have no planted bugs.
///
/// ```standalone_crate
/// mod one {
///     warren_simulation::planted_bugs! {
///         "WARREN_ONE_PLANTED":
///         /// The first packet is lost.
///         FirstLost,
///     }
/// }
/// # mod other {
/// #     warren_simulation::planted_bugs! {
/// #         "WARREN_OTHER_PLANTED":
/// #         /// The last packet is lost.
/// #         LastLost,
/// #     }
/// # }
/// # // Each declaration has its own variable, in one process.
/// # if std::env::var_os("WARREN_ONE_PLANTED").is_none() {
/// #     assert!(!one::is_planted(one::Bug::FirstLost) && !other::is_planted(other::Bug::LastLost));
/// #     let mut again = std::process::Command::new(std::env::current_exe().unwrap());
/// #     again.env("WARREN_ONE_PLANTED", "FirstLost").env("WARREN_OTHER_PLANTED", "LastLost");
/// #     assert!(again.status().unwrap().success());
/// #     return;
/// # }
///
/// // With WARREN_ONE_PLANTED=FirstLost in the environment:
/// assert!(one::is_planted(one::Bug::FirstLost));
/// # assert!(other::is_planted(other::Bug::LastLost));
/// ```
#[macro_export]
macro_rules! planted_bugs {
    ($($variable:literal:)? $($(#[$attribute:meta])* $bug:ident),* $(,)?) => {
        /// A planted bug.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Bug {
            $($(#[$attribute])* $bug,)*
        }

        #[cfg(test)]
        // Tests run in parallel threads. A bug that one test plants must not affect another test.
        thread_local!(static PLANTED: ::std::cell::Cell<Option<Bug>> = const { ::std::cell::Cell::new(None) });

        #[cfg(test)]
        impl $crate::Planted for Bug {
            const ALL: &'static [Self] = &[$(Self::$bug,)*];

            fn plant(bug: Option<Self>) {
                PLANTED.set(bug);
            }
        }

        /// Whether the bug is planted.
        pub(crate) fn is_planted(bug: Bug) -> bool {
            #[cfg(test)]
            return PLANTED.get() == Some(bug);
            #[cfg(not(test))]
            {
                let _ = bug;
                false $(|| {
                    static NAMED: ::std::sync::LazyLock<Option<String>> =
                        ::std::sync::LazyLock::new(|| ::std::env::var($variable).ok());
                    cfg!(debug_assertions) && $crate::is_named(NAMED.as_deref(), bug)
                })?
            }
        }
    };
}

/// Bugs that a test can plant.
pub trait Planted: Copy + Debug + 'static {
    /// Every bug.
    const ALL: &'static [Self];

    /// Plants a bug in this thread, or removes the planted one.
    fn plant(bug: Option<Self>);
}

/// Whether the text in an environment variable names the bug.
pub fn is_named(named: Option<&str>, bug: impl Debug) -> bool {
    named.is_some_and(|named| named == format!("{bug:?}"))
}

/// The result of a seed's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether every checked property held.
    pub is_kept: bool,
    /// A hash of the run's events, the same for each run of a seed. Zero if the simulation computes no hash.
    pub trace: u64,
}

/// Runs a simulation that panics if a checked property is violated.
pub fn outcome(run: impl FnOnce()) -> Outcome {
    Outcome { is_kept: catch_unwind(AssertUnwindSafe(run)).is_ok(), trace: 0 }
}

/// Whether a test that panics at a violation finds the bug.
pub fn finds<Bug: Planted>(bug: Bug, run: impl FnOnce()) -> bool {
    Bug::plant(Some(bug));
    let is_kept = outcome(run).is_kept;
    Bug::plant(None);
    !is_kept
}

/// Returns the seeds to run: `default`, or the range in `WARREN_SIMULATION=FROM..TO`.
///
/// # Panics
/// If the variable has another format.
pub fn seeds(default: Range<u64>) -> Range<u64> {
    std::env::var("WARREN_SIMULATION").map_or(default, |range| {
        let bounds = range.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        bounds.expect("WARREN_SIMULATION is FROM..TO")
    })
}

/// Runs each seed.
///
/// # Panics
/// At the first seed whose run violates a checked property. The message says how to repeat it.
pub fn hold_from(seeds: Range<u64>, run: impl Fn(u64)) {
    for seed in seeds {
        assert!(outcome(|| run(seed)).is_kept, "repeat it with WARREN_SIMULATION={seed}..{}", seed + 1);
    }
}

/// [`find_bugs`] with every bug.
///
/// # Panics
/// As [`find_bugs`] does.
pub fn find_every_bug<Bug: Planted>(seeds: u64, run: impl Fn(u64) -> Outcome) {
    find_bugs(Bug::ALL, seeds, run);
}

/// Plants each of these bugs in turn and runs seeds until one finds it.
///
/// # Panics
/// If the first `seeds` seeds do not find a bug, if the seed's second run differs, or if the seed fails even without the bug.
#[allow(clippy::print_stdout, reason = "a test's output says which seed found what")]
pub fn find_bugs<Bug: Planted>(bugs: &[Bug], seeds: u64, run: impl Fn(u64) -> Outcome) {
    for &bug in bugs {
        Bug::plant(Some(bug));
        let found = (0..seeds).map(|seed| (seed, run(seed))).find(|(_, outcome)| !outcome.is_kept);
        let again = found.map(|(seed, _)| (seed, run(seed)));
        Bug::plant(None);
        println!("{bug:?}: found by {found:?}");
        let Some((seed, _)) = found else { panic!("{bug:?} was not found by {seeds} seeds") };
        assert_eq!(again, found, "{bug:?}: the seed does not repeat it");
        assert!(run(seed).is_kept, "{bug:?}: seed {seed} fails without it");
    }
}

/// Reproducible random numbers (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        // The state of xorshift must never be 0.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, or zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The lowest bits of the sequence are the least random.
        (self.draw() >> 16) % bound.max(1)
    }

    /// Whether an event with a chance of one in `times` happens.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Fills a slice.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        // The first byte has the highest bits, which are the most random.
        bytes.fill_with(|| self.draw().to_be_bytes()[0]);
    }

    /// Returns 32 bytes, such as a key's seed.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    planted_bugs! {
        /// Three counts as four.
        ThreeIsFour,
        /// No number counts as even.
        NothingIsEven,
    }

    fn is_even(number: u64) -> bool {
        let number = if number == 3 && is_planted(Bug::ThreeIsFour) { 4 } else { number };
        number.is_multiple_of(2) && !is_planted(Bug::NothingIsEven)
    }

    #[test]
    fn each_bug_is_found_by_a_seed_and_is_gone_afterwards() {
        find_every_bug::<Bug>(10, |seed| outcome(|| assert_eq!(is_even(seed), seed % 2 == 0)));
        assert!(is_even(2) && !is_even(3));
    }

    #[test]
    #[should_panic(expected = "was not found")]
    fn a_simulation_that_finds_nothing_fails() {
        find_every_bug::<Bug>(3, |_| outcome(|| ()));
    }

    #[test]
    fn a_seed_repeats_its_numbers() {
        let (mut one, mut other) = (Random::new(7), Random::new(7));
        assert_eq!(one.bytes(), other.bytes());
        assert_ne!(one.draw(), Random::new(8).draw());
    }
}
