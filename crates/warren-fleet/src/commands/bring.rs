//! `warren fleet join --bring-clients`: an exit that joins brings its own clients into the fleet.
//!
//! The clients are compared with the fleet's before the ticket is used, so a refusal changes nothing. They are stored after the
//! ticket was used and before `fleet.toml` has its name. Until then, no link of this exit runs, and the exit keeps its clients on its
//! own disk. A killed command can therefore be repeated. Rows that it has stored are the fleet's own by then, and are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use etcd_client::Client as Etcd;
use ipnet::IpNet;
use warren_config::{client_address, counted, load_clients, load_exit};
use warren_fleet_link::Pools;
use warren_session::PublicKey;
use warren_session::clients::{
    Client, ClientRegistry, Forward, ForwardProtocol, Invitation, RemovedKey, RowChange, RowId, overlap,
};

use crate::config::{exit_toml, is_there};
use crate::keys::Keys;
use crate::link::{pools_text, rows_of};
use crate::planted::reached;
use crate::rows::{Claim, Rows, named};
use crate::run::Directories;
use crate::store::{apply, read_all};

/// The clients, invitations and removed keys of this host's exit. A host without an exit has none.
///
/// # Errors
/// If they cannot be read.
pub(super) fn own_registry(directories: &Directories<'_>) -> anyhow::Result<ClientRegistry> {
    let path = exit_toml(directories.config);
    if !is_there(&path)? {
        return Ok(ClientRegistry::new());
    }
    Ok(load_clients(&load_exit(&path)?.clients_path(directories.state))?)
}

/// The static addresses of a client that clients cannot have in these pools, each with the reason.
pub(super) fn misplaced(client: &Client, pools: &Pools) -> impl Iterator<Item = (IpAddr, String)> {
    let check = |address| Some((address, client_address(address, pools.ipv4, pools.ipv6).err()?));
    client.static_lease().addresses().filter_map(check)
}

/// Checks that an exit's clients can be brought into a fleet.
///
/// # Errors
/// If one of them collides with the fleet's. A warning names each collision.
pub(super) async fn check(
    store: &Etcd,
    keys: &Keys,
    own: &ClientRegistry,
    pools: &Pools,
) -> anyhow::Result<()> {
    let (_, pairs) = read_all(store, keys).await?;
    news(&rows_of(keys, &pairs), own, pools).map(drop)
}

/// Stores an exit's clients, invitations and removed keys in its fleet. Leaves out those that the fleet has.
///
/// # Errors
/// If one of them collides with the fleet's, or the store does not answer. The function may then be called again.
pub(super) async fn bring(
    mut store: Etcd,
    keys: &Keys,
    own: &ClientRegistry,
    pools: &Pools,
) -> anyhow::Result<()> {
    let (_, pairs) = read_all(&store, keys).await?;
    let mut rows = rows_of(keys, &pairs);
    let is_removed = |row: &RowChange| matches!(row, RowChange::Removed { .. });
    let (removed, others): (Vec<_>, Vec<_>) = news(&rows, own, pools)?.into_iter().partition(is_removed);
    let each = |rows: Vec<RowChange>| rows.into_iter().map(|row| vec![row]).collect();
    let mut refused = apply(&mut store, keys, &mut rows, each(removed)).await?;
    reached("removed keys stored");
    refused.extend(apply(&mut store, keys, &mut rows, each(others)).await?);
    if let Some(first) = refused.first() {
        // Since the rows were read, another exit has given a name or an address to another client. The next attempt sees that.
        bail!(
            "{} are not stored, because the fleet's clients have just changed; the first is {}",
            counted(refused.len(), "row"),
            first.first().map(named).unwrap_or_default()
        );
    }
    reached("clients brought");
    Ok(())
}

