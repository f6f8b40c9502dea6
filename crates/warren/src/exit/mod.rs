//! The exit: a daemon that takes clients' sessions and pumps their packets out.

mod actions;
mod clients;
mod daemon;
mod files;
mod hold;
mod keys;
mod limits;
mod listener;
mod metrics;
pub(crate) mod other_firewalls;
mod prefixes;
mod reload;
mod report;
mod run;
mod service_ports;
mod sockets;
mod store;
mod upkeep;
mod web;

pub(crate) use hold::{release, release_hold};
pub(crate) use run::{DEVICE, exit_run};
pub(crate) use store::client_store;
