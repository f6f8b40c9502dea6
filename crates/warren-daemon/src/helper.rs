//! The helper is a process beside a sandboxed daemon. It does everything that needs other programs or the host's
//! files.
//!
//! It starts before the daemon receives anything from the network, and reads nothing from a network itself. It does
//! only what [`protocol::HelperRequest`] lists. It also passes on the daemon's notices to its starter, and reconnects
//! the log to a restarted journal ([`relay`]). It ends when the daemon ends for any reason, and holds the daemon's
//! lock until then.

mod asking;
mod look_up;
mod protocol;
mod relay;
mod serving;
mod take_in;

pub use asking::Helper;
pub use look_up::look_up;
pub use serving::serve;
