//! The client: a daemon that holds one session with an exit, and the commands that start and stop it.
#![forbid(unsafe_code)]

mod client_close;
mod daemon;
mod device;
mod diagnose;
mod down;
mod dry_run;
mod enrol;
mod exit_check;
mod exits;
mod host;
pub mod kill_switch;
mod leftover_dns;
mod lookup;
mod network_events;
mod probe;
mod run;
mod ssh_session;
mod systemd_unit;
mod up;

pub use client_close::client_close;
pub use down::{candidates, down, profile_name};
pub use dry_run::dry_run;
pub use enrol::{EnrolError, Enrolment};
pub use exit_check::{Answer, knock};
pub use leftover_dns::clean_up as clean_up_dns;
pub use run::client_run;
pub use up::{UpOptions, up};
