//! The directions of traffic between a client and an exit.

use clap::ValueEnum;
use serde::Serialize;

/// One direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// From the client to the exit.
    Up,
    /// From the exit to the client.
    Down,
}

/// One direction, or both at once.
// The variants have no doc comments, because `--help` would print them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ways {
    Up,
    Down,
    Both,
}

impl Ways {
    pub(crate) fn is_up(self) -> bool {
        // `Both` includes either direction.
        self != Self::Down
    }

    pub(crate) fn is_down(self) -> bool {
        self != Self::Up
    }

    pub(crate) fn each(self) -> &'static [Way] {
        match self {
            Self::Up => &[Way::Up],
            Self::Down => &[Way::Down],
            Self::Both => &[Way::Up, Way::Down],
        }
    }
}
