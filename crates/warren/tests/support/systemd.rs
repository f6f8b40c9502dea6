//! A host with a real systemd as PID 1, in its own PID, mount, cgroup, UTS and IPC namespaces. Its files are an overlay
//! over this machine's files, or over those of another Debian.
//!
//! At boot, only the journal and the units that a test enables are started. Killing systemd ends all processes of the host.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::namespace::{finished, signal};
use super::{Finished, Namespace, Running, eventually, seconds};

/// A host's files before systemd starts.
#[derive(Debug)]
pub struct Files {
    directory: TempDir,
    /// The lower directory of the overlay.
    lower: PathBuf,
    /// The file that replaces `/usr/bin/warren`.
    warren: Option<&'static str>,
}

impl Files {
    /// This machine's files, without its systemd configuration and without its Warren.
    pub fn new() -> Self {
        let files = Self::over("/".into(), Some(env!("CARGO_BIN_EXE_warren")));
        files.hide("etc/warren");
        files.hide("var/lib/warren");
        files
    }

    /// The files below `root`: a system that has never booted and has no Warren.
    pub fn of(root: &Path) -> Self {
        Self::over(root.into(), None)
    }

    fn over(lower: PathBuf, warren: Option<&'static str>) -> Self {
        // An overlay's upper directory must not be on an overlay itself. The temporary directory is not.
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        for name in ["root", "work"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let files = Self { directory, lower, warren };
        for hidden in ["etc/systemd", "var/log/journal"] {
            files.hide(hidden);
        }
        for target in ["sysinit", "multi-user"] {
            files.hide(&format!("usr/lib/systemd/system/{target}.target.wants"));
        }
        files.write("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
        files.write("etc/hostname", "warren-test\n");
        // The target for early boot is replaced, because a namespace does not need its steps, such as checking disks.
        files.write("etc/systemd/system/sysinit.target", SYSINIT);
        files.write("etc/systemd/system/multi-user.target", MULTI_USER);
        // The journal must not read the kernel's log, which is the machine's.
        files.write("etc/systemd/journald.conf", "[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n");
        files
    }

    /// Writes a file. `path` is relative to the root.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes a file that only its owner may read.
    pub fn write_private(&self, path: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        self.write(path, text);
        std::fs::set_permissions(self.path(path), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Makes `target` start `NAME@INSTANCE.service` at boot.
    pub fn enable(&self, name: &str, instance: &str, target: &str) {
        self.want(&format!("{name}@{instance}"), &format!("{name}@"), target);
    }

    /// Makes `target` start `NAME.service` at boot.
    pub fn enable_plain(&self, name: &str, target: &str) {
        self.want(name, name, target);
    }

    fn want(&self, wanted: &str, unit: &str, target: &str) {
        let link = self.path(&format!("etc/systemd/system/{target}.wants/{wanted}.service"));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(format!("/etc/systemd/system/{unit}.service"), link).unwrap();
    }

    /// The path under which to write a file before boot, and to find files that the host wrote.
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("upper").join(path)
    }

    /// Hides one of this machine's directories behind an empty one.
    fn hide(&self, path: &str) {
        std::fs::create_dir_all(self.path(path)).unwrap();
        let opaque = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(self.path(path), "trusted.overlay.opaque", b"y", opaque).unwrap();
    }
}

/// A booted host. Dropping this value ends systemd and all its child processes.
#[derive(Debug)]
pub struct Systemd<'net> {
    pub host: &'net Namespace,
    /// `None` after the power was cut.
    files: Option<Files>,
    /// `unshare`, whose only child is systemd.
    unshare: Running,
    init: i32,
    cgroup: PathBuf,
}

impl<'net> Systemd<'net> {
    /// Whether this machine can run such a host. If not, prints a line, or fails if CI relies on these tests.
    pub fn is_here() -> bool {
        if Path::new("/lib/systemd/systemd").exists() && cgroup2().is_some() {
            return true;
        }
        assert!(std::env::var_os("CI").is_none(), "this test needs systemd and a mounted cgroup2");
        println!("skipped: this test needs systemd and a mounted cgroup2");
        false
    }

    /// Boots a host with these files, and waits until every enabled unit has started or failed.
    #[track_caller]
    pub fn boot(host: &'net Namespace, files: Files) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/systemd.sh");
        let cgroup = cgroup2().expect("cgroup2 is mounted").join(host.name());
        let resolver = files.path("etc/resolv.conf");
        if !resolver.exists() {
            std::fs::copy(host.etc().join("resolv.conf"), resolver).unwrap();
        }
        let mut boot = Command::new("sh");
        boot.arg(script).arg(host.name()).arg(&cgroup).arg(files.directory.path());
        boot.arg(&files.lower).args(files.warren);
        let unshare = Running::new(boot);
        let mut systemd = Self { host, files: Some(files), unshare, init: 0, cgroup };
        eventually(seconds(20), "systemd has booted", || {
            assert!(systemd.unshare.is_running(), "systemd ended: {}", systemd.unshare.output());
            systemd.init = child_of(systemd.unshare.pid()).unwrap_or_default();
            // The state leaves `starting` for `running`, or for `degraded` if a unit failed.
            systemd.init != 0 && {
                let state = systemd.run(&["systemctl", "is-system-running"]).stdout;
                ["running", "degraded"].contains(&state.trim())
            }
        });
        systemd
    }

    /// Runs a shell line on this host, inside systemd's namespaces.
    pub fn sh(&self, line: &str) -> Finished {
        self.run(&["timeout", "-k", "5", "90", "sh", "-c", line])
    }

    /// Runs a program on this host to its end.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        finished(&mut self.command(arguments))
    }

    /// The command that runs a program on this host.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.init.to_string();
        command.args(["--target", &target, "--all", "--wd=/", "env", "-i", "LC_ALL=C"]);
        command.arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin").args(arguments).stdin(std::process::Stdio::null());
        command
    }

