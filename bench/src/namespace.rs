//! Network namespaces of a run. Dropping a namespace removes it. If a run is killed, the next run removes its namespaces.

use std::{
    fs::File,
    io,
    os::{
        fd::AsFd as _,
        unix::{fs::MetadataExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// Where `ip netns` keeps named namespaces.
const DIRECTORY: &str = "/run/netns";
/// Time between SIGTERM and SIGKILL for the processes of a namespace.
const PATIENCE: Duration = Duration::from_secs(1);

/// A network namespace by name.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    /// Whether this program made the namespace. If so, dropping this value removes it.
    owned: bool,
}

impl Namespace {
    /// Makes a namespace `wt-PID-bench-N-ROLE` with its loopback up.
    pub(crate) fn create(role: &str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers();
        let name = format!("wt-{}-bench-{}-{role}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        // From here on, dropping `namespace` removes the namespace, even if a later step fails.
        let namespace = Self { name, owned: true };
        let name = &namespace.name;
        execute(Command::new("ip").args(["netns", "add", name]))
            .with_context(|| format!("cannot make the network namespace {name}; this needs root"))?;
        namespace.ip("link set lo up")?;
        // Addresses are unique in these namespaces, so duplicate address detection would only delay IPv6 by a second.
        let sysctl = "net.ipv6.conf.default.accept_dad=0";
        execute(namespace.command("sysctl").args(["-qw", sysctl]))?;
        Ok(namespace)
    }

    /// Refers to an existing namespace. Dropping it does not remove the namespace.
    pub(crate) fn existing(name: &str) -> anyhow::Result<Self> {
        let namespace = Self { name: name.to_owned(), owned: false };
        if !namespace.path().exists() {
            bail!("there is no network namespace {name}; `ip netns list` shows all");
        }
        Ok(namespace)
    }

    /// Refers to the named namespace, or makes a new one.
    pub(crate) fn given_or_new(given: Option<&str>, role: &str) -> anyhow::Result<Self> {
        given.map_or_else(|| Self::create(role), Self::existing)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command that runs a program in the namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    /// Runs `ip` in the namespace. Spaces separate the arguments.
    pub(crate) fn ip(&self, arguments: &str) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        execute(command.args(["-netns", &self.name]).args(arguments.split_whitespace()))
    }

    /// Calls `inside` on a new thread in the namespace. Threads that `inside` starts are in the namespace too.
    pub(crate) fn enter<T, F>(&self, inside: F) -> anyhow::Result<JoinHandle<anyhow::Result<T>>>
    where
        T: Send + 'static,
        F: FnOnce() -> anyhow::Result<T> + Send + 'static,
    {
        let name = self.name.clone();
        // The file is opened before the thread starts, so that this call fails if the namespace does not exist.
        let file = self.open()?;
        Ok(thread::spawn(move || {
            enter_file(&file, &name)?;
            inside()
        }))
    }

    /// Moves the calling thread into the namespace. Other threads stay where they are. Threads that the caller starts later are
    /// in the namespace too.
    pub(crate) fn enter_here(&self) -> anyhow::Result<()> {
        enter_file(&self.open()?, &self.name)
    }

    fn open(&self) -> anyhow::Result<File> {
        File::open(self.path()).with_context(|| format!("cannot open the network namespace {}", self.name))
    }

    fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.owned {
            remove(&self.name);
        }
    }
}

/// Waits for a thread and returns its result.
pub(crate) fn join<T>(thread: JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    finished(thread.join())
}

/// Returns the result of a joined thread, or an error if it panicked.
pub(crate) fn finished<T>(joined: thread::Result<anyhow::Result<T>>) -> anyhow::Result<T> {
    joined.unwrap_or_else(|_| bail!("a thread of the benchmark panicked"))
}

fn enter_file(file: &File, name: &str) -> anyhow::Result<()> {
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(io::Error::from)
        .with_context(|| format!("cannot enter the network namespace {name}; this needs root"))
}

/// Removes the namespaces of benchmark processes that no longer run.
fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir(DIRECTORY) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner(&name).is_some_and(is_dead) {
            // If a process were left inside, the namespace would continue to exist without a name.
            end_processes(&name);
            remove(&name);
        }
    }
}

