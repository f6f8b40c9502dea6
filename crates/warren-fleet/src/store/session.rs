//! One connection to a member of etcd, from the first question until it fails.
//!
//! The watch, the lease and all transactions of a link use this connection. If the member does not answer in time, the connection
//! ends. The link continues with another member, from the last event of the watch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use warren_config::sentence;
use warren_fleet_link::ExitId;

use super::replay::{Returning, replay};
use super::{
    ANSWER_TIMEOUT, MOST_BYTES, StoreOptions, as_txn, ended, find, in_words, is_denied, is_refused,
    read_pages,
};
use crate::exits::{Member, Removed};
use crate::keys::{Key, Keys};
use crate::link::{Pair, Transaction};
use crate::membership::confirm_removal;
use crate::meta::{Found, Meta, Mismatch, Position, check, check_as_joined};
use crate::recovery::BesideRows;
use crate::rows::Rows;
use crate::sessions::SessionBatch;

/// How long a lease outlives its exit, in seconds.
const LEASE_SECONDS: i64 = 10;

/// How long the watch may take to show the changes of a transaction.
const WATCH_TIMEOUT: Duration = Duration::from_millis(2500);

/// How often a member is asked whether it still answers, unless it has just answered something else.
const PROBE: Duration = Duration::from_millis(1000);

/// The state with which a connection begins.
pub(crate) struct Setup {
    pub(crate) options: StoreOptions,
    pub(crate) endpoint: String,
    pub(crate) keys: Keys,
    pub(crate) me: ExitId,
    /// The link's position in the store's history.
    pub(crate) position: Option<Position>,
    /// The number with which this host has joined, for a link that has no position yet.
    pub(crate) joined_as: Option<u64>,
    /// The revision of the link's copy, if the watch can continue from there.
    pub(crate) revision: Option<i64>,
    /// The rows of that copy. If the store was recovered, the link replays the rows that the store lacks.
    pub(crate) rows: Arc<Rows>,
    /// The copy's other content, which is replayed in the same way.
    pub(crate) beside_rows: BesideRows,
    /// Whether the exit was removed, has stopped serving, and cannot forget its removal in a restart.
    pub(crate) has_stopped: bool,
    /// The lease that the exit has, or 0.
    pub(crate) lease: Arc<AtomicI64>,
    /// When the store last answered, on any connection.
    pub(crate) answered: Arc<LastAnswer>,
}

impl Setup {
    /// Compares the store with what the link knows of it.
    fn check(&self, found: &Found) -> Result<(Meta, bool), Mismatch> {
        let name = self.keys.name_of_fleet();
        match &self.position {
            Some(position) => check(name, Some(position), found),
            None => check_as_joined(name, self.joined_as, found),
        }
    }

    /// The number of this exit's membership, if the link knows it.
    fn membership(&self) -> Option<u64> {
        self.position.as_ref().map_or(self.joined_as, |position| position.membership)
    }
}

/// The time of the store's latest answer.
#[derive(Debug)]
pub(crate) struct LastAnswer {
    start: Instant,
    /// Milliseconds after `start`, plus 1. 0 if the store has not answered.
    after: AtomicU64,
}

impl LastAnswer {
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, after: AtomicU64::new(0) }
    }

    /// Records an answer that came just now.
    fn now(&self) {
        let after = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.after.store(after.saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        let after = self.after.load(Ordering::Relaxed).checked_sub(1)?;
        self.start.checked_add(Duration::from_millis(after))
    }
}

/// A message from a connection, for the link.
pub(crate) enum FromStore {
    /// The store belongs to the link's fleet and may be used.
    Up { meta: Meta, cluster: u64, revision: i64 },
    /// All values in the store that the link watches.
    Whole { revision: i64, pairs: Vec<Pair> },
    /// All events of one revision.
    Events { revision: i64, pairs: Vec<Pair> },
    /// The exit has a new lease.
    NewLease,
    /// The outcome of writing sessions' records.
    Sessions { batch: SessionBatch, outcome: Recorded },
    /// etcd has compacted the changes with which the watch should begin, so everything must be read again.
    Compacted,
    /// The store must not be used.
    Refused {
        reason: String,
        must_stop: bool,
        /// The removal for which the exit must stop, unless an event has already told the link of it.
        removed: Option<Removed>,
    },
    /// The connection has failed.
    Down { reason: String },
}