    /// One property of a unit, as `systemctl show` prints it.
    #[track_caller]
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", name, unit]).ok()
    }

    /// Whether a unit has started. A unit with readiness notification must also be ready.
    pub fn is_active(&self, unit: &str) -> bool {
        self.property(unit, "ActiveState") == "active"
    }

    /// The main process of a unit as a PID of this machine, if it has one.
    pub fn main_pid(&self, unit: &str) -> Option<i32> {
        let inner = self.property(unit, "MainPID");
        // The last number of NSpid is the PID inside the namespace.
        self.host.pids().into_iter().find(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            numbers.split_whitespace().nth(1) == Some(inner.as_str())
        })
    }

    /// The log lines of a unit.
    pub fn journal(&self, unit: &str) -> String {
        self.run(&["journalctl", "--no-pager", "--output=short-monotonic", "--unit", unit]).stdout
    }

    /// The host's files, for inspection.
    pub fn files(&self) -> &Files {
        self.files.as_ref().expect("the power was not cut")
    }

    /// Ends all processes at once, and removes everything that is not on disk: `/run`, and Warren's changes to the network. The
    /// result can be booted again.
    pub fn cut_power(mut self) -> Files {
        self.end();
        self.host.sh(FORGET).ok();
        self.files.take().expect("the power was not cut before")
    }

    fn end(&mut self) {
        if self.init != 0 {
            signal(self.init, Signal::KILL);
            while self.unshare.is_running() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            self.init = 0;
        }
        remove_cgroup(&self.cgroup);
    }
}

impl Drop for Systemd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.files.is_some() {
            let log = self.run(&["journalctl", "--no-pager", "--output=short-monotonic", "--lines=100"]);
            println!("--- journal of {}\n{}{}", self.host.name(), log.stdout, log.stderr);
        }
        self.end();
    }
}

/// Commands that remove what a real boot would remove, because the network namespace is kept.
const FORGET: &str = "nft flush ruleset; for version in 4 6; do \
                      while ip -$version rule delete protocol 87 2>/dev/null; do :; done; \
                      ip -$version route flush table all protocol 87 || true; done";

const SYSINIT: &str = "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service local-fs.target\n\
                       After=systemd-journald.service local-fs.target\n";
const MULTI_USER: &str = "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n";

/// The mount point of cgroup2 on this machine.
fn cgroup2() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    mounts.find(|mount| mount[2] == "cgroup2").map(|mount| PathBuf::from(mount[1]))
}

fn child_of(pid: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Removes a cgroup and those below it. Killed processes leave them a moment later.
fn remove_cgroup(path: &Path) {
    for _ in 0..100 {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                remove_cgroup(&entry.path());
            }
        }
        if std::fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
