//! The crate's parts together.

mod journey;
