//! A fleet whose exits and store have faults, and clients that count their packets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_client::{EnrolError, Enrolment};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::invite::Invite;

use super::etcd::Etcd;
use super::library_client::runtime;
use super::real_fleet::{NAMES, RealFleet, endpoint, store_of};
use super::steady::Steady;
use super::{Client, Exit, Namespace, Net, Profile, eventually, seconds};

/// The hosts beside the net's: three exits, three members of etcd, and clients.
pub const EXITS: usize = 3;
pub const MEMBERS: usize = 3;

/// A fleet with a client (a keeper) at each exit that must not be affected by any fault.
pub struct Faulty<'net> {
    pub keepers: Vec<Guest<'net>>,
    /// Hosts for other clients.
    pub others: &'net [Namespace],
    pub fleet: RealFleet<'net>,
    pub etcd: Etcd<'net>,
    pub net: &'net Net,
}

/// For each keeper, the position in its flow and the number of reconnects at some time.
pub type Marks = Vec<(usize, u64)>;

impl<'net> Faulty<'net> {
    /// Starts etcd and a fleet without faults, with a client at each exit. Returns `None` without etcd.
    pub fn start(net: &'net Net, hosts: &'net [Namespace]) -> Option<Self> {
        let etcd = etcd(hosts)?;
        let fleet = RealFleet::at(&hosts[..EXITS], &etcd);
        Some(Self::run(net, hosts, etcd, fleet))
    }

    /// Like [`Self::start`], but the fleet also has the clients of a `clients.toml`.
    pub fn start_with(net: &'net Net, hosts: &'net [Namespace], ipv4: &str, clients: &str) -> Option<Self> {
        let etcd = etcd(hosts)?;
        let fleet = RealFleet::at_with(&hosts[..EXITS], &etcd, ipv4, clients);
        Some(Self::run(net, hosts, etcd, fleet))
    }

    fn run(net: &'net Net, hosts: &'net [Namespace], etcd: Etcd<'net>, mut fleet: RealFleet<'net>) -> Self {
        fleet.run(&|_| Default::default());
        Self::new(net, hosts, etcd, fleet)
    }

    /// Adds a client to each exit of a fleet that runs. `hosts` is `Net::clients_beside`.
    pub fn new(net: &'net Net, hosts: &'net [Namespace], etcd: Etcd<'net>, fleet: RealFleet<'net>) -> Self {
        let guests = &hosts[EXITS + MEMBERS..];
        let (own, others) = guests.split_at(EXITS);
        let keeper = |(exit, host)| Guest::arrive(exit, host, &format!("keeper-{}", host_name(host)));
        let keepers = fleet.exits.iter().zip(own).map(keeper).collect();
        Self { keepers, others, fleet, etcd, net }
    }

    pub fn exit(&self, number: usize) -> &Exit<'net> {
        &self.fleet.exits[number]
    }

    pub fn way(&self, number: usize) -> (SocketAddr, PublicKey) {
        (endpoint(number), self.exit(number).status().text("/public_key").parse().unwrap())
    }

    pub fn marks(&self) -> Marks {
        let mark = |guest: &Guest<'_>| (guest.steady.mark(), guest.client.status().number("/reconnects"));
        self.keepers.iter().map(mark).collect()
    }

    /// Fails if a keeper at one of these exits has lost a packet or its session.
    #[track_caller]
    pub fn assert_kept(&self, fault: &str, marks: &Marks, exits: &[usize]) {
        for exit in exits {
            let (guest, (mark, reconnects)) = (&self.keepers[*exit], marks[*exit]);
            let (lost, sent) = guest.steady.lost_since(mark);
            println!("measured: {fault}: {lost} of {sent} packets lost at {}", NAMES[*exit]);
            assert_eq!(lost, 0, "{fault}: of {sent} packets at {}", NAMES[*exit]);
            assert_eq!(guest.client.status().number("/reconnects"), reconnects, "{fault}");
        }
    }

    pub fn enrolled(&self) -> Vec<u64> {
        self.fleet.exits.iter().map(|exit| exit.status().number("/clients/enrolled")).collect()
    }

    #[track_caller]
    pub fn wait_until_all_say(&self, store: &str, within: Duration) -> Duration {
        eventually(within, &format!("all exits say that the store is {store}"), || {
            self.fleet.exits.iter().all(|exit| store_of(exit) == store)
        })
    }

    /// Makes an invitation at the first exit, and waits until all exits know it.
    #[track_caller]
    pub fn invite(&self, name: &str) -> Invite {
        let line = self.exit(0).warren.run(&format!("exit invite {name}")).ok();
        eventually(seconds(10), "all exits know the invitation", || {
            self.fleet.exits.iter().all(|exit| exit.warren.run("exit client list").ok().contains(name))
        });
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    /// Redeems an invitation at an exit with a new key.
    pub fn redeem(&self, invite: &Invite, at: usize) -> Result<String, EnrolError> {
        self.race(vec![invite.clone()], vec![self.way(at)]).remove(0).remove(0)
    }

    /// Redeems each invitation at each exit at the same time, each time with a key of its own.
    pub fn race(
        &self,
        invites: Vec<Invite>,
        ways: Vec<(SocketAddr, PublicKey)>,
    ) -> Vec<Vec<Result<String, EnrolError>>> {
        self.net.client.enter(move || race(&invites, &ways)).join().unwrap()
    }

    /// Removes a client at the first exit. Returns the time just before.
    pub fn remove(&self, name: &str) -> Instant {
        let since = Instant::now();
        self.exit(0).warren.run(&format!("exit client remove {name}")).ok();
        since
    }

    /// Cuts the third exit off from all members of the store.
    pub fn cut_off(&self) {
        let exit = endpoint(2).ip();
        self.net
            .router
            .sh(&format!(
                "nft 'table inet cut {{ chain forward {{ type filter hook forward priority 0; ip saddr {exit} tcp dport 2379 drop; \
                 ip daddr {exit} tcp sport 2379 drop; }}; }}'"
            ))
            .ok();
    }

    /// Ends [`Self::cut_off`]. Returns the time of that.
    pub fn heal(&self) -> Instant {
        self.net.router.sh("nft delete table inet cut").ok();
        Instant::now()
    }

    /// Restarts an exit's link.
    pub fn restart_link(&mut self, exit: usize) {
        let link = &mut self.fleet.links[exit];
        link.signal(Signal::TERM);
        link.wait(seconds(10));
        *link = self.fleet.exits[exit].warren.start("fleet run");
    }

    /// Returns all values of a metric at an exit.
    pub fn metric(&self, exit: usize, name: &str) -> Vec<f64> {
        let page = self.exit(exit).warren.host.sh("curl --silent --fail 127.0.0.1:9466/metrics").ok();
        let lines = page.lines().filter(|line| line.split([' ', '{']).next() == Some(name));
        lines.map(|line| line.split_whitespace().last().unwrap().parse().unwrap()).collect()
    }

    /// A client's profile for one exit, changed for another exit.
    pub fn profile_at(&self, profile: &Profile, from: usize, to: usize) -> Profile {
        let ((address, key), (other, other_key)) = (self.way(from), self.way(to));
        let text = profile.text().replace(&key.to_string(), &other_key.to_string());
        Profile::parse(&text.replace(&address.to_string(), &other.to_string()))
    }

    /// How many of an exit's requests to the store have failed because of a conflict.
    pub fn conflicts(&self, exit: usize) -> f64 {
        self.exit(exit).status().0["fleet"]["requests"]["conflict"].as_f64().unwrap()
    }

    /// Fails if a removed client gets a session at any exit.
    #[track_caller]
    pub fn assert_out(&self, guest: &Guest<'_>) {
        for exit in 0..EXITS {
            // A client that was refused at once is down already.
            drop(guest.client.warren.run("down home"));
            guest.client.warren.write("home.toml", 0o600, &self.profile_at(&guest.profile, 1, exit).text());
            let tried = guest.client.warren.run("up home");
            assert_eq!(tried.code, Some(4), "it is refused: {tried:?}");
        }
        assert!(guest.steady.is_silent_for(seconds(1)), "{} has no traffic", guest.name);
    }
}

