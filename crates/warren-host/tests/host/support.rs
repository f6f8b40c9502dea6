//! Network namespaces that are deleted when the test ends, and ways to run code inside them.

use std::{
    fs::File,
    future::Future,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use warren_host::{DeviceName, Host, Plan, snapshot};

/// Whether this process is root, so that the test can run. If not, prints a line, or fails if tests must not be skipped.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        note("skipped: this test needs root");
    }
    is_root
}

/// A network namespace with `lo` up. Dropping this value deletes the namespace with its devices.
pub(crate) struct Namespace {
    name: String,
    directory: TempDir,
}

impl Namespace {
    pub(crate) fn new(role: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("wt-{}-{number}-{role}", std::process::id());
        run(&["ip", "netns", "add", &name]);
        let namespace = Self { name, directory: tempfile::tempdir().unwrap() };
        namespace.run("ip link set lo up");
        namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The path of the journal of the host in this namespace.
    pub(crate) fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    /// Runs a command inside the namespace and fails unless it succeeds.
    pub(crate) fn run(&self, command: &str) -> String {
        let words: Vec<&str> =
            ["ip", "netns", "exec", &self.name].into_iter().chain(command.split_whitespace()).collect();
        run(&words)
    }

    /// Whether a command succeeds inside the namespace.
    pub(crate) fn succeeds(&self, command: &str) -> bool {
        let output =
            Command::new("ip").args(["netns", "exec", &self.name]).args(command.split_whitespace()).output();
        output.unwrap().status.success()
    }

    /// Runs `body` on a thread inside the namespace.
    pub(crate) fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let entered = scope.spawn(|| {
                let namespace = File::open(Path::new("/run/netns").join(&self.name)).unwrap();
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                body()
            });
            match entered.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs the future that `body` returns to completion inside the namespace.
    pub(crate) fn block_on<T: Send, F: Future<Output = T>>(&self, body: impl FnOnce() -> F + Send) -> T {
        self.inside(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(async { body().await })
        })
    }

    pub(crate) fn snapshot(&self) -> String {
        snapshot::take(Some(&self.name)).unwrap()
    }

    /// Fails with the difference if the namespace's state has changed.
    pub(crate) fn assert_is(&self, before: &str, when: &str) {
        let difference = snapshot::difference(before, &self.snapshot());
        assert!(difference.is_empty(), "{when}:\n{difference}");
    }

    /// Applies the plan, checks it, runs `meanwhile`, undoes it, and checks that nothing is left.
    pub(crate) fn with_plan(&self, plan: &Plan, meanwhile: impl FnOnce() + Send) {
        let before = self.snapshot();
        self.block_on(|| async {
            let mut host = Host::open(self.journal()).await.unwrap();
            let applied = host.apply(plan).await.unwrap();
            assert_eq!(host.verify(plan).await.unwrap(), []);
            meanwhile();
            host.undo(applied).await.unwrap();
        });
        self.assert_is(&before, "after undo");
        assert!(!self.journal().exists());
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let deleted = Command::new("ip").args(["netns", "delete", &self.name]).status();
        if !deleted.is_ok_and(|status| status.success()) {
            note(&format!("could not delete the network namespace {}", self.name));
        }
    }
}

/// Joins two namespaces by a veth pair with both ends up. The devices have no link-local addresses, because the kernel would add
/// them at an unpredictable moment.
pub(crate) fn join(one: (&Namespace, &str), other: (&Namespace, &str)) {
    let (one, device) = one;
    let (other, peer) = other;
    one.run(&format!("ip link add {device} type veth peer name {peer} netns {}", other.name()));
    for (namespace, device) in [(one, device), (other, peer)] {
        namespace.run(&format!("ip link set {device} addrgenmode none"));
        namespace.run(&format!("ip link set {device} up"));
    }
}

/// Makes two joined devices act as a tunnel: point-to-point, without neighbour discovery.
pub(crate) fn as_tunnel(one: (&Namespace, &str), other: (&Namespace, &str)) {
    for (namespace, device) in [one, other] {
        namespace.run(&format!("ip link set {device} arp off address 02:00:00:00:57:61"));
    }
}

/// A host that already has settings of other programs (a LAN, a policy rule, a route in another table, a firewall table), with a
/// TUN device.
pub(crate) fn lived_in_host(tun: &str) -> (Namespace, Namespace) {
    let host = Namespace::new("host");
    let lan = Namespace::new("lan");
    join((&host, "lan0"), (&lan, "lan1"));
    lan.run("ip address add 192.168.50.1/24 dev lan1");
    lan.run("ip address add 2001:db8:50::1/64 dev lan1 nodad");
    host.run("ip address add 192.168.50.2/24 dev lan0");
    host.run("ip address add 2001:db8:50::2/64 dev lan0 nodad");
    host.run("ip route add default via 192.168.50.1");
    host.run("ip -6 route add default via 2001:db8:50::1");
    host.run("ip rule add priority 100 fwmark 0x7 lookup 100");
    host.run("ip rule add priority 6018 from 192.0.2.1 lookup 22369");
    host.run("ip route add 198.51.100.0/24 via 192.168.50.1 table 100");
    host.run("ip route add 198.51.100.0/24 via 192.168.50.1 proto 87 table 101");
    host.run("nft add table inet foreign");
    host.run("nft add chain inet foreign input { type filter hook input priority 0 ; }");
    host.run("nft add rule inet foreign input tcp dport 22 counter accept");
    host.run(&format!("ip tuntap add {tun} mode tun"));
    (host, lan)
}

pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn device(name: &str) -> DeviceName {
    DeviceName::new(name).unwrap()
}

fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[allow(clippy::print_stderr)]
fn note(line: &str) {
    eprintln!("{line}");
}
