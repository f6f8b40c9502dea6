//! The messages between an exit and `warren-fleet`, its link to the store that a fleet shares.
//!
//! The exit listens on a Unix socket, and `warren-fleet` connects to it. Both sides send frames: a length of four bytes,
//! big-endian, then a message as JSON. The exit begins with [`ExitMessage::Hello`]. `warren-fleet` answers with all rows in the
//! store ([`FleetMessage::Whole`]), and then reports changes.
//!
//! Answers and changes come in the order of the store's revisions. For its own changes, an exit gets answers. The exit gets the
//! changes themselves only if it has given up their request.
#![forbid(unsafe_code)]

mod frame;
mod message;

pub use self::frame::{FrameError, MAX_FRAME, read_frame, write_frame};
pub use self::message::{
    ExitId, ExitMessage, ExitState, FleetExit, FleetMessage, InvalidExitId, KnownRoster, LINK_VERSION, Load,
    MAX_ADDRESSES, MAX_EXITS, MAX_ROWS, MAX_VALUE, Outcome, Pools, RemovedExit, StoreCertificate, StoreLink,
    StoreMembers,
};