/// The rows of an exit that a fleet lacks, in the order in which they are stored. Warns of each collision.
fn news(rows: &Rows, own: &ClientRegistry, pools: &Pools) -> anyhow::Result<Vec<RowChange>> {
    let (news, collisions) = Fleet::new(rows, own, pools, SystemTime::now()).compare(own);
    for collision in &collisions {
        tracing::warn!("{collision}");
    }
    if !collisions.is_empty() {
        bail!(
            "{} between this exit's clients and the fleet's, listed above; no client was changed, and the ticket still works on this host; \
             resolve them at this exit or in the fleet, then run this again. A client that is enrolled in both must have the same name and \
             settings in both. Do not remove it in either, because that would remove its key for good",
            counted(collisions.len(), "collision")
        );
    }
    // This finds what no single client exceeds, such as the most clients that a fleet can have.
    let all = rows.iter().map(|(_, row)| row.content.clone()).chain(news.iter().cloned());
    ClientRegistry::from_rows(all).context(
        "the fleet cannot take this exit's clients; no client was changed, and the ticket still works on this host",
    )?;
    Ok(news)
}

/// A fleet's clients, indexed by everything that only one client can have.
struct Fleet<'a> {
    rows: &'a Rows,
    pools: &'a Pools,
    now: SystemTime,
    /// The names of open invitations, each with the client that the invitation upgrades. Invitations that the joining exit knows as used
    /// are not open.
    invited: BTreeMap<&'a str, Option<PublicKey>>,
    prefixes: BTreeMap<IpNet, &'a Client>,
    /// By protocol and last port.
    forwards: BTreeMap<(ForwardProtocol, u16), (Forward, &'a Client)>,
}

impl<'a> Fleet<'a> {
    fn new(rows: &'a Rows, own: &ClientRegistry, pools: &'a Pools, now: SystemTime) -> Self {
        let used: BTreeSet<RowId> = own.rows().filter(is_used).map(|row| row.id()).collect();
        let (prefixes, forwards) = (BTreeMap::new(), BTreeMap::new());
        let mut fleet = Self { rows, pools, now, invited: BTreeMap::new(), prefixes, forwards };
        for (id, row) in rows.iter() {
            match &row.content {
                RowChange::Client { client: Some(client), .. } => {
                    fleet.prefixes.extend(client.prefixes.iter().map(|prefix| (*prefix, client)));
                    let place = |forward: Forward| (forward.ports().protocol(), forward.ports().last());
                    let forwards = client.forwards.iter();
                    fleet.forwards.extend(forwards.map(|forward| (place(*forward), (*forward, client))));
                }
                RowChange::Invitation { invitation: Some(invitation), .. }
                    if invitation.is_open(now) && !used.contains(&id) =>
                {
                    fleet.invited.insert(&invitation.name, invitation.upgrades);
                }
                RowChange::Client { .. } | RowChange::Invitation { .. } | RowChange::Removed { .. } => {}
            }
        }
        fleet
    }

    /// Returns the rows of an exit that the fleet lacks, and a sentence for each collision.
    fn compare(&self, own: &ClientRegistry) -> (Vec<RowChange>, Vec<String>) {
        let (mut news, mut collisions) = (Vec::new(), Vec::new());
        for row in own.rows() {
            match row {
                RowChange::Client { client: Some(client), .. } if !self.has(&client) => {
                    collisions.extend(self.collisions(&client));
                    news.push(self.with_free_lease(client).into());
                }
                RowChange::Removed { removed: Some(removed), .. } => {
                    collisions.extend(self.removal_collides(&removed));
                    if !self.rows.has(RowId::Removed(removed.public_key)) {
                        news.push(removed.into());
                    }
                }
                RowChange::Invitation { invitation: Some(invitation), .. } if self.lacks(&invitation) => {
                    collisions.extend(self.invitation_collides(&invitation));
                    news.push(invitation.into());
                }
                RowChange::Client { .. } | RowChange::Removed { .. } | RowChange::Invitation { .. } => {}
            }
        }
        (news, collisions)
    }

    /// Whether the fleet has this client, with the same settings.
    fn has(&self, own: &Client) -> bool {
        self.rows.client(own.public_key).is_some_and(|client| differences(own, client).is_empty())
    }

