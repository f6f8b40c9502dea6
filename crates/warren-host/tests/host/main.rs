//! Applies plans in real network namespaces, which each test creates. Needs root.
#![forbid(unsafe_code)]
// Test helpers panic on failure.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod client;
mod exit;
mod killed;
mod nat;
mod published;
mod support;
