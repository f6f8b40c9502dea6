//! The exit: a daemon that accepts clients' sessions and passes their packets on to the internet.
//!
//! - [`exit_run`] (`run.rs`) makes everything the daemon needs: sockets, device, rules on the host, and the helper process.
//! - `daemon.rs` is the loop, which coordinates three owners: `clients.rs` has the registry, sessions and limits; `host.rs` has
//!   the changes on the host; `reporting.rs` has status, metrics and page.
//! - `metrics.rs` and `web.rs` are the two sites that `http.rs` serves: the metrics, and the page for operators.
//! - `import.rs` imports an edited `clients.toml`. `stopped.rs` has the clients of an exit that does not run.
//! - `wireguard.rs` has the key and the sockets for WireGuard clients.
//! - `fleet.rs` is the link to the store that the exits of a fleet share.
//! - `audit.rs` is the log of what operators do.
//! - `audit.rs`, `list.rs`, `stopped.rs`, `invitation.rs` and `other_firewalls.rs` serve the command line and the doctor too.
#![forbid(unsafe_code)]

pub mod audit;
mod clients;
mod daemon;
mod ending;
mod fleet;
mod host;
mod http;
mod import;
pub mod invitation;
pub mod list;
mod metrics;
pub mod other_firewalls;
mod reporting;
mod reset_key;
mod roster;
mod run;
mod session_settings;
mod sockets;
pub mod stopped;
mod web;
pub mod wireguard;

pub use host::DEVICE;
pub use host::hold::release;
pub use run::exit_run;
