//! Takes privileges from a daemon before it receives packets from a network, so that an attacker who takes over the daemon gains
//! little.
//!
//! The daemon keeps only CAP_NET_ADMIN. It cannot start programs, can open only its own files, and can make only the system calls
//! that it needs. Threads and children inherit these limits, which cannot be lifted. Work that needs more privileges is done by
//! the daemon's [`crate::helper`].

mod capabilities;
mod files;
mod system_calls;

use std::sync::OnceLock;

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;

pub use capabilities::keep_network_administration;
pub use files::Files;
use warren_control::status::{FileAccess, Sandbox};

/// Whether this kernel can restrict a process to its own files.
pub fn can_confine_files() -> bool {
    files::is_known_to_kernel()
}

/// The limits that are in force for this process.
pub fn in_force() -> Sandbox {
    IN_FORCE.get().copied().unwrap_or_default()
}

/// Puts this process, which must have only one thread, into a daemon's sandbox.
///
/// # Errors
/// When the kernel refuses. A kernel without landlock or seccomp causes only a warning.
pub fn enter(files: &Files) -> anyhow::Result<()> {
    if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
        tracing::warn!(
            "{SWITCH}=off: this daemon is not sandboxed; remove {SWITCH} from its environment once you no longer need that"
        );
        return Ok(());
    }
    let refused =
        || format!("cannot enter the sandbox; set {SWITCH}=off in the environment to run without it");
    // `hide` must come first, because landlock and seccomp require no_new_privs or CAP_SYS_ADMIN.
    hide().with_context(refused)?;
    let are_anothers = files.are_anothers();
    let files = files::confine(files).with_context(refused)?;
    if files == FileAccess::Unconfined {
        tracing::warn!(
            "this kernel has no landlock (CONFIG_SECURITY_LANDLOCK, Linux 5.13), so the daemon is not restricted to its own \
             files; it works without landlock"
        );
    }
    capabilities::keep_network_administration_for_good(are_anothers).with_context(refused)?;
    // The seccomp filter comes last, because it forbids the system calls of the steps above.
    let system_calls = system_calls::confine().with_context(refused)?;
    if !system_calls {
        tracing::warn!(
            "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER), so the daemon is not restricted to the system calls \
             that it needs; it works without seccomp"
        );
    }
    // Setting cannot fail, because the sandbox is entered only once.
    let _ = IN_FORCE.set(Sandbox { rights: true, system_calls, files });
    Ok(())
}

/// Takes all rights from this process except those for a look-up. The process must have only one thread. A right that the
/// kernel cannot take away stays.
pub(crate) fn enter_for_look_up() {
    // If one step fails, the other steps must still be done.
    for taken in
        [hide(), files::confine_to_look_ups(), capabilities::drop_all(), system_calls::confine_to_streams()]
    {
        if let Err(error) = taken {
            tracing::debug!("{error:#}");
        }
    }
}

/// Takes away what even a helper does not need: gaining privileges by starting programs, core dumps, and being debugged by other
/// users.
///
/// # Errors
/// When the kernel refuses.
pub fn hide() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .context("cannot forbid core dumps")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot keep debuggers out")?;
    set_no_new_privs(true).context("cannot refuse new privileges")
}

/// The environment variable that switches the sandbox off, for diagnosis.
const SWITCH: &str = "WARREN_SANDBOX";
static IN_FORCE: OnceLock<Sandbox> = OnceLock::new();
