//! The host's addresses, routes, rules, sysctls and firewall as one plan that is applied, checked and undone.
//!
//! A [`Plan`] is computed as data by [`client_plan::client`] or [`exit_plan::exit`], from what the caller tells them and
//! nothing else; its `Display` is what a dry run prints. A [`Host`] applies it step by step and writes each step to a
//! journal before it is made. If a step fails, what was made is undone in reverse; [`Host::undo`] does the same
//! later, and [`recover`] does it for a daemon that was killed. Nothing that Warren did not make is ever changed: routes
//! and rules carry [`PROTOCOL`], firewall tables are Warren's own, and a sysctl is put back only if it still holds
//! Warren's value.
#![forbid(unsafe_code)]

mod band;
pub mod client_plan;
mod client_ruleset;
pub mod connections;
pub mod device;
pub mod dns;
mod exit_forwarding;
pub mod exit_hold;
pub mod exit_plan;
mod exit_ruleset;
pub mod facts;
mod foreign_rules;
mod guests;
mod host;
mod journal;
pub mod kill_switch;
mod lock_file;
mod netlink;
mod netlink_request;
pub mod network_watch;
mod nft;
mod plain_file;
pub mod plan;
pub mod published;
mod ruleset_text;
pub mod snapshot;
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
pub use guests::GuestNetwork;
pub use host::{
    Applied, ApplyError, ChangeError, Host, HostError, Recovered, Repaired, UndoError, free_slot, place,
    recover, surroundings,
};
pub use lock_file::{make_lock_file, open_lock_file};
pub use nft::{
    NftCall, NftError, NftRunner, NftService, OwnTables, Ruleset, RulesetError, is_installed as has_nft,
    set_nft_runner,
};
pub use plain_file::{follows_links_at, open_plain, read_plain};
pub use plan::{Family, FirewallMark, Plan, Route, RouteKind, Rule, Step};
pub use step::StepError;
pub use surroundings::{OnLink, Surroundings};
pub use table_names::TableFamily;
pub use verify::Missing;

/// The protocol number on every route and rule that Warren makes (`ip route show table all proto 87`).
pub const PROTOCOL: u8 = 0x57;

/// The firewall mark on every carrier socket, by which the carrier is kept out of every Warren tunnel on the host.
pub const CARRIER_MARK: u32 = 0x5761;

/// What tells the marks of connections that carry tunnels from those of connections that came from outside.
const CARRIER_BIT: u32 = 0x1_0000;

/// The device group of every client's TUN device (`ip link show group 22369`), by which the firewall knows all of them.
pub const DEVICE_GROUP: u32 = 0x5761;
