//! The two hosts of a visit: a client and an exit in namespaces of their own, joined by one veth pair or a wire.
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

/// Where implementations of WireGuard put their control sockets, whatever namespace they run in.
pub(crate) const WIREGUARD_SOCKETS: &str = "/var/run/wireguard";
/// How temporary directories begin, before the number of the process that made them.
const DIRECTORY: &str = "warren-bench-";
/// A rule that asks for a packet's connection; that one does is enough.
const TRACKING: &str = "table inet tracking {
    chain input {
        type filter hook input priority filter;
        ct state invalid counter
    }
}
";
/// The link's name at both ends.
const DEVICE: &str = "eth0";

/// Dropping it ends every process in the namespaces and removes these, their devices and the files.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) client: Namespace,
    pub(crate) exit: Namespace,
    /// For configurations, keys and logs; the owner's alone.
    pub(crate) directory: TempDir,
    /// None where a veth pair joins the hosts.
    pub(crate) wire: Option<Wire>,
}

impl Topology {
    pub(crate) const CLIENT: &str = "192.0.2.2";
    pub(crate) const EXIT: &str = "192.0.2.1";

    /// Makes the hosts and a veth pair between them.
    ///
    /// # Errors
    /// A sentence when a namespace or the link cannot be made; nothing is left behind.
    pub(crate) fn create() -> anyhow::Result<Self> {
        let topology = Self::hosts()?;
        let peer = topology.exit.name();
        topology.client.ip(&format!("link add {DEVICE} type veth peer name {DEVICE} netns {peer}"))?;
        topology.with_addresses()
    }

    /// Makes the hosts and a wire between them that has these settings each way.
    ///
    /// # Errors
    /// As [`Topology::create`].
    pub(crate) fn create_over(settings: &Change) -> anyhow::Result<Self> {
        let mut topology = Self::hosts()?;
        let ends = Ends { client: &topology.client, exit: &topology.exit, device: DEVICE };
        let wire = Wire::start(&ends, 1_500, 1)?;
        wire.change(&settings.each_way(Ways::Both))?;
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

    /// Has both hosts' kernels track connections, as any host with NAT or a stateful firewall does.
    ///
    /// # Errors
    /// A sentence when the rule cannot be put there.
    pub(crate) fn track_connections(&self) -> anyhow::Result<()> {
        let rules = self.path().join("tracking.nft");
        fs::write(&rules, TRACKING).context("cannot write a rule")?;
        for host in [&self.client, &self.exit] {
            execute(host.command("nft").arg("-f").arg(&rules)).context("cannot have connections tracked")?;
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        for host in [&self.client, &self.exit] {
            end_processes(host.name());
        }
    }
}

/// Removes what runs of this program that were killed left: control sockets and directories.
///
/// Namespaces with the processes in them go when the next one is made.
pub(crate) fn remove_leftovers() {
    let sockets = Path::new(WIREGUARD_SOCKETS);
    for name in names(sockets) {
        if device_owner(&name).is_some_and(is_dead) {
            // Somebody else may have removed it by now.
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

/// The name of a WireGuard device of this process at one end; control sockets are told apart by it.
pub(crate) fn device_name(end: char) -> String {
    format!("wt{}{end}", std::process::id())
}

/// The process that [`device_name`] named in a control socket's name.
fn device_owner(socket: &str) -> Option<u32> {
    socket.strip_prefix("wt")?.strip_suffix(".sock")?.strip_suffix(['c', 'e'])?.parse().ok()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Waits until `condition` gives something.
///
/// # Errors
/// A sentence when it takes longer than `limit`, the condition fails, or the user interrupts.
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
        // Somebody must wait for the child, or it stays as a dead process; that one is in no namespace.
        let waiter = std::thread::spawn(move || sleeper.wait().unwrap());
        drop(topology);
        assert!(!waiter.join().unwrap().success());
        assert!(!directory.exists());
    }
}
