//! The capabilities that a daemon gives up.

use anyhow::Context as _;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Reduces the capabilities of the calling thread, of its future threads and of the programs that it starts to
/// CAP_NET_ADMIN.
///
/// A daemon that root started keeps root's rights for now, because programs that it starts may need them.
///
/// # Errors
/// When the kernel refuses. In that case nothing has changed.
pub fn keep_network_administration() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let held = capabilities(None).context(UNREADABLE)?;
    let kept = CapabilitySet::NET_ADMIN;
    // A capability that leaves these sets leaves the ambient set too (capabilities(7)), so no child gets it back.
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: held.inheritable & kept,
    };
    set_capabilities(None, sets).context(REFUSED)
}

/// Leaves the calling thread only CAP_NET_ADMIN, no matter who started it. Programs that it starts get nothing.
///
/// With `anothers_files`, root also keeps the capabilities for writing another user's files. An exit that has its
/// own user needs them when root runs it by hand.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn keep_network_administration_for_good(anothers_files: bool) -> anyhow::Result<()> {
    let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN;
    keep(if anothers_files { CapabilitySet::NET_ADMIN | files } else { CapabilitySet::NET_ADMIN })
}

/// Takes all capabilities from the calling thread.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn drop_all() -> anyhow::Result<()> {
    keep(CapabilitySet::empty())
}

fn keep(kept: CapabilitySet) -> anyhow::Result<()> {
    let held = capabilities(None).context(UNREADABLE)?;
    clear_ambient_capability_set().context(REFUSED)?;
    // Without CAP_SETPCAP, the bounding set stays as the service manager left it.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            // An older kernel does not know the newest capabilities.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).context(REFUSED)
}

const UNREADABLE: &str = "cannot read this process's capabilities";
const REFUSED: &str = "cannot give up capabilities";
