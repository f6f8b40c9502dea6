//! A memory limit for a program and its child processes: a cgroup of version 1 or 2, whichever has the memory controller.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup with a memory limit, removed on drop.
#[derive(Debug)]
pub struct MemoryLimit {
    path: PathBuf,
    is_second_version: bool,
}

impl MemoryLimit {
    /// Makes a cgroup with a unique name.
    ///
    /// # Panics
    /// If no cgroup file system with a memory controller is mounted.
    pub fn new(name: &str, bytes: u64) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts: Vec<Vec<&str>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
        let first = mounts
            .iter()
            .find(|mount| mount[2] == "cgroup" && mount[3].split(',').any(|option| option == "memory"));
        let second = mounts.iter().find(|mount| mount[2] == "cgroup2");
        let is_second_version = first.is_none();
        let mount = first.or(second).expect("this test needs cgroups with a memory controller")[1];
        if is_second_version {
            // Errors are ignored: the controller may be on already, and if it is not available, setting the limit fails.
            drop(std::fs::write(Path::new(mount).join("cgroup.subtree_control"), "+memory"));
        }
        let path = Path::new(mount).join(format!("wt-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let limit = Self { path, is_second_version };
        std::fs::write(limit.file("memory.limit_in_bytes", "memory.max"), bytes.to_string()).unwrap();
        limit
    }

    /// The command that runs `command` within the limit.
    pub fn bound(&self, command: &Command) -> Command {
        let mut bound = Command::new("sh");
        bound.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        bound.arg(command.get_program()).args(command.get_args());
        let set: Vec<(&OsStr, &OsStr)> =
            command.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
        bound.envs(set);
        bound
    }

    /// The peak usage in KiB, including the kernel's memory for the cgroup.
    pub fn peak_kib(&self) -> u64 {
        let file = self.file("memory.max_usage_in_bytes", "memory.peak");
        std::fs::read_to_string(file).unwrap().trim().parse::<u64>().unwrap() / 1024
    }

    /// How many programs the OOM killer has ended here.
    pub fn killed(&self) -> u64 {
        let events = std::fs::read_to_string(self.file("memory.oom_control", "memory.events")).unwrap();
        let line = events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap();
        line.parse().unwrap()
    }

    fn file(&self, first: &str, second: &str) -> PathBuf {
        self.path.join(if self.is_second_version { second } else { first })
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Removing is tried several times, because killed processes leave the cgroup a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