    /// The client whose current or next key this is.
    fn holder_of(&self, key: PublicKey) -> Option<&'a Client> {
        let by_next_key = || self.rows.client(self.rows.holder(&Claim::NextKey(key))?);
        self.rows.client(key).or_else(by_next_key)
    }

    /// Why the fleet cannot take a client, in a sentence for each reason.
    fn collisions(&self, own: &Client) -> Vec<String> {
        let all = [
            self.collisions_of_identity(own),
            self.collisions_of_addresses(own),
            self.collisions_of_forwards(own),
        ];
        all.iter().flatten().map(|collision| format!("client {}: {collision}", own.name)).collect()
    }

    fn collisions_of_identity(&self, own: &Client) -> Vec<String> {
        let (rows, name) = (self.rows, &own.name);
        let mut found = Vec::new();
        if let Some(client) = rows.client(own.public_key) {
            let differing = differences(own, client).join(", ");
            found.push(format!(
                "the fleet has its key as client {}, but not the same {differing}; make both alike",
                client.name
            ));
        } else if rows.is_unreadable(RowId::Client(own.public_key)) {
            found.push("the fleet's value of its key cannot be read; change that client at an exit of the fleet first".to_owned());
        }
        if rows.holder(&Claim::Name(name.clone())).is_some_and(|holder| holder != own.public_key) {
            found.push("the fleet's client of this name has another key; rename one of the two".to_owned());
        }
        if self.invited.get(name.as_str()).is_some_and(|upgrades| *upgrades != Some(own.public_key)) {
            found.push(
                "the fleet has an open invitation of this name; withdraw it there, or rename the client"
                    .to_owned(),
            );
        }
        for key in own.keys() {
            if rows.has(RowId::Removed(key)) {
                found.push(format!("its key {key} was removed in the fleet; remove the client here, too, or give it another key"));
            }
            if let Some(holder) = self.holder_of(key).filter(|holder| holder.public_key != own.public_key) {
                found.push(format!(
                    "its key {key} is also a key of the fleet's client {}; give one of the two another key",
                    holder.name
                ));
            }
        }
        found
    }

    fn collisions_of_addresses(&self, own: &Client) -> Vec<String> {
        let mut found = Vec::new();
        for (address, _) in misplaced(own, self.pools) {
            found.push(format!(
                "its static address {address} is not free for clients in the fleet's prefixes {}; run `warren exit client set {} {} auto`, \
                 and set another address once the exit is linked",
                pools_text(self.pools),
                own.name,
                if address.is_ipv4() { "--ipv4" } else { "--ipv6" }
            ));
        }
        for address in own.static_lease().addresses() {
            let holder =
                self.rows.holder(&Claim::Address(address)).filter(|holder| *holder != own.public_key);
            if let Some(holder) = holder.and_then(|holder| self.rows.client(holder)) {
                found.push(format!(
                    "its static address {address} belongs to the fleet's client {}; choose another one",
                    holder.name
                ));
            }
        }
        let [ipv4, ipv6] = [self.pools.ipv4.map(IpNet::V4), self.pools.ipv6.map(IpNet::V6)];
        for prefix in &own.prefixes {
            if let Some(pool) = ipv4.into_iter().chain(ipv6).find(|pool| overlap(pool, prefix)) {
                found.push(format!(
                    "its network {prefix} overlaps the fleet's inner prefix {pool}; choose another one"
                ));
            }
            // The fleet's networks do not overlap each other, so only the two next to this one can overlap it.
            let below = self.prefixes.range(..=prefix).next_back();
            let near = below.into_iter().chain(self.prefixes.range(prefix..).next());
            let mut rivals =
                near.filter(|(other, client)| overlap(other, prefix) && client.public_key != own.public_key);
            if let Some((other, client)) = rivals.next() {
                found.push(format!(
                    "its network {prefix} overlaps {other} of the fleet's client {}; choose another one",
                    client.name
                ));
            }
        }
        found
    }

    fn collisions_of_forwards(&self, own: &Client) -> Vec<String> {
        let rival = |forward: &Forward| {
            let ports = forward.ports();
            // The fleet's forwards do not overlap, so the first one that ends at these ports or above is the only candidate.
            let (_, (other, client)) = self.forwards.range((ports.protocol(), ports.first())..).next()?;
            let is_rival = other.ports().overlaps(ports) && client.public_key != own.public_key;
            is_rival.then(|| {
                format!(
                    "its forward of {ports} overlaps {} of the fleet's client {}; choose other ports",
                    other.ports(),
                    client.name
                )
            })
        };
        own.forwards.iter().filter_map(rival).collect()
    }

    /// Why the fleet cannot take a removed key.
    fn removal_collides(&self, own: &RemovedKey) -> Option<String> {
        let holder = self.holder_of(own.public_key)?;
        Some(format!(
            "removed client {}: its key {} belongs to the fleet's client {}; remove that client in the fleet, too, or enrol it here again \
             with --allow-removed",
            own.name, own.public_key, holder.name
        ))
    }

    /// Whether the fleet lacks an invitation, or does not know that it was used. Expired invitations do not count.
    fn lacks(&self, own: &Invitation) -> bool {
        let is_stored = match self.rows.content(RowId::Invitation(own.token_sha256)) {
            RowChange::Invitation { invitation: Some(stored), .. } => {
                own.used_by.is_none() || stored.used_by.is_some()
            }
            RowChange::Invitation { .. } | RowChange::Client { .. } | RowChange::Removed { .. } => false,
        };
        own.expires > self.now && !is_stored
    }

    /// Why the fleet cannot take an open invitation.
    fn invitation_collides(&self, own: &Invitation) -> Option<String> {
        let holder = self.rows.holder(&Claim::Name(own.name.clone()));
        let what = if own.used_by.is_some() {
            return None;
        } else if holder.is_some_and(|holder| own.upgrades != Some(holder)) {
            "a client"
        } else if self.invited.contains_key(own.name.as_str()) {
            "another open invitation"
        } else {
            return None;
        };
        Some(format!(
            "invitation {}: the fleet has {what} of this name; withdraw one of the two with `warren exit client remove {}`",
            own.name, own.name
        ))
    }

    /// Returns the client without the sticky addresses that it cannot keep in the fleet.
    fn with_free_lease(&self, client: Client) -> Client {
        let is_free = |address: IpAddr| {
            client_address(address, self.pools.ipv4, self.pools.ipv6).is_ok()
                && self.rows.holder(&Claim::Address(address)).is_none()
        };
        Client {
            leased_ipv4: client.leased_ipv4.filter(|address| is_free((*address).into())),
            leased_ipv6: client.leased_ipv6.filter(|address| is_free((*address).into())),
            ..client
        }
    }
}

