//! The capabilities that a daemon gives up.

use anyhow::Context as _;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Reduces the capabilities of the calling thread, of its future threads and of the programs that it starts to
/// CAP_NET_ADMIN.
///
/// A daemon that root has started keeps root's user ID for now, because programs that it starts may need root's privileges.
///
/// # Errors
/// When the kernel refuses. In that case nothing has changed.
pub fn keep_network_administration() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let held = capabilities(None).context(UNREADABLE)?;
    let kept = CapabilitySet::NET_ADMIN;
    // Removing a capability from these sets also removes it from the ambient set (capabilities(7)), so no child gets it back.
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: held.inheritable & kept,
    };
    set_capabilities(None, sets).context(REFUSED)
}

/// Leaves the calling thread only CAP_NET_ADMIN, no matter who started it. Programs that it starts get no capabilities.
///
/// With `anothers_files`, root also keeps the capabilities for writing another user's files. If root runs an exit by hand whose
/// files belong to the exit's own user, the exit needs these capabilities.
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
    // The bounding set can be changed only with CAP_SETPCAP. Otherwise it stays as the service manager has set it.
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
