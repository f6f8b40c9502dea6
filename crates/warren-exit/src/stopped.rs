//! The clients of an exit that does not run: commands change them on disk, and the exit reads them when it starts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use ipnet::IpNet;
use warren_host::DeviceName;
use warren_host::tracking::{self, Flow};
use warren_session::clients::{ClientRegistry, Forward};
use warren_session::exit::{SessionConfig, check_clients};

use crate::host::DEVICE;
use crate::host::flows::has_end_in;
use crate::host::forwards::{HostPorts, OwnPorts, own_ports, refuse_taken};
use crate::import::{changes, refuse_silent, registry_after};
use crate::session_settings::session_settings;
use warren_config::{ClientStore, ClientsImport, ExitSettings, counted, staged_path, store_path};
use warren_control::ImportSummary;

/// The file of the clients, and the settings that the clients must fit. The caller must hold the clients' lock for every method.
#[derive(Debug)]
pub struct StoppedClients {
    /// The file that `[clients] file` names.
    path: PathBuf,
    settings: SessionConfig,
    /// The ports at which the exit listens while it runs.
    own: OwnPorts,
    is_in_fleet: bool,
}

impl StoppedClients {
    /// The clients of the exit with this configuration.
    pub fn new(config: &ExitSettings, path: PathBuf) -> Self {
        Self {
            path,
            settings: session_settings(config),
            own: own_ports(config),
            is_in_fleet: config.fleet.is_some(),
        }
    }

    /// Opens the store. Before that, imports a `clients.toml`, which an earlier version left or an operator put there.
    ///
    /// # Errors
    /// When a file cannot be read or written, or `clients.toml` cannot be imported.
    pub fn open(&self) -> anyhow::Result<(ClientStore, ClientRegistry)> {
        let (mut store, registry) = ClientStore::open(store_path(&self.path))?;
        let import = ClientsImport::read(&self.path)?;
        // The store remembers the mark of the last import. So a file that could not be put away is not imported twice.
        let Some(import) = import.filter(|import| import.mark() != store.imported()) else {
            return Ok((store, registry));
        };
        // The store of an exit of a fleet is a copy of the fleet's clients.
        if self.is_in_fleet && store.exists() {
            tracing::warn!(
                "{} is not imported, because this exit belongs to a fleet; change clients with `warren exit client`",
                import.path().display()
            );
            return Ok((store, registry));
        }
        let before = registry.clone();
        let registry = self.taken_over(&store, registry, &import)?;
        store.save_all(registry.rows(), Some(import.mark()))?;
        self.forget_flows(&before, &registry);
        let from = import.path().display().to_string();
        let kept = import.put_away(&self.path);
        let kept = kept.map_or_else(
            |error| format!("it stays there: {error}"),
            |kept| format!("it is {} now", kept.display()),
        );
        tracing::info!(
            "imported {} from {from} into {}; {kept}",
            counted(registry.len(), "client"),
            store.path().display()
        );
        Ok((store, registry))
    }

    /// Refuses a forward of ports that this host needs itself.
    ///
    /// # Errors
    /// Which port is taken, and by what.
    pub async fn refuse_taken(&self, forward: Forward, registry: &ClientRegistry) -> anyhow::Result<()> {
        let host = HostPorts::look(self.own.clone()).await?;
        refuse_taken(forward, &host, registry).map_err(anyhow::Error::msg)
    }

    /// Imports the file that a command has put beside the store, and returns the changes. With `dry_run`, nothing is changed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn import(&self, dry_run: bool) -> anyhow::Result<ImportSummary> {
        let Some(import) = ClientsImport::read(&staged_path(&self.path))? else {
            bail!("there is no file to import; run `warren exit client import FILE`");
        };
        let (mut store, before) = self.open()?;
        let after = self.taken_over(&store, before.clone(), &import)?;
        let summary = changes(&before, &after);
        if !dry_run {
            store.save_all(after.rows(), Some(import.mark()))?;
            self.forget_flows(&before, &after);
            import.put_away(&self.path)?;
        }
        Ok(summary)
    }

    /// Removes the tracked flows of addresses and networks that clients have lost by a change. Connection tracking keeps flows while
    /// an exit is stopped, and the next clients with these addresses would get the flows' packets.
    pub fn forget_flows(&self, before: &ClientRegistry, after: &ClientRegistry) {
        let lost = Lost::between(before, after);
        if lost.is_nothing() {
            return;
        }
        let own = if lost.prefixes.is_empty() { Ok(Vec::new()) } else { own_networks() };
        let own = own.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot find this host's own networks, whose flows may be forgotten too: {error:#}"
            );
            Vec::new()
        });
        match tracking::forget_those(|flow| lost.has(flow, &own)) {
            Ok(flows) => tracing::debug!(flows, "forgot the flows of addresses that clients have lost"),
            Err(error) => tracing::warn!(
                "cannot forget the flows of addresses that clients have lost: {error}; other clients with these addresses may get their packets until this host restarts"
            ),
        }
    }

    /// The registry after an import.
    fn taken_over(
        &self,
        store: &ClientStore,
        before: ClientRegistry,
        import: &ClientsImport,
    ) -> anyhow::Result<ClientRegistry> {
        // Without a store, no client was ever enrolled or removed, so nothing must be kept.
        if !store.exists() {
            check_clients(self.settings.ipv4, self.settings.ipv6, &import.registry)?;
            return Ok(import.registry.clone());
        }
        refuse_silent(import, &before)?;
        registry_after(&self.settings, before, import.registry.clone())
    }
}

