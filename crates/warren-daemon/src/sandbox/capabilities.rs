//! Capabilities that a daemon gives up once it has what it needed them for.

use anyhow::Context as _;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Leaves the calling thread, and those that it starts from now on, CAP_NET_ADMIN alone, if it has more. Programs that it starts
/// have it too.
///
/// What root started keeps root's rights for now: programs that it starts may need them.
///
/// # Errors
/// When the kernel refuses, which leaves everything as it was.
pub fn keep_network_administration() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let held = capabilities(None).context(UNREADABLE)?;
    let kept = CapabilitySet::NET_ADMIN;
    // What leaves these sets leaves the ambient set too (capabilities(7)), so no child gets it back.
    let sets = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: held.inheritable & kept,
    };
    set_capabilities(None, sets).context(REFUSED)
}

/// Leaves the calling thread CAP_NET_ADMIN alone, whoever started it, and programs that it started nothing.
///
/// Root keeps what it takes to write `anothers_files`, as another user's exit that root runs by hand does.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn keep_network_administration_for_good(anothers_files: bool) -> anyhow::Result<()> {
    let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN;
    keep(if anothers_files { CapabilitySet::NET_ADMIN | files } else { CapabilitySet::NET_ADMIN })
}

/// Leaves the calling thread nothing.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn drop_all() -> anyhow::Result<()> {
    keep(CapabilitySet::empty())
}

fn keep(kept: CapabilitySet) -> anyhow::Result<()> {
    let held = capabilities(None).context(UNREADABLE)?;
    clear_ambient_capability_set().context(REFUSED)?;
    // Without this right the bounding set stays as the service manager has made it.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            // The kernel may be older than the newest capabilities.
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
