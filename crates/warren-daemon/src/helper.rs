//! The helper: a process beside a sandboxed daemon that does what takes other programs or files of the host's.
//!
//! It is started before the daemon hears anything from a network, reads nothing from one itself, and does what
//! [`protocol::Request`] lists and no more. The daemon's words to its starter and to a journal that was stopped leave by it
//! ([`outlets`]). It ends when the daemon does, however that ends, and holds the daemon's lock until then.

mod asking;
mod look_up;
mod outlets;
mod protocol;
mod serving;

pub use asking::Helper;
pub use look_up::look_up;
pub use serving::serve;
