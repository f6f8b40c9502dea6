//! A hierarchy of cgroups (v2) for one host of the test's net.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A host's cgroups, below a cgroup of the machine. Dropping it removes them.
#[derive(Debug)]
pub struct Cgroups {
    directory: PathBuf,
}

impl Cgroups {
    /// Makes the host's root cgroup. If cgroup v2 or nft's `socket cgroupv2` is missing, prints a line and returns `None`, or
    /// fails where CI relies on these tests.
    pub fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let kind_and_place = |line: &str| {
            let (own, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup2 ").then(|| PathBuf::from(own.split(' ').nth(4).unwrap()))
        };
        let Some(root) = mounts.lines().find_map(kind_and_place) else {
            assert!(std::env::var_os("CI").is_none(), "this test needs cgroup v2");
            println!("skipped: this test needs cgroup v2, and no /sys/fs/cgroup of that kind is mounted");
            return None;
        };
        let directory = root.join(name);
        std::fs::create_dir(&directory).unwrap();
        Some(Self { directory })
    }

    /// Returns the command that runs a program on the host. The program sees only the host's cgroups, as on a machine of its own.
    pub fn command(&self, host: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 0 > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.directory);
        command.args(["ip", "netns", "exec", host, "unshare", "--cgroup", "--"]);
        command.args(["sh", "-c", "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"", "sh"]);
        command
    }

    /// A cgroup of the host.
    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.join(below)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    // Removing is tried several times, because processes that were just killed leave the cgroup a moment later.
    for _ in 0..50 {
        if std::fs::remove_dir(directory).is_ok() || !directory.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