/// Returns whether a process is gone or a zombie.
pub(crate) fn is_dead(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // In /proc/PID/stat, the state follows the last `)`. The process name before it may contain any character.
    stat.map_or(true, |stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    })
}

/// Ends the processes in a namespace: sends SIGTERM, waits for up to `PATIENCE`, then sends SIGKILL.
pub(crate) fn end_processes(namespace: &str) {
    for (signal, patience) in [(Signal::TERM, PATIENCE), (Signal::KILL, PATIENCE)] {
        let start = Instant::now();
        let mut pids = processes(namespace);
        for pid in pids.iter().filter_map(|&pid| Pid::from_raw(pid)) {
            // Fails if the process has ended in the meantime.
            let _ = kill_process(pid, signal);
        }
        while !pids.is_empty() && start.elapsed() < patience {
            thread::sleep(Duration::from_millis(10));
            pids = processes(namespace);
        }
        if pids.is_empty() {
            return;
        }
    }
}

/// Returns the processes in a namespace, without zombies.
fn processes(namespace: &str) -> Vec<i32> {
    let Ok(wanted) = std::fs::metadata(Path::new(DIRECTORY).join(namespace)) else { return Vec::new() };
    // A process is in the namespace if the device and inode numbers of its `/proc/PID/ns/net` are equal to those of the namespace
    // file (namespaces(7)). A zombie's entry cannot be read.
    let is_there = |pid: &i32| {
        std::fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_there).collect()
}

/// Returns the ID of the benchmark process that made a namespace. The namespace's name contains the ID.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix("wt-")?.split_once('-')?;
    rest.starts_with("bench-").then(|| pid.parse().ok())?
}

fn remove(name: &str) {
    // An error is ignored, because the next run removes the namespaces that are left.
    let _ = own_group(Command::new("ip").args(["netns", "delete", name])).stderr(Stdio::null()).status();
}

/// Runs a command until it ends. If the command fails, the error contains its standard error.
pub(crate) fn execute(command: &mut Command) -> anyhow::Result<()> {
    let output = own_group(command)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}", line(command), said.trim());
    }
    Ok(())
}

/// Gives a command its own process group, so that Ctrl-C does not interrupt it. The cleanup can undo a command that completed,
/// but not one that stopped halfway.
fn own_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zombie_is_dead() {
        let mut child = Command::new("true").spawn().unwrap();
        assert!(!is_dead(std::process::id()));
        let start = Instant::now();
        while !is_dead(child.id()) && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(is_dead(child.id()) && Path::new(&format!("/proc/{}", child.id())).exists());
        child.wait().unwrap();
        assert!(is_dead(child.id()));
    }

    #[test]
    fn leftovers_are_known_by_name() {
        assert_eq!(owner("wt-4711-bench-0-client"), Some(4711));
        assert_eq!(owner("wt-4711-0-client"), None);
        assert_eq!(owner("lab"), None);
    }

    #[test]
    fn namespace_is_entered_by_one_thread_and_gone_after() {
        let Ok(namespace) = Namespace::create("test") else {
            eprintln!("skipped: this needs root");
            return;
        };
        let (name, path) = (namespace.name().to_owned(), namespace.path());
        let inside = || std::fs::read_link("/proc/thread-self/ns/net").map_err(anyhow::Error::from);
        let there = join(namespace.enter(inside).unwrap()).unwrap();
        assert_ne!(there, inside().unwrap());
        assert!(Namespace::existing(&name).is_ok());
        drop(namespace);
        assert!(!path.exists());
        assert!(Namespace::existing(&name).is_err());
    }
}
