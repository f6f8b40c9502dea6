//! Plans on real hosts: each test has network namespaces of its own and needs root.
#![forbid(unsafe_code)]
// Helpers of tests fail the test where they stand.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod client;
mod exit;
mod killed;
mod nat;
mod published;
mod support;
