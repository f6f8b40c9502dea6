//! The exits, the store, the clients, the operators and the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use warren_fleet_link::ExitId;
use warren_session::PublicKey;
use warren_session::clients::{Client as Enrolled, Invitation, RowChange};
use warren_session::exit::StoreRequestId;
use warren_session::invite::{InviteToken, TokenDigest};
use warren_session::message::Message;
use warren_simulation::Random;

use super::checks::Checks;
use super::client::{At, Client};
use super::exit::ToClient;
use super::membership::Memberships;
use super::recovery::{Recovered, recover};
use super::site::Site;
use super::store::MapStore;
use crate::keys::{Key, Keys};
use crate::link::Transaction;
use crate::link::tests::meta;

pub(super) const EXITS: usize = 3;

const TICK: Duration = Duration::from_millis(50);

/// A request whose outcome an operator waits for.
pub(super) enum Asked {
    Invitation(InviteToken, String, u32),
    Client(PublicKey, String),
    Removal { key: Option<PublicKey>, withdrawn: Vec<TokenDigest> },
}

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) store: MapStore,
    pub(super) sites: Vec<Site>,
    pub(super) clients: Vec<Client>,
    pub(super) checks: Checks,
    pub(super) keys: Keys,
    pub(super) memberships: Memberships,
    pub(super) random: Random,
    backup: Option<MapStore>,
    /// Set from a restore until every exit uses the recovered store again.
    pub(super) is_recovering: bool,
    /// Whether operators also remove exits.
    pub(super) are_exits_removed: bool,
    asked: BTreeMap<(usize, StoreRequestId), Asked>,
    next: u64,
    steps: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let (now, keys) = (Instant::now(), Keys::new("home"));
        let mut random = Random::new(seed ^ 0x5eed);
        let mut store = MapStore::new(0, 1);
        let sites: Vec<Site> = (0..EXITS)
            .map(|number| Site::new(u8::try_from(number).unwrap(), &keys, &mut random, now))
            .collect();
        let mut memberships = Memberships::default();
        let then = sites
            .iter()
            .map(|site| (keys.name(&Key::Member(site.me.clone())), Some(memberships.join(&site.me))));
        let agreement = (keys.name(&Key::Meta), Some(serde_json::to_vec(&meta()).unwrap()));
        store.apply(&Transaction { then: then.chain([agreement]).collect(), ..Transaction::default() });
        Self {
            now,
            store,
            sites,
            clients: Vec::new(),
            checks: Checks::default(),
            keys,
            memberships,
            random,
            backup: None,
            is_recovering: false,
            are_exits_removed: seed % 2 == 1,
            asked: BTreeMap::new(),
            next: 0,
            steps: 0,
        }
    }

    pub(super) fn wait(&mut self, milliseconds: u64) {
        let until = self.now + Duration::from_millis(milliseconds);
        while self.now < until {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += TICK;
        self.steps += 1;
        self.store.end_leases(self.now);
        for site in &mut self.sites {
            site.step(&mut self.store, &mut self.random, self.now);
        }
        self.hear();
        self.judge();
        self.let_clients_act();
        self.checks.follow_store(&self.store, &self.keys);
        self.memberships.look(&self.store, &self.keys, &self.sites, self.now);
        if self.steps.is_multiple_of(4) && !self.is_recovering {
            self.checks.look_at_sessions(&self.sites, self.now);
        }
    }

    /// Delivers the exits' messages to the clients.
    fn hear(&mut self) {
        for exit in 0..EXITS {
            while let Some((connection, told)) = self.sites[exit].exit.to_clients.pop_front() {
                self.client_hears((exit, connection), told);
            }
        }
    }

    fn client_hears(&mut self, at: At, told: ToClient) {
        let now = self.now;
        let Some(client) = self.clients.iter_mut().find(|client| client.has(at)) else { return };
        let said = match told {
            ToClient::Closed => return client.lost(|lost| lost == at),
            ToClient::Said(said) => *said,
        };
        match said {
            Message::Enrolled(_) => {
                client.is_enrolled = true;
                client.waits = None;
                let (key, token) = (client.key, client.token.map(|token| token.digest()));
                self.checks.acknowledged(key, token);
                self.close(at);
            }
            Message::Welcome(_) => {
                let patience = Duration::from_millis(self.random.below(4_000));
                let before = client.at.replace(at);
                client.waits = None;
                if let Some(before) = before {
                    let older = client.previous.replace((before, now + patience));
                    older.into_iter().for_each(|(older, _)| self.close(older));
                }
            }
            _ => {}
        }
    }

    /// Closes a connection of a client.
    fn close(&mut self, (exit, connection): At) {
        let exit = &mut self.sites[exit].exit;
        exit.sessions.closed(self.now, connection);
        exit.act(self.now);
    }

    fn let_clients_act(&mut self) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if let Some((previous, _)) = client.previous.filter(|(_, until)| *until <= self.now) {
                client.previous = None;
                self.close(previous);
                continue;
            }
            // If only an unreachable exit knows that an invitation was used, it could be used again. So all enrolments wait for
            // that exit.
            let waits = client.waits.is_some() || (self.is_recovering && !client.is_enrolled);
            if !waits && client.at.is_none() && self.random.below(10) == 0 {
                self.connect(number);
            }
        }
    }

    fn connect(&mut self, number: usize) {
        let exit = usize::try_from(self.random.below(EXITS as u64)).unwrap();
        self.next += 1;
        self.clients[number].connect(self.now, (exit, self.next), &mut self.sites[exit].exit);
    }

    pub(super) fn move_a_client(&mut self, random: &mut Random) {
        let online: Vec<usize> = (0..self.clients.len())
            .filter(|number| self.clients[*number].at.is_some() && self.clients[*number].waits.is_none())
            .collect();
        if !online.is_empty() {
            self.connect(online[usize::try_from(random.below(online.len() as u64)).unwrap()]);
        }
    }

    fn new_key(&mut self) -> PublicKey {
        self.next += 1;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.next.to_be_bytes());
        PublicKey(key)
    }

    /// Lets an operator invite a client.
    pub(super) fn invite(&mut self, exit: usize, random: &mut Random) {
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        let (token, name) = (InviteToken::new(bytes), name(random));
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let invitation = Invitation {
            name: name.clone(),
            token_sha256: token.digest(),
            expires,
            used_by: None,
            upgrades: None,
        };
        if self.is_recovering {
            return;
        }
        if let Ok(Some(id)) = self.sites[exit].exit.sessions.invite(self.now, invitation) {
            let number = self.checks.replaces_invitations(&name);
            self.ask(exit, id, Asked::Invitation(token, name, number));
        }
    }

    /// Lets an operator enrol a client.
    pub(super) fn add(&mut self, exit: usize, random: &mut Random) {
        if self.is_recovering {
            return;
        }
        let key = self.new_key();
        let name = name(random);
        let client = Enrolled::new(name.clone(), key, SystemTime::UNIX_EPOCH);
        if let Ok(Some(id)) = self.sites[exit].exit.sessions.add_client(client, None) {
            self.checks.replaces_invitations(&name);
            self.ask(exit, id, Asked::Client(key, name));
        }
    }

    /// Lets an operator remove a client or an open invitation.
    pub(super) fn remove(&mut self, exit: usize, random: &mut Random) {
        let site = &mut self.sites[exit];
        let mut names: Vec<(bool, String)> =
            site.exit.sessions.registry().rows().filter_map(name_of).collect();
        // There are fewer open invitations than clients, so half of the removals choose an invitation.
        if random.once_in(2) && names.iter().any(|(is_invitation, _)| *is_invitation) {
            names.retain(|(is_invitation, _)| *is_invitation);
        }
        let chosen = usize::try_from(random.below(names.len() as u64)).unwrap();
        let Some((_, name)) = names.get(chosen).cloned() else { return };
        let withdrawn = site.exit.sessions.registry().rows().filter_map(|row| match row {
            RowChange::Invitation { token, invitation: Some(invitation) } => {
                (invitation.name == name && invitation.used_by.is_none()).then_some(token)
            }
            RowChange::Invitation { .. } | RowChange::Client { .. } | RowChange::Removed { .. } => None,
        });
        let withdrawn: Vec<_> = withdrawn.collect();
        let Ok((removed, Some(id))) = site.exit.sessions.remove_client(self.now, &name) else { return };
        let key = removed.map(|client| client.public_key);
        // From here on, the client and the invitations may be gone at any exit.
        self.checks.removal_began(&name, key, &withdrawn);
        for asked in self.asked.values() {
            if let Asked::Client(key, coming) = asked
                && *coming == name
            {
                self.checks.removal_began(&name, Some(*key), &[]);
            }
        }
        self.ask(exit, id, Asked::Removal { key, withdrawn });
    }

    fn ask(&mut self, exit: usize, id: StoreRequestId, asked: Asked) {
        self.asked.insert((exit, id), asked);
        self.sites[exit].exit.act(self.now);
    }

    /// Handles the outcomes of operators' requests.
    fn judge(&mut self) {
        for exit in 0..EXITS {
            while let Some((id, outcome)) = self.sites[exit].exit.outcomes.pop_front() {
                let Some(asked) = self.asked.remove(&(exit, id)).filter(|_| outcome.is_ok()) else {
                    continue;
                };
                self.was_stored(asked);
            }
        }
    }

    fn was_stored(&mut self, asked: Asked) {
        match asked {
            Asked::Invitation(token, name, number) => {
                self.checks.invited(token.digest(), &name, number);
                // Some tokens are given to two machines.
                for _ in 0..1 + self.random.below(3) / 2 {
                    let key = self.new_key();
                    self.clients.push(Client::new(key, Some(token)));
                }
                // Some tokens are never used.
                if self.random.once_in(4) {
                    self.clients.retain(|client| client.token != Some(token));
                }
            }
            Asked::Client(key, _) => {
                self.checks.acknowledged(key, None);
                self.clients.push(Client::new(key, None));
            }
            Asked::Removal { key, withdrawn } => self.checks.removed(key, &withdrawn, self.now),
        }
    }

    pub(super) fn cut(&mut self, exit: usize, until: Instant, random: &mut Random) {
        let site = &mut self.sites[exit];
        site.cut_until = Some(site.cut_until.map_or(until, |other| other.max(until)));
        site.breaks_at = Some(self.now + Duration::from_millis(random.below(2_500)));
        site.used_since = None;
    }

    pub(super) fn restart_link(&mut self, exit: usize) {
        self.sites[exit].restart_link(&mut self.store, &mut self.random, self.now);
    }

    pub(super) fn restart_exit(&mut self, exit: usize) {
        self.sites[exit].restart_exit(&mut self.store, &mut self.random, self.now);
        self.exit_was_lost(exit);
    }

    /// Forgets requests and connections to an exit's earlier process.
    pub(super) fn exit_was_lost(&mut self, exit: usize) {
        self.asked.retain(|(other, _), _| *other != exit);
        self.clients.iter_mut().for_each(|client| client.lost(|(at, _)| at == exit));
    }

    pub(super) fn back_up(&mut self) {
        // A backup that lacks a recovery would be of another history.
        if !self.is_recovering {
            self.backup = Some(self.store.clone());
        }
    }

    /// Stops etcd, and starts it again with an old backup. After a while, an operator recovers the store.
    pub(super) fn restore(&mut self, random: &mut Random) {
        // A link that has not read the store yet cannot notice an old backup (docs/fleet.md).
        if self.sites.iter().any(|site| site.disk.is_none()) {
            return;
        }
        let Some(backup) = self.backup.take() else { return };
        self.let_copies_age(random);
        // An exit that has joined again in the meantime needs a copy, too.
        if self.sites.iter().any(|site| site.disk.is_none()) {
            self.backup = Some(backup);
            self.sites.iter_mut().for_each(|site| site.cut_until = site.cut_until.map(|_| self.now));
            return;
        }
        // A backup that was made in the meantime would lack the recovery.
        self.backup = None;
        self.is_recovering = true;
        for site in &mut self.sites {
            site.lose_store(&mut self.store, &mut self.random, self.now);
            site.cut_until = Some(self.now + Duration::from_secs(3));
        }
        // The links write their copies to disk within a second.
        self.wait(2_000);
        self.removals_are_lost();
        let cluster = self.store.cluster + random.below(2);
        self.store.restore(&backup, cluster, self.now);
        self.checks.restored();
        if random.once_in(2) {
            self.restart_link(usize::try_from(random.below(EXITS as u64)).unwrap());
        }
        self.wait(2_000 + random.below(6_000));
        let left_out = self.recover(random);
        self.come_back(&left_out);
        self.is_recovering = false;
    }

    /// Cuts exits off one after the other, so that each exit's copy contains changes that the copies of the exits cut off before
    /// it lack.
    fn let_copies_age(&mut self, random: &mut Random) {
        let first = usize::try_from(random.below(EXITS as u64)).unwrap();
        let order = [first, (first + 1) % EXITS, (first + 2) % EXITS];
        for (cut, exit) in order.into_iter().enumerate() {
            for _ in 0..random.below(3) {
                let at = order[cut + usize::try_from(random.below((EXITS - cut) as u64)).unwrap()];
                if self.are_exits_removed && random.once_in(3) {
                    self.remove_or_join(at, random);
                } else if random.once_in(2) {
                    self.invite(at, random);
                } else {
                    self.remove(at, random);
                }
                self.wait(random.below(1_000));
            }
            if cut + 1 < EXITS && !random.once_in(4) {
                self.cut(exit, self.now + Duration::from_secs(60), random);
            }
        }
    }

    /// Returns the exits that were not put back.
    fn recover(&mut self, random: &mut Random) -> Vec<ExitId> {
        if self.sites.iter().any(Site::is_connected) {
            // An exit that uses the restored store without noticing this cannot tell which invitations were withdrawn.
            self.checks.invitations_are_lost();
        }
        let first = usize::try_from(random.below(EXITS as u64)).unwrap();
        for number in (first..EXITS).chain(0..first) {
            let site = &self.sites[number];
            let Some(copy) = &site.disk else { continue };
            let recovered = recover(&mut self.store, &self.keys, &site.me, copy);
            if let Some(Recovered { left_out, exits_left_out, is_newer }) = recovered {
                self.checks.left_out(left_out);
                let is_wrong = |exit: &&ExitId| is_newer && !self.memberships.is_removed(exit);
                let wrong = exits_left_out.iter().find(is_wrong);
                assert_eq!(wrong, None, "an exit that nobody has removed is left out");
                return exits_left_out;
            }
        }
        // No exit has noticed the backup, because nothing has changed since it was made.
        Vec::new()
    }

    /// Waits until every exit uses the store again.
    fn come_back(&mut self, left_out: &[ExitId]) {
        for round in 0..60 {
            self.wait(500);
            if round == 20 {
                self.invite_exits_left_out(left_out);
            }
            let epoch = self.store.find(&self.keys, &self.sites[0].me).meta.map(|meta| meta.epoch);
            if (0..EXITS).all(|exit| self.is_back(exit, epoch)) {
                self.wait(2_000);
                return;
            }
        }
        let links =
            self.sites.iter().map(|site| (site.link.store_link(self.now), site.epoch(), site.is_connected()));
        panic!("an exit does not use the recovered store: {:?}", links.collect::<Vec<_>>());
    }

    /// Ends the trouble, and checks the rules that must hold afterwards.
    pub(super) fn settle(&mut self) {
        for site in &mut self.sites {
            // Trouble that has not ended yet ends with the next step.
            let end = |until: Option<Instant>| until.map(|_| self.now);
            (site.cut_until, site.slow_until) = (end(site.cut_until), end(site.slow_until));
        }
        self.settle_exits();
        self.wait(45_000);
        for site in &mut self.sites {
            self.checks.left_out(std::mem::take(&mut site.left_out));
        }
        self.checks.look_at_the_end(&self.store, &self.keys, &self.sites);
        let online: BTreeSet<_> =
            self.clients.iter().filter(|client| client.at.is_some()).map(|client| client.key).collect();
        self.checks.everybody_is_online(&online);
    }
}

/// The name of an open invitation or a client, and whether it is an invitation's.
fn name_of(row: RowChange) -> Option<(bool, String)> {
    match row {
        RowChange::Client { client, .. } => Some((false, client?.name)),
        RowChange::Invitation { invitation, .. } => {
            let open = invitation.filter(|invitation| invitation.used_by.is_none());
            open.map(|invitation| (true, invitation.name))
        }
        RowChange::Removed { .. } => None,
    }
}

fn name(random: &mut Random) -> String {
    format!("client{}", random.below(14))
}