/// The outcome of writing sessions' records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Stored,
    /// A record differs from the link's knowledge.
    Conflict,
    /// The lease has ended. The next batch gets a new lease.
    LeaseEnded,
}

/// A message from the link, for a connection.
pub(crate) enum ToStore {
    Transaction(Transaction),
    Sessions(SessionBatch),
    /// A heartbeat, and the key to attach to the lease.
    Heartbeat(Transaction, String),
    /// Revoke this lease, because the exit has gone and its records must be deleted. 0 if there is no lease.
    EndLease(i64),
}

/// The result of a request to the store.
enum Done {
    Transaction {
        revision: i64,
    },
    Sessions {
        batch: SessionBatch,
        lease: i64,
        outcome: Recorded,
    },
    Heartbeat {
        revision: i64,
        held: bool,
    },
    /// A heartbeat could not be written, because this lease has ended.
    LeaseEnded {
        lease: i64,
    },
    Probe,
}

enum Ended {
    Refused(Mismatch, Option<Removed>),
    Compacted,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Ended {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

type Report = mpsc::Sender<FromStore>;

/// Runs until the connection fails, or the link no longer wants it.
pub(crate) async fn run(setup: Setup, report: Report, commands: mpsc::Receiver<ToStore>) {
    let (endpoint, options, began) = (setup.endpoint.clone(), setup.options.clone(), Instant::now());
    let ended = match serve(setup, &report, commands).await {
        Ok(()) => return,
        Err(Ended::Refused(mismatch, removed)) => FromStore::Refused {
            reason: mismatch.to_string(),
            must_stop: mismatch.must_stop(),
            removed: removed.filter(|_| mismatch.must_stop()),
        },
        Err(Ended::Compacted) => FromStore::Compacted,
        Err(Ended::Failed(error)) => {
            // A member that refuses a certificate does so at once. If the member is silent, another one is tried without a delay.
            let error = match began.elapsed() < ANSWER_TIMEOUT {
                true => options.explained(&endpoint, error).await,
                false => error,
            };
            FromStore::Down { reason: format!("{endpoint}: {}", sentence(error.as_ref())) }
        }
    };
    // If the link has ended, it needs no report.
    let _ = report.send(ended).await;
}

async fn serve(setup: Setup, report: &Report, commands: mpsc::Receiver<ToStore>) -> Result<(), Ended> {
    let mut client = setup.options.connect(&setup.endpoint).await.map_err(explained)?;
    let found = timeout(ANSWER_TIMEOUT, find(&mut client, &setup.keys, &setup.me)).await;
    let found = match found.context("it does not answer")? {
        Err(error) if is_denied(&error) => {
            return Err(match own_removal(&mut client, &setup).await? {
                Some(removed) => Ended::Refused(Mismatch::Removed { must_stop: true }, Some(removed)),
                None => explained(error).into(),
            });
        }
        found => found?,
    };
    let checked = setup.check(&found);
    if setup.has_stopped && checked == Err(Mismatch::Removed { must_stop: true }) {
        confirm_removal(&mut client, &setup.keys, &setup.me, setup.membership()).await?;
    }
    let (meta, is_recovered) = checked.map_err(|mismatch| Ended::Refused(mismatch, found.removed))?;
    if is_recovered {
        let Setup { keys, me, rows, beside_rows: beside, .. } = &setup;
        if let Some(position) = &setup.position {
            let copy = Returning { me, position, rows, beside };
            let replayed = replay(&mut client, keys, copy, (&meta, &found)).await?;
            replayed.map_err(|mismatch| Ended::Refused(mismatch, None))?.log();
        }
    }
    let membership = setup.membership();
    // The connection drops its reference. Otherwise the link would copy all rows at its next change.
    drop(setup.rows);
    setup.answered.now();
    tell(report, FromStore::Up { meta, cluster: found.cluster, revision: found.revision }).await?;
    let revision = match setup.revision.filter(|_| !is_recovered) {
        Some(revision) => revision,
        None => {
            let (revision, pairs) = read_pages(&client, &setup.keys, || setup.answered.now()).await?;
            tell(report, FromStore::Whole { revision, pairs }).await?;
            revision
        }
    };
    let watch = watch_after(&client, &setup.keys, revision).await?;
    let probe = setup.keys.name(&Key::Meta);
    let member = setup.keys.name(&Key::Member(setup.me.clone()));
    let removed = setup.keys.name(&Key::RemovedExit(setup.me.clone()));
    let connection = Connection {
        client,
        report: report.clone(),
        probe,
        member,
        removed,
        membership,
        lease: setup.lease,
        keeper: None,
        running: JoinSet::new(),
        since: HashMap::new(),
        answered: Instant::now(),
        last_answer: setup.answered,
        written: None,
        seen: 0,
    };
    connection.run(watch, commands).await
}

/// If the store refuses the exit's user, adds what that may mean.
fn explained(error: anyhow::Error) -> anyhow::Error {
    match is_refused(&error) {
        true => error.context(
            "the store refuses this exit's user; if this exit was removed from the fleet, run `warren fleet leave` here",
        ),
        false => error,
    }
}

/// The removal of this exit from its present membership, if its user may read nothing else any more (`users::confine`). Confirms the
/// removal once the exit has stopped.
async fn own_removal(client: &mut Client, setup: &Setup) -> anyhow::Result<Option<Removed>> {
    let read = timeout(ANSWER_TIMEOUT, ended(client, &setup.keys, &setup.me)).await;
    let removed = match read.context("it does not answer")? {
        // The user was removed.
        Err(error) if is_denied(&error) => return Ok(None),
        read => read?,
    };
    let own = setup.membership();
    let removed = removed.filter(|removed| removed.stops(own));
    if removed.is_some() && setup.has_stopped {
        confirm_removal(client, &setup.keys, &setup.me, own).await?;
    }
    Ok(removed)
}

async fn tell(report: &Report, message: FromStore) -> anyhow::Result<()> {
    report.send(message).await.ok().context("the link has ended")
}

/// Begins a watch after a revision. If that revision was compacted, the watch ends at once and says so.
async fn watch_after(client: &Client, keys: &Keys, revision: i64) -> anyhow::Result<WatchStream> {
    let options = WatchOptions::new().with_prefix().with_start_revision(revision.saturating_add(1));
    let mut watcher = client.watch_client().max_decoding_message_size(MOST_BYTES);
    let watch = timeout(ANSWER_TIMEOUT, watcher.watch(keys.prefix(), Some(options))).await;
    in_words(watch.context("it does not answer")?)
}

struct Connection {
    client: Client,
    report: Report,
    /// The key that is read to see whether the member answers.
    probe: String,
    /// The keys that say that this exit is in the fleet, and that it was removed.
    member: String,
    removed: String,
    /// The number of this exit's membership, if the link knew it when it connected.
    membership: Option<u64>,
    lease: Arc<AtomicI64>,
    keeper: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
    running: JoinSet<anyhow::Result<Done>>,
    /// When each request under way began.
    since: HashMap<Id, Instant>,
    /// When the member last answered on this connection.
    answered: Instant,
    last_answer: Arc<LastAnswer>,
    /// A revision that this link has written, and when the store answered that write.
    written: Option<(i64, Instant)>,
    /// The revision up to which the watch has come.
    seen: i64,
}

impl Connection {
    async fn run(
        mut self,
        mut watch: WatchStream,
        mut commands: mpsc::Receiver<ToStore>,
    ) -> Result<(), Ended> {
        let mut ticks = interval(Duration::from_millis(100));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                response = watch.message() => {
                    let response = in_words(response).context("its watch has failed")?;
                    self.watched(&response.context("its watch has ended")?).await?;
                }
                command = commands.recv() => match command {
                    Some(command) => self.carry_out(command).await?,
                    None => return Ok(()),
                },
                Some(done) = self.running.join_next_with_id() => self.ended(done).await?,
                kept = kept_alive(&mut self.keeper) => self.kept(kept?).await?,
                _ = ticks.tick() => self.look_after()?,
            }
        }
    }

