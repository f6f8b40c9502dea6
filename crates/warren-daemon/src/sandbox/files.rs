//! The files that a process may open, restricted by landlock(7).

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use warren_control::status::FileAccess;

/// The files that a daemon needs.
#[derive(Clone, Debug, Default)]
pub struct Files {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

impl Files {
    /// Allows only the files that the service manager passes to the daemon.
    pub fn new() -> Self {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        Self { readable: credentials.into_iter().collect(), writable: Vec::new() }
    }

    /// Adds a file to read. Also adds the file's directory, because the file may be replaced by a new one.
    pub fn reading(mut self, file: &Path) -> Self {
        // If the path is a link, landlock checks the file to which it leads, so this file is added too.
        let behind_links = file.canonicalize().ok();
        for file in [Some(file), behind_links.as_deref()].into_iter().flatten() {
            self.readable.extend(file.parent().map(Path::to_owned));
        }
        self
    }

    /// Adds a directory in which files are created, written and removed.
    pub fn writing_in(mut self, directory: &Path) -> Self {
        self.writable.push(directory.to_owned());
        self
    }

    /// Whether root runs this daemon, and another user owns one of the directories to write in.
    pub(super) fn are_anothers(&self) -> bool {
        let owner = |path: &PathBuf| std::fs::metadata(path).map(|metadata| metadata.uid());
        rustix::process::geteuid().is_root()
            && self.writable.iter().any(|path| owner(path).is_ok_and(|user| user != 0))
    }
}

/// Restricts a daemon to its files, TUN devices and the network settings. Signals reach only its own threads.
///
/// # Errors
/// When the kernel has landlock and refuses.
pub(super) fn confine(files: &Files) -> anyhow::Result<FileAccess> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile;
    let set = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    // Rules about files do not apply to abstract Unix sockets, so these are restricted by a scope.
    let mut ruleset = ruleset()?.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()?;
    for directory in &files.readable {
        ruleset = allow(ruleset, directory, read)?;
    }
    for directory in &files.writable {
        ruleset = allow(ruleset, directory, write)?;
    }
    for directory in OWN_STATE {
        ruleset = allow_kept(ruleset, Path::new(directory), read)?;
    }
    ruleset = allow_kept(ruleset, Path::new(NETWORK_SETTINGS), set | AccessFs::ReadDir)?;
    // An ioctl of this file creates a TUN device (TUNSETIFF).
    ruleset = allow(ruleset, Path::new(TUN), set | AccessFs::IoctlDev)?;
    let status = ruleset.restrict_self().context("landlock refused the rules")?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => FileAccess::Confined,
        RulesetStatus::PartiallyEnforced => FileAccess::Partly,
        RulesetStatus::NotEnforced => FileAccess::Unconfined,
    })
}

/// Restricts a process to the files that the C library reads for a look-up.
///
/// # Errors
/// When the kernel has landlock and refuses.
pub(super) fn confine_to_look_ups() -> anyhow::Result<()> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
    let mut ruleset = ruleset()?.scope(Scope::Signal)?.create()?;
    for path in LOOK_UP {
        ruleset = allow(ruleset, Path::new(path), read)?;
    }
    ruleset.restrict_self().map(drop).context("landlock refused the rules")
}

/// Whether the kernel has landlock.
pub(super) fn is_known_to_kernel() -> bool {
    let hard = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    hard.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

/// Returns a ruleset that forbids all kinds of access that both this kernel's landlock and this version of Warren know.
fn ruleset() -> anyhow::Result<Ruleset> {
    Ok(Ruleset::default().handle_access(AccessFs::from_all(ABI::V6))?)
}

/// Allows a path if it exists.
fn allow(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> anyhow::Result<RulesetCreated> {
    let Ok(opened) = PathFd::new(path) else { return Ok(ruleset) };
    // The kernel refuses directory rights in a rule for a file.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(ABI::V6) };
    Ok(ruleset.add_rule(PathBeneath::new(opened, access))?)
}

/// Allows a directory in `/proc`, and keeps it open. Otherwise the kernel may drop the directory's inode and create a new one, to
/// which the rule does not apply.
fn allow_kept(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> anyhow::Result<RulesetCreated> {
    if let Ok(opened) = PathFd::new(path) {
        std::mem::forget(opened);
    }
    allow(ruleset, path, access)
}

const TUN: &str = "/dev/net/tun";
const NETWORK_SETTINGS: &str = "/proc/sys/net";
/// This process's own counters and sockets, the ID of this boot, and the limits on processor time.
const OWN_STATE: [&str; 3] = ["/proc/self", "/proc/sys/kernel/random", "/sys/fs/cgroup"];
/// The files that a look-up may need according to nsswitch.conf(5): modules, their configuration, and sockets of services.
const LOOK_UP: [&str; 16] = [
    "/usr",
    "/lib",
    "/lib64",
    "/run",
    "/proc/self",
    "/proc/sys/net",
    "/dev/urandom",
    "/etc/ld.so.cache",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/hostname",
    "/etc/localtime",
];
