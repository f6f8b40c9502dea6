//! UDP offloads that the kernel or a device turned out not to support.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// UDP offloads that the kernel lacks, or that the kernel or a device refused. They are detected when a socket is made or at the
/// first refusal. From then on, no socket that shares this value uses them.
#[derive(Clone, Debug, Default)]
pub struct Lacking(Arc<Lacks>);

#[derive(Debug, Default)]
struct Lacks {
    gso: AtomicBool,
    gro: AtomicBool,
}

impl Lacking {
    /// Returns whether UDP segmentation is unavailable.
    pub fn gso(&self) -> bool {
        self.0.gso.load(Relaxed)
    }

    /// Returns whether merged receives are unavailable.
    pub fn gro(&self) -> bool {
        self.0.gro.load(Relaxed)
    }

    /// Records that segmentation is unavailable. Returns true only for the first call.
    pub(crate) fn found_no_gso(&self) -> bool {
        !self.0.gso.swap(true, Relaxed)
    }

    /// Records that merged receives are unavailable. Returns true only for the first call.
    pub(crate) fn found_no_gro(&self) -> bool {
        !self.0.gro.swap(true, Relaxed)
    }
}
