//! Helpers that the unit tests of several modules share.

pub(crate) mod listening;
