//! The exit: a daemon that takes clients' sessions and pumps their packets out.
#![forbid(unsafe_code)]

mod actions;
mod clients;
mod daemon;
mod files;
mod hold;
pub mod invitation;
mod keys;
mod limits;
mod listener;
mod metrics;
pub mod other_firewalls;
mod prefixes;
mod reload;
mod report;
mod run;
mod service_ports;
mod sockets;
mod upkeep;
mod web;

pub use hold::release;
pub use run::{DEVICE, exit_run};