/// The settings in which two clients with the same key differ. Dates and sticky addresses are not settings.
fn differences(one: &Client, other: &Client) -> Vec<&'static str> {
    let networks = |client: &Client| -> BTreeSet<IpNet> { client.prefixes.iter().copied().collect() };
    let forwards =
        |client: &Client| -> BTreeSet<String> { client.forwards.iter().map(Forward::to_string).collect() };
    [
        ("name", one.name == other.name),
        ("next key", one.next_public_key == other.next_public_key),
        ("WireGuard settings", one.wireguard == other.wireguard),
        ("static addresses", one.static_lease() == other.static_lease()),
        ("networks", networks(one) == networks(other)),
        ("rate limit", one.rate_limit == other.rate_limit),
        ("forwards", forwards(one) == forwards(other)),
        ("state (one of the two is disabled)", one.disabled == other.disabled),
    ]
    .into_iter()
    .filter_map(|(what, is_same)| (!is_same).then_some(what))
    .collect()
}

fn is_used(row: &RowChange) -> bool {
    matches!(row, RowChange::Invitation { invitation: Some(invitation), .. } if invitation.used_by.is_some())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::link::tests::{key, token};
    use crate::recovery::tests::rows;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn client(name: &str, number: u8) -> Client {
        Client::new(name, key(number), NOW)
    }

    fn removed(name: &str, number: u8) -> RowChange {
        RemovedKey { name: name.to_owned(), public_key: key(number), removed: NOW }.into()
    }

    fn invitation(name: &str, number: u8) -> Invitation {
        let expires = NOW + Duration::from_secs(60);
        Invitation {
            name: name.to_owned(),
            token_sha256: token(number),
            expires,
            used_by: None,
            upgrades: None,
        }
    }

    /// Compares an exit's rows with a fleet's, whose pool is 10.0.0.0/16.
    fn compared(fleet: &[RowChange], own: Vec<RowChange>) -> (Vec<RowChange>, Vec<String>) {
        let fleet: Vec<_> = fleet.iter().map(|row| (1, row.clone())).collect();
        let pools = Pools { ipv4: Some("10.0.0.0/16".parse().unwrap()), ipv6: None };
        let own = ClientRegistry::from_rows(own).unwrap();
        Fleet::new(&rows(&fleet), &own, &pools, NOW).compare(&own)
    }

    /// The fleet with which the tests compare.
    fn fleet() -> Vec<RowChange> {
        vec![
            client("named", 1).into(),
            Client { next_public_key: Some(key(92)), ..client("keyed", 2) }.into(),
            Client { ipv4: Some([10, 0, 0, 9].into()), ..client("fixed", 3) }.into(),
            Client { leased_ipv4: Some([10, 0, 0, 8].into()), ..client("leased", 4) }.into(),
            Client { prefixes: vec!["192.168.0.0/16".parse().unwrap()], ..client("site", 5) }.into(),
            Client { forwards: vec!["tcp/80-90".parse().unwrap()], ..client("server", 6) }.into(),
            removed("gone", 7),
            invitation("guest", 8).into(),
            client("again", 9).into(),
            Client { disabled: true, ..client("both", 10) }.into(),
        ]
    }

    #[test]
    fn each_collision_is_listed() {
        let own = |name: &str| client(name, 50);
        let fixed = |address: [u8; 4]| Client { ipv4: Some(address.into()), ..own("x") };
        let site = |prefix: &str| Client { prefixes: vec![prefix.parse().unwrap()], ..own("x") };
        let forward = |ports: &str| Client { forwards: vec![ports.parse().unwrap()], ..own("x") };
        let next = |number| Client { next_public_key: Some(key(number)), ..own("x") };
        let cases: [(RowChange, &str); 20] = [
            (own("named").into(), "client named: the fleet's client of this name has another key"),
            (own("guest").into(), "client guest: the fleet has an open invitation of this name"),
            (
                client("x", 2).into(),
                "client x: the fleet has its key as client keyed, but not the same name, next key;",
            ),
            (client("x", 92).into(), "is also a key of the fleet's client keyed"),
            (next(1).into(), "is also a key of the fleet's client named"),
            (next(92).into(), "is also a key of the fleet's client keyed"),
            (client("x", 7).into(), "was removed in the fleet"),
            (next(7).into(), "was removed in the fleet"),
            (fixed([10, 0, 0, 9]).into(), "10.0.0.9 belongs to the fleet's client fixed"),
            (fixed([10, 0, 0, 8]).into(), "10.0.0.8 belongs to the fleet's client leased"),
            (
                fixed([10, 1, 0, 5]).into(),
                "10.1.0.5 is not free for clients in the fleet's prefixes 10.0.0.0/16",
            ),
            (fixed([10, 1, 0, 5]).into(), "; run `warren exit client set x --ipv4 auto`"),
            (fixed([10, 0, 0, 1]).into(), "10.0.0.1 is not free for clients"),
            (
                site("192.168.7.0/24").into(),
                "192.168.7.0/24 overlaps 192.168.0.0/16 of the fleet's client site",
            ),
            (site("192.0.0.0/8").into(), "192.0.0.0/8 overlaps 192.168.0.0/16"),
            (site("10.0.3.0/24").into(), "10.0.3.0/24 overlaps the fleet's inner prefix 10.0.0.0/16"),
            (forward("tcp/85").into(), "tcp/85 overlaps tcp/80-90 of the fleet's client server"),
            (removed("x", 1), "removed client x: its key"),
            (removed("x", 92), "belongs to the fleet's client keyed"),
            (
                invitation("guest", 51).into(),
                "invitation guest: the fleet has another open invitation of this name",
            ),
        ];
        for (row, part) in &cases {
            let (_, collisions) = compared(&fleet(), vec![row.clone()]);
            assert!(matches!(collisions.as_slice(), [one] if one.contains(part)), "{row:?}: {collisions:?}");
        }
        let (_, collisions) = compared(&fleet(), vec![invitation("named", 51).into()]);
        assert!(
            matches!(collisions.as_slice(), [one] if one.contains("has a client of this name")),
            "{collisions:?}"
        );
        // The same settings are needed in both.
        let (_, collisions) = compared(&fleet(), vec![client("both", 10).into()]);
        assert!(
            matches!(collisions.as_slice(), [one] if one.contains("one of the two is disabled")),
            "{collisions:?}"
        );

        // All collisions of all clients are listed at once.
        let many = Client {
            ipv4: Some([10, 0, 0, 9].into()),
            prefixes: vec!["192.168.7.0/24".parse().unwrap()],
            forwards: vec!["tcp/80".parse().unwrap()],
            ..own("named")
        };
        let (_, collisions) = compared(&fleet(), vec![many.into(), client("guest", 52).into()]);
        assert_eq!(collisions.len(), 5, "{collisions:?}");
        // The control: next to all of these.
        let free = Client {
            ipv4: Some([10, 0, 0, 10].into()),
            prefixes: vec!["192.169.0.0/16".parse().unwrap()],
            forwards: vec!["tcp/91".parse().unwrap(), "udp/80".parse().unwrap()],
            ..own("name")
        };
        assert_eq!(compared(&fleet(), vec![free.clone().into()]), (vec![free.into()], Vec::new()));
    }

    #[test]
    fn what_the_fleet_lacks_is_brought_and_what_it_has_is_left_alone() {
        let leased = |name: &str, number, address: [u8; 4]| Client {
            leased_ipv4: Some(address.into()),
            ..client(name, number)
        };
        let used = Invitation { used_by: Some(key(60)), ..invitation("kept", 61) };
        let expired = Invitation { expires: NOW, ..invitation("late", 62) };
        let disabled = Client { disabled: true, ..client("off", 63) };
        let upgrade = Invitation { upgrades: Some(key(9)), ..invitation("again", 64) };
        let own: Vec<RowChange> = vec![
            removed("gone", 7),
            removed("old", 65),
            // The fleet has this client, with other dates and another sticky address.
            Client { last_seen: Some(NOW), ..leased("again", 9, [10, 1, 0, 9]) }.into(),
            leased("kept", 60, [10, 0, 7, 7]).into(),
            leased("late", 66, [10, 0, 0, 8]).into(),
            leased("outside", 67, [10, 1, 0, 7]).into(),
            disabled.clone().into(),
            used.clone().into(),
            expired.into(),
            invitation("open", 68).into(),
            upgrade.clone().into(),
        ];

        let (mut news, collisions) = compared(&fleet(), own.clone());

        assert_eq!(collisions, Vec::<String>::new());
        let mut expected: Vec<RowChange> = vec![
            removed("old", 65),
            leased("kept", 60, [10, 0, 7, 7]).into(),
            client("late", 66).into(),
            client("outside", 67).into(),
            disabled.into(),
            used.into(),
            invitation("open", 68).into(),
            upgrade.into(),
        ];
        news.sort_by_key(RowChange::id);
        expected.sort_by_key(RowChange::id);
        assert_eq!(news, expected);
        // Once they are stored, nothing is left to do, even if the exit itself has redeemed an invitation since.
        let stored: Vec<_> = fleet().into_iter().chain(news).collect();
        assert_eq!(compared(&stored, own.clone()), (Vec::new(), Vec::new()));
        let redeemed = Invitation { used_by: Some(key(69)), ..invitation("open", 68) };
        let later: Vec<_> =
            own.into_iter().chain([redeemed.clone().into(), client("open", 69).into()]).collect();
        let (news, collisions) = compared(&stored, later);
        assert_eq!((news, collisions), (vec![client("open", 69).into(), redeemed.into()], Vec::new()));
    }
}
