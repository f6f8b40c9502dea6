//! Warren end to end: the binary on hosts that are network namespaces. One program, so that what the tests share is built once.

mod alive;
mod balance;
mod clients;
mod connections;
mod cycles;
mod dns;
mod dry_run;
mod exit_restart;
mod host;
mod join;
mod kill_switch;
mod lossy_path;
mod mtu_signals;
mod net;
mod offload;
mod path_mtu;
mod refusals;
mod reload;
mod routing;
mod sessions;
mod strangers;
mod support;
mod systemd;
mod traffic;
mod tuning;
mod upkeep;
