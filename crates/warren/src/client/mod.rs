//! The client: a daemon that holds one session with an exit, and the commands that start and stop it.

mod connect;
mod daemon;
mod host;
mod probe;
mod run;
mod start;
mod stop;

pub(crate) use run::client_run;
pub(crate) use start::{UpOptions, up};
pub(crate) use stop::{candidates, down, profile_name};
