//! The host's addresses, routes, rules, sysctls and firewall as one plan that is applied, checked and undone.
//!
//! [`client_plan::client`] or [`exit_plan::exit`] computes a [`Plan`] as data, only from the facts that the caller passes. A dry
//! run prints its `Display`. A [`Host`] applies the plan step by step and writes each step to a journal before making it. If a
//! step fails, the earlier steps are undone in reverse order. [`Host::undo`] does the same later, and [`recover`] does it after a
//! daemon was killed.
//!
//! Warren never changes an object that it did not make. Its routes and rules carry [`PROTOCOL`], its firewall tables are its own,
//! and a sysctl is put back only if it still holds Warren's value.
#![forbid(unsafe_code)]

mod band;
mod client_facts;
mod client_inbound;
pub mod client_plan;
mod client_ruleset;
pub mod connections;
pub mod current_network;
pub mod device;
pub mod dns;
pub mod durable_file;
pub mod exec_groups;
mod exit_forwarding;
pub mod exit_hold;
mod exit_host;
pub mod exit_plan;
mod exit_ruleset;
pub mod facts;
mod foreign_rules;
mod forwarded_ports;
mod guests;
mod host;
mod journal;
pub mod kill_switch;
mod listeners;
mod lock_file;
mod netlink;
mod netlink_request;
pub mod network_watch;
mod nft;
mod own_addresses;
mod plain_file;
pub mod plan;
pub mod portal;
mod private_networks;
pub mod published;
mod routing_tables;
mod ruleset_text;
pub mod snapshot;
mod sock_diag;
mod special_purpose;
mod step;
mod surroundings;
mod sysctl;
mod table_names;
pub mod tracking;
mod undo;
mod verify;
pub mod watch;

pub use band::Band;
pub use device::{DeviceName, InvalidDeviceName};
pub use exit_forwarding::Forwarding;
pub use foreign_rules::{Bypass, RulePlace, Tunnel};
pub use forwarded_ports::{ForwardedPorts, Ports};
pub use guests::GuestNetwork;
pub use host::{
    Applied, ApplyError, ChangeError, Host, HostError, Recovered, Repaired, UndoError, free_slot, place,
    recover, surroundings,
};
pub use lock_file::{make_lock_file, open_lock_file};
pub use nft::{
    NftCall, NftError, NftRunner, NftService, OwnTables, Ruleset, RulesetError, get_ready as get_nft_ready,
    is_installed as has_nft, set_nft_runner,
};
pub use plain_file::{directory_of, follows_links_at, open_plain, open_plain_to_write, read_plain};
pub use plan::{Family, FirewallMark, Plan, Route, RouteKind, Rule, Step};
pub use sock_diag::owner as socket_owner;
pub use step::StepError;
pub use surroundings::{OnLink, Surroundings};
pub use table_names::TableFamily;
pub use verify::Missing;

/// The protocol number on every route and rule that Warren makes (`ip route show table all proto 87`).
pub const PROTOCOL: u8 = 0x57;

/// The firewall mark of every carrier socket. By this mark, carrier packets bypass all Warren tunnels on the host.
pub const CARRIER_MARK: u32 = 0x5761;

/// The bit by which connection marks of carriers differ from those of connections that came from outside.
const CARRIER_BIT: u32 = 0x1_0000;

/// The device group of every client's TUN device (`ip link show group 22369`). By the group, a firewall rule can match all of
/// them.
pub const DEVICE_GROUP: u32 = 0x5761;