    async fn watched(&mut self, response: &WatchResponse) -> Result<(), Ended> {
        if response.compact_revision() > 0 {
            return Err(Ended::Compacted);
        }
        if response.canceled() {
            return Err(anyhow!("its watch has ended: {}", response.cancel_reason()).into());
        }
        // One response may have events of several revisions, but always all events of one revision, because the watch does not ask
        // etcd for fragments.
        let mut pairs: Vec<Pair> = Vec::new();
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            if pairs.last().is_some_and(|last| last.modified != kv.mod_revision()) {
                self.seen_revision(std::mem::take(&mut pairs)).await?;
            }
            let is_put = event.event_type() == etcd_client::EventType::Put;
            let value = is_put.then(|| kv.value().to_vec());
            pairs.push(Pair { key: kv.key().to_vec(), value, modified: kv.mod_revision() });
        }
        self.seen_revision(pairs).await
    }

    /// Handles all events of one revision.
    async fn seen_revision(&mut self, pairs: Vec<Pair>) -> Result<(), Ended> {
        let Some(revision) = pairs.last().map(|last| last.modified) else { return Ok(()) };
        self.seen = revision;
        self.last_answer.now();
        // If another host has this exit's name, this link must not take over that host's membership. The next connection decides
        // whose membership is the later one.
        let own = pairs.iter().filter(|pair| pair.key == self.member.as_bytes());
        let mut numbers = own.filter_map(|pair| pair.parse::<Member>("exit")?.membership);
        if numbers.any(|number| self.membership.is_some_and(|own| own != number)) {
            return Err(anyhow!("this exit's place in the fleet has changed").into());
        }
        // The exit is told of its removal at once, because its etcd user will soon be removed.
        let own = pairs.iter().filter(|pair| pair.key == self.removed.as_bytes());
        let mut own = own.filter_map(Pair::removed);
        let is_removed = own.any(|removed: Removed| removed.stops(self.membership));
        tell(&self.report, FromStore::Events { revision, pairs }).await?;
        match is_removed {
            true => Err(Ended::Refused(Mismatch::Removed { must_stop: true }, None)),
            false => Ok(()),
        }
    }

    async fn carry_out(&mut self, command: ToStore) -> anyhow::Result<()> {
        let mut client = self.client.clone();
        match command {
            ToStore::Transaction(transaction) => self.start(async move {
                let (revision, _) = send(&mut client, as_txn(&transaction, None)).await?;
                Ok(Done::Transaction { revision })
            }),
            ToStore::Sessions(batch) => {
                let lease = self.own_lease().await?;
                let (expected, then) = (batch.expected.clone(), batch.operations.clone());
                let transaction = Transaction { expected, then, ..Transaction::default() };
                self.start(async move {
                    // Only the records are attached to the lease. The link's position must outlast it.
                    let is_record = |key: &str| transaction.expected.contains_key(key);
                    let txn = as_txn(&transaction, Some((lease, &is_record)));
                    let outcome = match send(&mut client, txn).await {
                        Ok((_, true)) => Recorded::Stored,
                        Ok((_, false)) => Recorded::Conflict,
                        Err(error) if has_lease_ended(&error) => Recorded::LeaseEnded,
                        Err(error) => return Err(error),
                    };
                    Ok(Done::Sessions { batch, lease, outcome })
                });
            }
            ToStore::Heartbeat(transaction, leased) => {
                let lease = self.own_lease().await?;
                if let Some((keeper, _)) = &mut self.keeper {
                    // Only heartbeats renew the lease. Without an exit, a link sends no heartbeats, so the records of an exit that
                    // is gone expire.
                    in_words(keeper.keep_alive().await).context("its lease cannot be kept")?;
                }
                self.start(async move {
                    let txn = as_txn(&transaction, Some((lease, &|key| key == leased)));
                    match send(&mut client, txn).await {
                        Ok((revision, held)) => Ok(Done::Heartbeat { revision, held }),
                        Err(error) if has_lease_ended(&error) => Ok(Done::LeaseEnded { lease }),
                        Err(error) => Err(error),
                    }
                });
            }
            ToStore::EndLease(lease) => {
                self.keeper = None;
                if lease != 0 {
                    // If this fails, the lease ends by itself.
                    let _ = timeout(ANSWER_TIMEOUT, client.lease_revoke(lease)).await;
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, work: impl Future<Output = anyhow::Result<Done>> + Send + 'static) {
        let id = self.running.spawn(work).id();
        self.since.insert(id, Instant::now());
    }

    async fn own_lease(&mut self) -> anyhow::Result<i64> {
        let lease = match self.lease.load(Ordering::Relaxed) {
            0 => self.grant().await?,
            lease => lease,
        };
        if self.keeper.is_some() {
            return Ok(lease);
        }
        let kept = timeout(ANSWER_TIMEOUT, self.client.lease_keep_alive(lease)).await;
        match in_words(kept.context("it does not answer")?) {
            Ok(keeper) => self.keeper = Some(keeper),
            Err(error) => {
                // The lease may have ended while no member answered.
                self.lease.store(0, Ordering::Relaxed);
                return Err(error.context("its lease cannot be kept"));
            }
        }
        Ok(lease)
    }

    async fn grant(&mut self) -> anyhow::Result<i64> {
        let granted = timeout(ANSWER_TIMEOUT, self.client.lease_grant(LEASE_SECONDS, None)).await;
        let granted = in_words(granted.context("it grants no lease")?)?;
        self.lease.store(granted.id(), Ordering::Relaxed);
        self.keeper = None;
        tell(&self.report, FromStore::NewLease).await?;
        Ok(granted.id())
    }

    /// Handles the remaining seconds of the lease, as the member has reported them.
    async fn kept(&mut self, seconds: i64) -> anyhow::Result<()> {
        self.has_answered();
        if seconds == 0 {
            self.lease.store(0, Ordering::Relaxed);
            self.grant().await?;
        }
        Ok(())
    }

    async fn ended(&mut self, ended: Result<(Id, anyhow::Result<Done>), JoinError>) -> Result<(), Ended> {
        let (id, done) = ended.context("a request to it was given up")?;
        self.since.remove(&id);
        let done = done.map_err(Ended::Failed)?;
        self.has_answered();
        match done {
            Done::Transaction { revision } | Done::Heartbeat { revision, held: true } => {
                self.has_written(revision)
            }
            // A heartbeat requires only that the exit is a member. The next connection finds out why it is not one.
            Done::Heartbeat { held: false, .. } => {
                return Err(anyhow!("this exit is not in the fleet").into());
            }
            Done::Sessions { batch, lease, outcome } => {
                if outcome == Recorded::LeaseEnded {
                    self.forget_lease(lease);
                }
                // The report is sent in any case, because the link writes no other batch before it gets the outcome of this
                // batch.
                tell(&self.report, FromStore::Sessions { batch, outcome }).await?;
            }
            Done::LeaseEnded { lease } => self.forget_lease(lease),
            Done::Probe => {}
        }
        Ok(())
    }

    fn has_answered(&mut self) {
        self.answered = Instant::now();
        self.last_answer.now();
    }

    /// Forgets a lease that has ended, unless there is a newer one.
    fn forget_lease(&mut self, lease: i64) {
        if self.lease.compare_exchange(lease, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.keeper = None;
        }
    }

    fn has_written(&mut self, revision: i64) {
        // Later writes must not extend the deadline of a write that the watch has not shown yet.
        if self.written.is_none_or(|(written, _)| written <= self.seen) {
            self.written = Some((revision, Instant::now()));
        }
    }

    /// Ends the connection if the member does not answer, or its watch has stalled.
    fn look_after(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.since.values().any(|since| now.duration_since(*since) > ANSWER_TIMEOUT) {
            bail!("it has not answered for {} ms", ANSWER_TIMEOUT.as_millis());
        }
        let stands_still =
            |(written, at): (i64, Instant)| written > self.seen && now.duration_since(at) > WATCH_TIMEOUT;
        if self.written.is_some_and(stands_still) {
            bail!("its watch has stalled");
        }
        if self.since.is_empty() && now.duration_since(self.answered) > PROBE {
            let (mut client, key) = (self.client.clone(), self.probe.clone());
            self.start(async move {
                in_words(client.get(key, None).await)?;
                Ok(Done::Probe)
            });
        }
        Ok(())
    }
}

fn has_lease_ended(error: &anyhow::Error) -> bool {
    // etcd has no separate code for an ended lease. Its code NotFound also means other things, such as an unknown member.
    format!("{error:#}").contains("requested lease not found")
}

async fn send(client: &mut Client, txn: etcd_client::Txn) -> anyhow::Result<(i64, bool)> {
    let answer = in_words(client.txn(txn).await)?;
    let header = answer.header().context("etcd's answer has no header")?;
    Ok((header.revision(), answer.succeeded()))
}

/// Waits until the store confirms the lease. Returns its remaining time in seconds, or 0 if it has ended.
async fn kept_alive(keeper: &mut Option<(LeaseKeeper, LeaseKeepAliveStream)>) -> anyhow::Result<i64> {
    let Some((_, stream)) = keeper else { return std::future::pending().await };
    let kept = in_words(stream.message().await).context("its lease cannot be kept")?;
    Ok(kept.context("its lease is no longer renewed")?.ttl())
}
