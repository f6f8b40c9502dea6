//! Properties of the crate's public functions. etherparse decides whether a packet is valid.
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod build;

mod any_input;
mod coalesce;
mod coalesce_rules;
mod flow;
mod path;
mod queue;
mod rate_limit;
mod reassembly;
mod receive;
mod resequence;
mod segment;
mod written;
