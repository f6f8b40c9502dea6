//! The exit: a daemon that takes clients' sessions and pumps their packets out.
#![forbid(unsafe_code)]

mod clients;
mod daemon;
mod host;
mod http;
pub mod invitation;
mod metrics;
pub mod other_firewalls;
mod reporting;
mod reset_key;
mod run;
mod sockets;
mod web;

pub use host::hold::release;
pub use run::{DEVICE, exit_run};
