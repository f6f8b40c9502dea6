//! Configuration files, read into typed values: a client's profile and an exit's `exit.toml`.
//!
//! A value that a loader returns is valid. Anything wrong with a file is one sentence that names file, line and key.
//! Settings without effect in this version come back as `IneffectiveSetting`, so that none is ignored silently.
//!
//! The modules:
//! - `profile`, `exit`: the two files
//! - `transport`, `dns`, `kill_switch`, `on_demand`, `exec`, `fleet`, `forwards`, `metrics`, `web`, `wireguard`: sections of their own
//! - `clients`: the exit's clients: their store, and `clients.toml` to import and export
//! - `client_name`: names for clients, made from what people type
//! - `changes`: the settings in which two versions of a file differ
//! - `find`: finds the file to which a PROFILE argument refers
//! - `document`, `value`: from TOML to typed values
//! - `endpoint`, `key`, `network`: values with rules of their own
//! - `file`, [`storage`]: reading files as text, and writing them durably
//! - `error`, `wording`: the sentences that a user reads
//! - `profile_text`: the profile that an exit writes for a client
#![forbid(unsafe_code)]

mod changes;
mod client_name;
mod clients;
mod dns;
mod document;
mod endpoint;
mod error;
mod exec;
mod exit;
mod file;
mod find;
mod fleet;
mod forwards;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod ineffective;
mod key;
mod kill_switch;
mod metrics;
mod network;
mod on_demand;
mod profile;
mod profile_text;
pub mod storage;
mod time;
mod transport;
mod value;
mod web;
mod wireguard;
mod wording;

pub use client_name::{derived_name, free_name, proposed_name};
pub use clients::{
    ClientStore, ClientsImport, clients_text, load_clients, lock_beside, lock_clients,
    make_clients_directory, staged_path, store_path,
};
pub use dns::{DnsSettings, domain_of};
pub(crate) use endpoint::DEFAULT_PORT;
pub use endpoint::Endpoint;
pub use error::ConfigError;
pub use exec::ExecSettings;
pub use exit::{ExitSettings, NatInterface, NatSettings, load_exit};
pub use file::utf8;
pub use find::{ProfileName, find_profile, profile_names};
pub use fleet::FleetSettings;
pub use forwards::ports_of;
pub use key::ExitKeys;
pub use kill_switch::{KillSwitchOpener, PortalOpener};
pub use metrics::MetricsSettings;
pub use network::{client_address, ipv4_pool, ipv6_pool};
pub use on_demand::OnDemandSettings;
pub use profile::{
    ClientProfile, Lan, RemoteExit, RouteSettings, TunSettings, WhenRefused, check_profile, load_profile,
};
pub use profile_text::{ClientKey, NEW_SETTINGS, profile_text, profile_text_with, with_private_key};
pub use time::parse_time;
pub use transport::Transport;
pub use web::WebListen;
pub use wireguard::{
    WireGuardSettings, read_wireguard_key, replace_wireguard_key, wireguard_key_path, write_wireguard_key,
};
pub use wording::{counted, describe, quoted, sentence, suggestion};

#[cfg(test)]
mod tests;
