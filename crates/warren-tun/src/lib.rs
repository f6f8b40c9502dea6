//! The queues of a TUN device whose reads and writes carry a virtio-net header.
//!
//! [`create`] creates the device. The caller assigns addresses, brings it up and owns its [`Queue`]s. A queue reads one
//! super-packet per system call. It writes one super-packet from scattered parts, or a whole batch ([`WriteBatch`]) with one system
//! call if there is a [`Ring`]. The device is not persistent: it disappears with its last queue.

mod batch;
mod device;
mod error;
mod file;
mod lane;
mod queue;
mod ring;

pub use batch::WriteBatch;
pub use device::{Device, DeviceConfig, create};
pub use error::TunError;
pub use lane::Lane;
pub use queue::{MAX_PARTS, Queue, READ_BUFFER_BYTES};
pub use ring::Ring;
