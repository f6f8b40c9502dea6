//! What a daemon gives up before it hears anything from a network, so that whoever takes it over has little.
//!
//! It keeps CAP_NET_ADMIN alone, may start no program, open only the files it works with, and make only the system calls it
//! needs. Threads and children inherit all of it and nothing takes it back. What a daemon has to do beyond that, its
//! [`crate::helper`] does.

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

/// Whether this kernel can keep a process to its own files.
pub fn can_confine_files() -> bool {
    files::is_known_to_kernel()
}

/// What is in force of this process.
pub fn in_force() -> Sandbox {
    IN_FORCE.get().copied().unwrap_or_default()
}

/// Puts this process, which must have one thread, into the sandbox of a daemon.
///
/// # Errors
/// When the kernel refuses; a kernel without landlock or seccomp only makes for a warning.
pub fn enter(files: &Files) -> anyhow::Result<()> {
    if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
        tracing::warn!(
            "{SWITCH}=off: this daemon is not sandboxed; take {SWITCH} out of its environment once the sandbox is not in the way any more"
        );
        return Ok(());
    }
    let refused = || format!("cannot enter the sandbox; {SWITCH}=off in the environment runs without it");
    hide().with_context(refused)?;
    let are_anothers = files.are_anothers();
    let files = files::confine(files).with_context(refused)?;
    if files == FileAccess::Unconfined {
        tracing::warn!(
            "this kernel has no landlock (CONFIG_SECURITY_LANDLOCK, Linux 5.13), so the daemon could open files that are not its own; it works without"
        );
    }
    capabilities::keep_network_administration_for_good(are_anothers).with_context(refused)?;
    let system_calls = system_calls::confine().with_context(refused)?;
    if !system_calls {
        tracing::warn!(
            "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER), so the daemon could make system calls that it does not need; it works without"
        );
    }
    // It is entered once.
    let _ = IN_FORCE.set(Sandbox { rights: true, system_calls, files });
    Ok(())
}

/// Takes every right from this process, which must have one thread, but to look a name up. What the kernel cannot take stays.
pub fn enter_for_look_up() {
    let confined = hide().and_then(|()| files::confine_to_look_ups());
    let confined = confined.and_then(|()| capabilities::drop_all());
    let confined = confined.and_then(|()| system_calls::confine_to_streams());
    if let Err(error) = confined {
        tracing::debug!("{error:#}");
    }
}

/// Takes from this process what a helper does not need either: new rights by new programs, core dumps, other users' debuggers.
///
/// # Errors
/// When the kernel refuses.
pub fn hide() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .context("cannot forbid core dumps")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot keep debuggers out")?;
    set_no_new_privs(true).context("cannot refuse new privileges")
}

/// Switches the sandbox off, for diagnosis.
const SWITCH: &str = "WARREN_SANDBOX";
static IN_FORCE: OnceLock<Sandbox> = OnceLock::new();
