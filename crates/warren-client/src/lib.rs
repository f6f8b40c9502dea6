//! The client: a daemon that holds one session with an exit, and the commands that start and stop it.
//!
//! | subject | modules |
//! |---|---|
//! | commands | `up` starts the daemon, by its `systemd_unit` where there is one, and warns before it cuts an SSH session (`ssh_session`); `down` stops it; for users other than root, `member` asks systemd for both. `dry_run`, `client_close`, `enrol` and `exit_check` need no daemon |
//! | the daemon's process | `run` undoes what a killed daemon left (`leftover_dns`), starts the helper, enters the sandbox and runs `daemon` |
//! | the daemon's loop | `daemon` carries events between its owners: `sessions`, `exit_news`, `host_upkeep`, `health`, `on_demand` and `exec_requests` |
//! | the way to an exit | `exits` knows the addresses and their order, `learnt_keys` the keys that exits have named, `lookup` finds them, `diagnose` says why none answers, `network_events` notices another network, `probe` checks that traffic flows |
//! | names | `stub` answers programs that ask for names below a profile's domains |
//! | the host | `host` sets up routes, rules and resolvers around the TUN `device`; `kill_switch` blocks what must not leave outside; `exec_upkeep` keeps the programs of `warren exec` inside or outside of the tunnel; `portal` lets a browser out to a login page |
#![forbid(unsafe_code)]

mod already;
mod client_close;
mod daemon;
mod device;
mod diagnose;
mod down;
mod dry_run;
mod enrol;
mod exec_upkeep;
mod exec_users;
mod exit_check;
mod exits;
mod fleet;
mod host;
pub mod kill_switch;
mod learnt_keys;
mod leftover_dns;
pub mod login_page;
mod lookup;
mod member;
mod network_events;
pub mod portal;
mod probe;
mod run;
mod ssh_session;
mod stub;
mod systemd_unit;
mod up;

pub use client_close::client_close;
pub use down::{candidates, down, profile_name};
pub use dry_run::dry_run;
pub use enrol::{EnrolError, Enrolment};
pub use exit_check::{ExitAnswer, check_exit};
pub use exits::{KnownExit, known_exits};
pub use learnt_keys::accept_learnt_keys;
pub use leftover_dns::clean_up as clean_up_dns;
pub use member::{down_as_member, down_for_member, is_member, up_as_member};
pub use run::client_run;
pub use up::{UpOptions, up};
