//! The client: a daemon that holds one session with an exit, and the commands that start and stop it.
#![forbid(unsafe_code)]

mod again;
mod alerts;
mod connect;
mod daemon;
mod device;
mod diagnose;
mod dns_message;
mod dns_remains;
mod dry_run;
mod enrol;
mod guard;
mod host;
pub mod kill_switch;
mod knock;
mod lookup;
mod network_trouble;
mod probe;
mod run;
mod ssh;
mod start;
mod stop;
mod unit;

pub use dns_remains::clean_up as clean_up_dns;
pub use dry_run::dry_run;
pub use enrol::{EnrolError, Enrolment};
pub use guard::client_close;
pub use knock::{Answer, knock};
pub use run::client_run;
pub use start::{UpOptions, up};
pub use stop::{candidates, down, profile_name};
