//! The exit: a daemon that takes clients' sessions and pumps their packets out.

mod actions;
mod clients;
mod daemon;
mod files;
mod hold;
pub(crate) mod invitation;
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
mod upkeep;
mod web;

pub(crate) use hold::release;
pub(crate) use run::{DEVICE, exit_run};
