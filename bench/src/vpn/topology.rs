//! The two hosts of a visit: a client and an exit. Each is a network namespace, and they are joined by a veth pair or a wire.
//!
//! ```text
//! client 192.0.2.2 ----- 192.0.2.1 exit        MTU 1500, default offloads (a wire has none)
//! ```

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, end_processes, execute, is_dead},
    way::Ways,
    wire::{Change, Ends, Wire},
};

/// The directory of WireGuard's control sockets, which all namespaces share.
pub(crate) const WIREGUARD_SOCKETS: &str = "/var/run/wireguard";
/// The prefix of the names of temporary directories. The process ID follows it.
const DIRECTORY: &str = "warren-bench-";
/// A ruleset with a rule that matches the connection state, which makes the kernel track connections.
const TRACKING: &str = "table inet tracking {
    chain input {
        type filter hook input priority filter;
        ct state invalid counter
    }
}
";
/// The name of the link's device at both ends.
const DEVICE: &str = "eth0";

/// Two hosts. Dropping this value ends every process in the namespaces, and removes the namespaces with their devices, and the
/// files.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) client: Namespace,
    pub(crate) exit: Namespace,
    /// The directory of configurations, keys and logs, which only the owner can read.
    pub(crate) directory: TempDir,
    /// The wire between the hosts. None if they are joined by a veth pair.
    pub(crate) wire: Option<Wire>,
}

impl Topology {
    pub(crate) const CLIENT: &str = "192.0.2.2";
    pub(crate) const EXIT: &str = "192.0.2.1";

    /// Makes the hosts and a veth pair between them.
    ///
    /// Leaves nothing behind if it fails.
    pub(crate) fn create() -> anyhow::Result<Self> {
        let topology = Self::hosts()?;
        let peer = topology.exit.name();
        // Both devices are created inside their namespaces, so they never appear in the host's namespace.
        topology.client.ip(&format!("link add {DEVICE} type veth peer name {DEVICE} netns {peer}"))?;
        topology.with_addresses()
    }

    /// Makes the hosts and a wire between them with these settings in each direction.
    pub(crate) fn create_over(settings: &Change) -> anyhow::Result<Self> {
        Self::create_over_seeded(settings, 1)
    }

    /// Like [`Self::create_over`], with a seed for the wire's random choices.
    pub(crate) fn create_over_seeded(settings: &Change, seed: u64) -> anyhow::Result<Self> {
        let mut topology = Self::hosts()?;
        let ends = Ends { client: &topology.client, exit: &topology.exit, device: DEVICE };
        let wire = Wire::start(&ends, 1_500, seed)?;
        wire.handle.change(&settings.each_way(Ways::Both))?;
        topology.wire = Some(wire);
        topology.with_addresses()
    }

    fn hosts() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("{DIRECTORY}{}-", std::process::id()))
            .tempdir()
            .context("cannot make a temporary directory")?;
        let (client, exit) = (Namespace::create("client")?, Namespace::create("exit")?);
        Ok(Self { client, exit, directory, wire: None })
    }

    fn with_addresses(self) -> anyhow::Result<Self> {
        for (host, address) in [(&self.client, Self::CLIENT), (&self.exit, Self::EXIT)] {
            host.ip(&format!("address add {address}/24 dev {DEVICE}"))?;
            host.ip(&format!("link set {DEVICE} up"))?;
        }
        Ok(self)
    }

    /// Makes both hosts' kernels track connections, as any host with NAT or a stateful firewall does.
    pub(crate) fn track_connections(&self) -> anyhow::Result<()> {
        let rules = self.path().join("tracking.nft");
        fs::write(&rules, TRACKING).context("cannot write a rule")?;
        for host in [&self.client, &self.exit] {
            execute(host.command("nft").arg("-f").arg(&rules))
                .context("cannot turn connection tracking on")?;
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        // The namespaces are dropped after this function. A process that is left inside would keep its namespace alive.
        for host in [&self.client, &self.exit] {
            end_processes(host.name());
        }
    }
}

/// Removes the control sockets and directories of runs of this program that were killed.
///
/// [`Namespace::create`] removes the namespaces of such runs, and ends the processes inside.
pub(crate) fn remove_leftovers() {
    let sockets = Path::new(WIREGUARD_SOCKETS);
    for name in names(sockets) {
        // The socket is removed only if the process that made it has ended. Otherwise, another benchmark is using the socket.
        if device_owner(&name).is_some_and(is_dead) {
            // Fails if another run has removed the socket in the meantime.
            let _ = fs::remove_file(sockets.join(&name));
        }
    }
    let temporary = std::env::temp_dir();
    for name in names(&temporary) {
        let owner = name.strip_prefix(DIRECTORY).and_then(|rest| rest.split_once('-'));
        if owner.and_then(|(pid, _)| pid.parse().ok()).is_some_and(is_dead) {
            let _ = fs::remove_dir_all(temporary.join(&name));
        }
    }
}

/// Returns the name of this process's WireGuard device at one end. The name of the device's control socket starts with it.
pub(crate) fn device_name(end: char) -> String {
    format!("wt{}{end}", std::process::id())
}

/// Returns the process ID in the name of a control socket that [`device_name`] made.
fn device_owner(socket: &str) -> Option<u32> {
    socket.strip_prefix("wt")?.strip_suffix(".sock")?.strip_suffix(['c', 'e'])?.parse().ok()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Calls `condition` repeatedly until it returns a value. Fails after `limit`, on an interrupt, or if `condition` fails.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    interrupt: &Interrupt,
    mut condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        interrupt.check()?;
        anyhow::ensure!(start.elapsed() < limit, "{what} did not happen within {} s", limit.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sockets_name_the_process_that_made_them() {
        assert_eq!(device_owner("wt4711c.sock"), Some(4_711));
        assert_eq!(device_owner(&format!("{}.sock", device_name('e'))), Some(std::process::id()));
        assert_eq!(device_owner("wg0.sock"), None);
        assert_eq!(device_owner("wtc.sock"), None);
    }

    #[test]
    fn processes_of_the_hosts_end_with_them() {
        let Ok(topology) = Topology::create() else {
            eprintln!("skipped: this needs root");
            return;
        };
        let mut sleeper = topology.exit.command("sleep").arg("60").spawn().unwrap();
        let reply = topology.client.command("ping").args(["-c1", "-W2", Topology::EXIT]).output().unwrap();
        assert!(reply.status.success());
        let directory = topology.path().to_owned();
        // The child must be waited for, because it would otherwise stay as a zombie.
        let waiter = std::thread::spawn(move || sleeper.wait().unwrap());
        drop(topology);
        assert!(!waiter.join().unwrap().success());
        assert!(!directory.exists());
    }
}