/// The addresses and networks that clients have lost by a change.
#[derive(Debug, PartialEq, Eq)]
struct Lost {
    addresses: BTreeSet<IpAddr>,
    prefixes: Vec<IpNet>,
}

impl Lost {
    fn between(before: &ClientRegistry, after: &ClientRegistry) -> Self {
        let mut lost = Self { addresses: BTreeSet::new(), prefixes: Vec::new() };
        for was in before.iter() {
            let is = after.by_key(was.public_key);
            let has_address = |address: &IpAddr| is.is_some_and(|is| is.lease().contains(*address));
            lost.addresses.extend(was.lease().addresses().filter(|address| !has_address(address)));
            let has_prefix = |prefix: &IpNet| is.is_some_and(|is| is.prefixes.contains(prefix));
            lost.prefixes.extend(was.prefixes.iter().filter(|prefix| !has_prefix(prefix)));
        }
        lost
    }

    fn is_nothing(&self) -> bool {
        self.addresses.is_empty() && self.prefixes.is_empty()
    }

    /// `own`: the host's own networks. Hosts there are not behind a client, even if the network is part of one behind a client.
    fn has(&self, flow: &Flow, own: &[IpNet]) -> bool {
        flow.is_of(&self.addresses) || has_end_in([flow.source, flow.answers_from], &self.prefixes, own)
    }
}

/// The networks of this host's permanent addresses.
fn own_networks() -> anyhow::Result<Vec<IpNet>> {
    let tun = DeviceName::new(DEVICE)?;
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        anyhow::Ok(runtime.block_on(warren_host::surroundings(&tun))?)
    };
    // The caller may or may not run in a runtime, and a thread cannot wait in a second one.
    let looked = std::thread::scope(|scope| scope.spawn(look).join());
    let surroundings = looked.map_err(|_| anyhow!("the thread has panicked"))??;
    Ok(surroundings.permanent.into_iter().map(|link| link.network).collect())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use warren_session::PublicKey;
    use warren_session::clients::Client;

    use super::*;

    #[test]
    fn a_clients_toml_beside_the_copy_of_a_fleet_is_not_imported() {
        for is_in_fleet in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("clients.toml");
            let (mut store, mut registry) = ClientStore::open(store_path(&path)).unwrap();
            registry.add(Client::new("anna", PublicKey([7; 32]), UNIX_EPOCH)).unwrap();
            store.save_all(registry.rows(), None).unwrap();
            std::fs::write(&path, "client = []\n").unwrap();
            let clients = StoppedClients {
                path: path.clone(),
                settings: SessionConfig {
                    ipv4: Some("10.66.0.0/24".parse().unwrap()),
                    ..SessionConfig::default()
                },
                own: OwnPorts::default(),
                is_in_fleet,
            };
            let (_, registry) = clients.open().unwrap();
            assert_eq!((registry.len(), path.exists()), if is_in_fleet { (1, true) } else { (0, false) });
        }
    }

    #[tokio::test]
    async fn own_networks_are_found_inside_a_runtime_as_outside() {
        let outside = std::thread::spawn(own_networks).join().unwrap().unwrap();
        assert_eq!(own_networks().unwrap(), outside);
    }

    #[test]
    fn clients_that_are_removed_or_moved_lose_their_addresses_and_others_keep_them() {
        let client = |name: &str, number: u8| Client {
            leased_ipv4: Some([10, 66, 0, number].into()),
            prefixes: vec![format!("192.168.{number}.0/24").parse().unwrap()],
            ..Client::new(name, PublicKey([number; 32]), UNIX_EPOCH)
        };
        let of = |clients: Vec<Client>| {
            let mut registry = ClientRegistry::new();
            clients.into_iter().for_each(|client| registry.add(client).unwrap());
            registry
        };
        let moved = Client { ipv4: Some([10, 66, 7, 7].into()), leased_ipv4: None, ..client("moved", 3) };
        let before = of(vec![client("gone", 2), client("moved", 3), client("kept", 4)]);
        let after = of(vec![moved, Client { name: "renamed".into(), ..client("kept", 4) }]);

        let lost = Lost::between(&before, &after);

        let addresses = [[10, 66, 0, 2], [10, 66, 0, 3]].map(IpAddr::from).into();
        assert_eq!(lost, Lost { addresses, prefixes: vec!["192.168.2.0/24".parse().unwrap()] });
        assert!(Lost::between(&before, &before).is_nothing());
    }
}
