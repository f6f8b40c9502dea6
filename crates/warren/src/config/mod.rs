//! Configuration files read into typed values: a client's profile and an exit's `exit.toml`.
//!
//! A value that a loader returns is valid; whatever is wrong with a file is one sentence that names file, line and key.
//! Settings whose feature this version lacks come back as [`NotYet`], so that none is ignored silently.

mod clients;
mod document;
mod endpoint;
mod error;
mod exit;
mod file;
mod find;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod key;
mod kill_switch;
mod metrics;
mod network;
mod not_yet;
mod profile;
mod profile_text;
mod transport;
mod value;
mod web;

pub(crate) use clients::{ClientsFile, load_clients, lock_clients, save_clients};
pub(crate) use endpoint::{DEFAULT_PORT, Endpoint};
pub(crate) use error::ConfigError;
pub(crate) use exit::{ExitConfig, NatInterface, load_exit};
pub(crate) use file::{describe, utf8};
pub(crate) use find::{ProfileName, find_profile, profile_names};
pub(crate) use metrics::MetricsSettings;
pub(crate) use network::{client_address, ipv4_pool, ipv6_pool};
pub(crate) use profile::{ClientProfile, RemoteExit, WhenRefused, load_profile};
pub(crate) use profile_text::{ClientKey, profile_text};
pub(crate) use transport::Transport;
pub(crate) use value::{quoted, suggestion};
pub(crate) use web::WebListen;

#[cfg(test)]
mod tests;
