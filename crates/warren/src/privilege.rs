//! Rights that a daemon gives up once it has what it needed them for.

use anyhow::Context as _;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Leaves the calling thread, and those that it starts from now on, CAP_NET_ADMIN alone, if it has more.
///
/// A daemon that root started keeps root's rights: it may need them for files that are not its own.
///
/// # Errors
/// When the kernel refuses, which leaves everything as it was.
pub(crate) fn keep_network_administration() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let held = capabilities(None).context("cannot read this process's capabilities")?;
    let kept = CapabilitySet::NET_ADMIN;
    // What leaves these sets leaves the ambient set too (capabilities(7)), so no child gets it back.
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: held.inheritable & kept,
    };
    set_capabilities(None, sets).context("cannot give up capabilities")
}
