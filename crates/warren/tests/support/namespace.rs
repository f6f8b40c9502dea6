//! A host of the test's net: a network namespace and the programs that run in it.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::cgroups::Cgroups;
use super::{eventually, seconds};

/// A network namespace with its own `/etc/resolv.conf`. Dropping it ends its programs and removes it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    own: OnceLock<OwnFiles>,
    cgroups: OnceLock<Cgroups>,
}

/// Directories that a host's programs see as `/etc` and `/run`.
#[derive(Debug)]
pub struct OwnFiles {
    directory: tempfile::TempDir,
}

impl OwnFiles {
    pub fn etc(&self) -> PathBuf {
        self.directory.path().join("etc")
    }

    pub fn run(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Gives the host a program that takes precedence over the machine's.
    pub fn program(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.programs().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn programs(&self) -> PathBuf {
        self.directory.path().join("bin")
    }
}

impl Namespace {
    pub fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("wt-{}-{count}-{role}", std::process::id());
        let namespace = Self { name, own: OnceLock::new(), cgroups: OnceLock::new() };
        // `ip netns exec` mounts these files over those in /etc, so no test touches the machine's own files.
        std::fs::create_dir_all(namespace.etc()).unwrap();
        std::fs::write(namespace.etc().join("resolv.conf"), "nameserver 203.0.113.2\n").unwrap();
        finished(Command::new("ip").args(["netns", "add", &namespace.name])).ok();
        // Without duplicate address detection, addresses can be used at once. No other host can have them.
        namespace.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0").ok();
        namespace.sh("ip link set lo up").ok();
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a shell line on this host to its end, for at most 90 seconds.
    pub fn sh(&self, line: &str) -> Finished {
        finished(&mut self.command(&["timeout", "-k", "5", "90", "sh", "-c", line]))
    }

    /// Starts a program on this host. Its output goes to a file.
    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::new(self.command(arguments))
    }

    /// The command that runs a program on this host.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.cgroups.get() {
            Some(cgroups) => cgroups.command(&self.name),
            None => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &self.name]);
                command
            }
        };
        if let Some(own) = self.own.get() {
            // `ip netns exec` runs the program in its own mount namespace.
            let mount = "mount --bind \"$0/etc\" /etc && mount --bind \"$0/run\" /run && exec \"$@\"";
            command.args(["sh", "-c", mount]).arg(own.directory.path());
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", own.programs().display()));
        }
        command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Gives the host its own `/etc` and `/run`, in which files can be created, replaced and removed. Single files that
    /// `ip` mounts do not allow that. Programs started from now on see the directories.
    pub fn own_files(&self) -> &OwnFiles {
        self.own.get_or_init(|| {
            let own = OwnFiles { directory: tempfile::Builder::new().prefix("wt-").tempdir().unwrap() };
            let path = own.directory.path().display();
            let names =
                "nsswitch.conf hosts passwd group protocols services ld.so.cache iproute2 alternatives";
            let copy = format!(
                "chmod 755 {path}; mkdir {path}/etc {path}/run {path}/bin; cd /etc; \
                 for name in {names}; do test ! -e $name || cp -a $name {path}/etc; done"
            );
            finished(Command::new("sh").args(["-c", &copy])).ok();
            std::fs::copy(self.etc().join("resolv.conf"), own.etc().join("resolv.conf")).unwrap();
            own
        })
    }

    /// Gives the host a cgroup hierarchy of its own, for programs started from now on. Returns `None` on a machine without
    /// cgroup v2.
    pub fn own_cgroups(&self) -> Option<&Cgroups> {
        if self.cgroups.get().is_none() {
            let _ = self.cgroups.set(Cgroups::new(&self.name)?);
        }
        self.cgroups.get()
    }

    /// Calls `inside` on its own thread, whose sockets belong to this host.
    pub fn enter<T: Send + 'static>(
        &self,
        inside: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            inside()
        })
    }

    /// The processes on this host.
    pub fn pids(&self) -> Vec<i32> {
        let listed = finished(Command::new("ip").args(["netns", "pids", &self.name]));
        listed.stdout.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// The directory whose files replace those in `/etc` on this host.
    pub fn etc(&self) -> PathBuf {
        Path::new("/etc/netns").join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for pid in self.pids() {
            signal(pid, Signal::KILL);
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(self.etc());
    }
}

/// The exit code and the output of a program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    line: String,
}

impl Finished {
    /// Fails unless the program succeeded. Returns its output without the final line break.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.succeeded(), "{}\nexit code {:?}\n{}{}", self.line, self.code, self.stdout, self.stderr);
        self.stdout.trim_end().to_owned()
    }

    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }
}

/// Runs a command to its end.
pub fn finished(command: &mut Command) -> Finished {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        line: format!("{command:?}"),
    }
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    output: PathBuf,
    _directory: tempfile::TempDir,
}

impl Running {
    /// Starts a command. Standard output and standard error go to one file.
    pub fn new(mut command: Command) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let output = directory.path().join("output");
        let file = File::create(&output).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, output, _directory: directory }
    }

    /// The program's process ID: `ip netns exec` is replaced by the program that it runs.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The output so far.
    pub fn output(&self) -> String {
        let mut text = Vec::new();
        File::open(&self.output).unwrap().read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the program's end. Returns its exit code, or `None` after a signal.
    #[track_caller]
    pub fn wait(&mut self, within: Duration) -> Option<i32> {
        let mut status = None;
        eventually(within, "the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Waits until the program has printed `text`.
    #[track_caller]
    pub fn wait_for_output(&mut self, text: &str) {
        eventually(seconds(60), &format!("the program prints {text:?}"), || {
            assert!(
                self.is_running() || self.output().contains(text),
                "the program ended: {}",
                self.output()
            );
            self.output().contains(text)
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("--- output of process {}\n{}", self.pid(), self.output());
        }
    }
}

/// Sends a signal to a process, which may have ended already.
pub fn signal(pid: i32, which: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, which);
    }
}
