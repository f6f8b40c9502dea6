//! The command line: the arguments, and the commands that need no daemon of their own.

mod account;
pub(crate) mod args;
pub(crate) mod complete;
pub(crate) mod drain;
pub(crate) mod exec;
pub(crate) mod exit_audit;
pub(crate) mod exit_client;
pub(crate) mod exit_import;
pub(crate) mod exit_init;
pub(crate) mod exits;
pub(crate) mod fleet;
pub(crate) mod host_networks;
pub(crate) mod import;
pub(crate) mod join;
pub(crate) mod keys;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod network;
pub(crate) mod one_daemon;
pub(crate) mod portal;
pub(crate) mod reload;
pub(crate) mod rotate_key;
pub(crate) mod running_exit;
pub(crate) mod set;
pub(crate) mod status;
mod wireguard_file;
