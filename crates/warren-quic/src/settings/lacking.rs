//! What the kernel or a device was found not to do.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// UDP offloads that the kernel does not have, or that it or a device refused when they were used: found when a socket is
/// made or at the first refusal, and left alone from then on by every socket that shares it.
#[derive(Clone, Debug, Default)]
pub struct Lacking(Arc<Lacks>);

#[derive(Debug, Default)]
struct Lacks {
    gso: AtomicBool,
    gro: AtomicBool,
}

impl Lacking {
    /// Returns whether several datagrams cannot leave in one send.
    pub fn gso(&self) -> bool {
        self.0.gso.load(Relaxed)
    }

    /// Returns whether several datagrams cannot arrive in one receive.
    pub fn gro(&self) -> bool {
        self.0.gro.load(Relaxed)
    }

    /// Notes that segmentation is not to be had; true for the first to note it.
    pub(crate) fn found_no_gso(&self) -> bool {
        !self.0.gso.swap(true, Relaxed)
    }

    /// Notes that merged receives are not to be had; true for the first to note it.
    pub(crate) fn found_no_gro(&self) -> bool {
        !self.0.gro.swap(true, Relaxed)
    }
}