/// A client whose packets are counted.
pub struct Guest<'net> {
    pub steady: Steady,
    pub client: Client<'net>,
    pub profile: Profile,
    pub name: String,
}

impl<'net> Guest<'net> {
    /// Enrols a client at an exit, and connects it there.
    #[track_caller]
    pub fn arrive(exit: &Exit<'_>, host: &'net Namespace, name: &str) -> Self {
        let profile = exit.enrol(name).with("fleet", "follow", false);
        Self::with(host, name, profile)
    }

    #[track_caller]
    pub fn with(host: &'net Namespace, name: &str, profile: Profile) -> Self {
        let client = Client::on(host, &profile);
        client.up();
        Self { steady: Steady::start(host), client, profile, name: name.to_owned() }
    }

    /// Waits until packets stop. Returns how long after `since` the last one was answered.
    #[track_caller]
    pub fn stops(&self, since: Instant, within: Duration) -> Duration {
        // On a busy machine, there may be no answers for almost a second.
        let quiet = Duration::from_millis(1_500);
        eventually(within + seconds(4), &format!("packets of {} stop", self.name), || {
            self.steady.is_silent_for(quiet)
        });
        let took = self.steady.last_answer().unwrap().saturating_duration_since(since);
        assert!(took <= within, "{}: {took:?}", self.name);
        took
    }

    #[track_caller]
    pub fn assert_served(&self) {
        let asked = Instant::now();
        eventually(seconds(2), &format!("{} is served", self.name), || {
            self.steady.last_answer().is_some_and(|answer| answer > asked)
        });
    }

    /// Frees the host for another client.
    pub fn leave(self) {
        drop(self.steady);
        // The tunnel may be down already, so an error is ignored.
        drop(self.client.warren.run("down home"));
    }
}

fn host_name(host: &Namespace) -> &str {
    host.name().rsplit('-').next().unwrap()
}

/// Starts three members of etcd on their hosts.
pub fn etcd(hosts: &[Namespace]) -> Option<Etcd<'_>> {
    let addresses = (EXITS..EXITS + MEMBERS).map(|number| endpoint(number).ip().to_string()).collect();
    Etcd::start(&hosts[EXITS..EXITS + MEMBERS], addresses)
}

fn race(invites: &[Invite], ways: &[(SocketAddr, PublicKey)]) -> Vec<Vec<Result<String, EnrolError>>> {
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime(), async {
        let redeem = |(invite, (address, exit_key)): (&Invite, &(SocketAddr, PublicKey))| {
            let (token, address, exit_key) = (invite.token.to_wire(), address.to_string(), *exit_key);
            tokio::task::spawn_local(async move {
                let (endpoint, identity) = (address.parse().unwrap(), PrivateKey::generate().unwrap());
                let enrolment =
                    Enrolment { endpoint: &endpoint, exit_key, identity: &identity, token, name: "guest" };
                enrolment.run(seconds(10)).await
            })
        };
        let running: Vec<Vec<_>> =
            invites.iter().map(|invite| ways.iter().map(|way| redeem((invite, way))).collect()).collect();
        let mut outcomes = Vec::new();
        for of_token in running {
            let mut ended = Vec::new();
            for outcome in of_token {
                ended.push(outcome.await.unwrap());
            }
            outcomes.push(ended);
        }
        outcomes
    })
}
