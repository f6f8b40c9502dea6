//! The client: a daemon that holds one session with an exit, and the commands that start and stop it.

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
pub(crate) mod kill_switch;
mod knock;
mod lookup;
mod network_trouble;
mod probe;
mod run;
mod ssh;
mod start;
mod stop;
mod unit;

pub(crate) use dns_remains::clean_up as clean_up_dns;
pub(crate) use dry_run::dry_run;
pub(crate) use enrol::{EnrolError, Enrolment};
pub(crate) use guard::client_close;
pub(crate) use knock::{Answer, knock};
pub(crate) use run::client_run;
pub(crate) use start::{UpOptions, up};
pub(crate) use stop::{candidates, down, profile_name};
