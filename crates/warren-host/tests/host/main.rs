//! Plans on real hosts. Each test makes its own network namespaces and needs root.
#![forbid(unsafe_code)]
// Test helpers panic on failure.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod client;
mod exit;
mod killed;
mod nat;
mod published;
mod support;
