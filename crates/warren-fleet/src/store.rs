//! The client of etcd: connections, full readings, transactions.

mod faults;
pub(crate) mod recovering;
pub(crate) mod reopen;
pub(crate) mod replay;
pub(crate) mod restored;
pub(crate) mod session;

use std::collections::{BTreeMap, VecDeque};
use std::iter::successors;
use std::time::Duration;

use anyhow::Context as _;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, GetResponse,
    Identity, PutOptions, TlsOptions, Txn, TxnOp, TxnOpResponse,
};
use tokio::time::timeout;
use warren_fleet_link::ExitId;
use warren_session::clients::RowChange;

use crate::exits::{Member, Removed};
use crate::keys::{Key, Keys};
use crate::link::{Pair, Transaction};
use crate::meta::{Found, Meta};
use crate::recovery::ExitsInStore;
use crate::rows::{Rows, Unseen};
use crate::transaction::{Draft, Expected, Known, draft};

/// How long a member of etcd may take to answer. After that, another member is tried.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_millis(1200);

/// Maximum number of keys in one answer of a full reading.
const PAGE: i64 = 2000;

/// Largest message from etcd: a page of the largest rows, or the events of many transactions.
const MOST_BYTES: usize = 256 << 20;

/// Maximum size of a fleet's keys and values in bytes. A full registry takes a quarter of it.
const MOST_READ: usize = 1 << 30;

/// How to reach etcd.
#[derive(Clone)]
pub(crate) struct StoreOptions {
    pub(crate) endpoints: Vec<String>,
    pub(crate) ca: Option<String>,
    /// Certificate and private key, in PEM.
    pub(crate) identity: Option<(String, String)>,
    pub(crate) user: Option<(String, String)>,
    /// The names of `ca` and of the certificate of `identity` in messages, which are usually their file names.
    pub(crate) ca_name: String,
    pub(crate) certificate_name: String,
}

impl StoreOptions {
    /// Connects to one member.
    ///
    /// # Errors
    /// If the member cannot be reached, does not prove its identity, or refuses this client.
    pub(crate) async fn connect(&self, endpoint: &str) -> anyhow::Result<Client> {
        let mut options =
            // Without this option, the watch of a member that has lost the other members would stay open and silent.
            ConnectOptions::new().with_require_leader(true).with_connect_timeout(ANSWER_TIMEOUT);
        if endpoint.starts_with("https://") {
            let mut tls = TlsOptions::new();
            if let Some(ca) = &self.ca {
                tls = tls.ca_certificate(Certificate::from_pem(ca));
            }
            if let Some((certificate, key)) = &self.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(tls);
        }
        if let Some((user, password)) = &self.user {
            // By default, etcd's simple tokens expire after five minutes without use (`--auth-token-ttl`).
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let connected = timeout(ANSWER_TIMEOUT, Client::connect([endpoint], Some(options))).await;
        in_words(connected.context("it does not answer")?)
    }

    /// Connects to any member that answers, for a command.
    ///
    /// # Errors
    /// If no member answers.
    pub(crate) async fn connect_any(&self) -> anyhow::Result<Client> {
        let mut last = anyhow::anyhow!("it has no endpoints");
        for endpoint in &self.endpoints {
            match self.try_connect(endpoint).await {
                Ok(client) => return Ok(client),
                Err(error) => {
                    let error = self.explained(endpoint, error).await;
                    last = error.context(format!("{endpoint} cannot be used"));
                }
            }
        }
        Err(last.context("the store cannot be reached"))
    }

    /// Whether etcd's user authentication is off. `false` if no member says so.
    pub(crate) async fn is_open_to_all(&self) -> bool {
        // While authentication is off, etcd refuses to log in any user, for the reason below. No other request shows this in every release
        // of etcd.
        let nobody = Self { user: Some(("nobody".to_owned(), "nothing".to_owned())), ..self.clone() };
        for endpoint in &self.endpoints {
            if let Ok(Err(error)) = timeout(ANSWER_TIMEOUT, nobody.connect(endpoint)).await
                && format!("{error:#}").contains("authentication is not enabled")
            {
                return true;
            }
        }
        false
    }

    async fn try_connect(&self, endpoint: &str) -> anyhow::Result<Client> {
        let mut client = self.connect(endpoint).await?;
        // The library connects only with the first request.
        let asked =
            timeout(ANSWER_TIMEOUT, client.get("/warren/", None)).await.context("it does not answer")?;
        match asked {
            // This user may read only its own fleet's keys. The answer shows that the member works.
            Err(etcd_client::Error::GRpcStatus(status)) if status.message().contains("permission denied") => {
            }
            asked => drop(in_words(asked)?),
        }
        Ok(client)
    }
}

/// Returns etcd's answer, or its error as a sentence.
pub(crate) fn in_words<T>(answer: Result<T, etcd_client::Error>) -> anyhow::Result<T> {
    answer.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))
}

/// Returns the part of etcd's message that describes the error.
fn sentence(error: &etcd_client::Error) -> String {
    use std::error::Error as _;
    let (first, source) = if let etcd_client::Error::GRpcStatus(status) = error {
        (status.message().to_owned(), status.source())
    } else if let etcd_client::Error::TransportError(error) = error {
        (error.to_string(), error.source())
    } else {
        return error.to_string();
    };
    let mut parts = vec![first];
    parts.extend(successors(source, |&cause| cause.source()).map(ToString::to_string));
    let mut text = String::new();
    for part in parts {
        // The text "transport error" says nothing, and many errors repeat the text of their causes.
        if part == "transport error" || text.contains(&part) {
            continue;
        }
        text = if text.is_empty() { part } else { format!("{text}: {part}") };
    }
    if text.is_empty() { "the connection has failed".to_owned() } else { text }
}

/// Whether the store has refused a right.
pub(crate) fn is_denied(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("permission denied")
}

/// Whether the store has refused a user, which it does once the user is removed. Without certificates, etcd does not even let an
/// unknown user log in.
pub(crate) fn is_refused(error: &anyhow::Error) -> bool {
    is_denied(error) || format!("{error:#}").contains("authentication failed")
}

/// Reads a fleet's agreement, and the state of the store.
pub(crate) async fn find(client: &mut Client, keys: &Keys, me: &ExitId) -> anyhow::Result<Found> {
    let kinds: [fn(ExitId) -> Key; 4] = [Key::Position, Key::Written, Key::Member, Key::RemovedExit];
    let mut gets = vec![TxnOp::get(keys.name(&Key::Meta), None)];
    gets.extend(kinds.map(|kind| TxnOp::get(keys.name(&kind(me.clone())), None)));
    let grant = keys.grant(me);
    gets.push(TxnOp::get(grant.as_str(), None));
    // One transaction reads everything, so that all values are of one revision.
    let answer = in_words(client.txn(Txn::new().and_then(gets)).await)?;
    let header = answer.header().context("etcd's answer has no header")?;
    let mut found = Found {
        meta: None,
        cluster: header.cluster_id(),
        revision: header.revision(),
        own: 0,
        is_member: false,
        membership: None,
        joined: 0,
        removed: None,
        began: 0,
    };
    let (mut created, mut granted) = (0, 0);
    for response in answer.op_responses() {
        let TxnOpResponse::Get(response) = response else { continue };
        for kv in response.kvs() {
            let pair = Pair::new(kv.key(), kv.value(), kv.mod_revision());
            match keys.parse(&pair.key) {
                None if pair.key == grant.as_bytes() => granted = pair.modified,
                Some(Key::Meta) => {
                    (found.meta, found.began) = (pair.parse::<Meta>("agreement"), pair.modified)
                }
                Some(Key::Position(_) | Key::Written(_)) => found.own = found.own.max(pair.modified),
                Some(Key::Member(_)) => {
                    (found.is_member, created) = (true, kv.create_revision());
                    found.membership = pair.parse::<Member>("exit").and_then(|member| member.membership);
                }
                Some(Key::RemovedExit(_)) => found.removed = pair.removed(),
                _ => {}
            }
        }
    }
    found.joined = joined_at(created, granted);
    Ok(found)
}

/// The revision at which an exit has used its ticket, from the revisions at which its membership was created and its grant was written.
/// Using a ticket does both at once. A recovery creates only the membership. Returns 0 if no ticket was used.
pub(crate) fn joined_at(created: i64, granted: i64) -> i64 {
    if created == granted { created } else { 0 }
}

/// Reads all values that a link watches, as of one revision.
pub(crate) async fn read_all(client: &Client, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
    read_pages(client, keys, || ()).await
}

/// Does the same as [`read_all`], and calls `has_answered` after each answer of the store.
async fn read_pages(
    client: &Client,
    keys: &Keys,
    has_answered: impl Fn(),
) -> anyhow::Result<(i64, Vec<Pair>)> {
    let mut kv = client.kv_client().max_decoding_message_size(MOST_BYTES);
    // The first page is read at revision 0, which stands for the latest one. All later pages are read at the same revision.
    let (mut revision, mut bytes) = (0, 0);
    let mut pairs = Vec::new();
    for kind in
        ["cl/", "in/", "rv/", "se/", "ex/", "mb/", "xr/", "dr/", "wr/", "po/", "px", "fw", "ro", "meta"]
    {
        let first = format!("{}{kind}", keys.prefix());
        let mut start = first.clone().into_bytes();
        let end = end_of(first.as_bytes());
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            let answer = timeout(ANSWER_TIMEOUT * 5, kv.get(start.clone(), Some(options))).await;
            let page = in_words(answer.context("it does not answer")?)?;
            has_answered();
            if revision == 0 {
                revision = page.header().context("etcd's answer has no header")?.revision();
            }
            bytes += page.kvs().iter().map(|kv| kv.key().len() + kv.value().len()).sum::<usize>();
            if bytes > MOST_READ {
                anyhow::bail!(
                    "its keys below {} take more than {MOST_READ} bytes; find out which exit writes them",
                    keys.prefix()
                );
            }
            pairs.extend(pairs_of(&page));
            match page.kvs().last() {
                // The next key that can exist is this key with a zero byte after it.
                Some(last) if page.more() => start = [last.key(), b"\0"].concat(),
                _ => break,
            }
        }
    }
    Ok((revision, pairs))
}

pub(crate) fn pairs_of(response: &GetResponse) -> Vec<Pair> {
    response.kvs().iter().map(|kv| Pair::new(kv.key(), kv.value(), kv.mod_revision())).collect()
}

/// Whether a transaction's read operation has found its key.
pub(crate) fn has_found(response: &TxnOpResponse) -> bool {
    matches!(response, TxnOpResponse::Get(response) if !response.kvs().is_empty())
}

/// Returns the first key after all keys that begin with a prefix.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        // Prefixes are ASCII, so this does not overflow.
        *last += 1;
    }
    end
}

/// A lease, and a function that says which keys have it.
type Lease<'a> = (i64, &'a dyn Fn(&str) -> bool);

/// Converts a transaction into etcd's form. Keys for which the function of `lease` returns true are attached to the lease.
pub(crate) fn as_txn(transaction: &Transaction, lease: Option<Lease<'_>>) -> Txn {
    let compares: Vec<_> =
        transaction.expected.iter().map(|(key, expected)| compare(key, expected)).collect();
    let operations = |operations: &BTreeMap<String, Option<Vec<u8>>>| -> Vec<TxnOp> {
        operations.iter().map(|(key, value)| operation(key, value.as_deref(), lease)).collect()
    };
    let cleared = transaction.cleared.iter();
    let cleared =
        cleared.map(|prefix| TxnOp::delete(prefix.as_str(), Some(DeleteOptions::new().with_prefix())));
    let then: Vec<TxnOp> = cleared.chain(operations(&transaction.then)).collect();
    Txn::new().when(compares).and_then(then).or_else(operations(&transaction.otherwise))
}

fn compare(key: &str, expected: &Expected) -> Compare {
    match expected {
        Expected::Modified(revision) => Compare::mod_revision(key, CompareOp::Equal, *revision),
        Expected::Value(value) => Compare::value(key, CompareOp::Equal, value.clone()),
        Expected::Present => Compare::version(key, CompareOp::Greater, 0),
    }
}

fn operation(key: &str, value: Option<&[u8]>, lease: Option<Lease<'_>>) -> TxnOp {
    let Some(value) = value else { return TxnOp::delete(key, None) };
    let lease = lease.filter(|(_, is_leased)| is_leased(key));
    TxnOp::put(key, value, lease.map(|(lease, _)| PutOptions::new().with_lease(lease)))
}

/// The operations of a recovery on the store, which is etcd or a simulated store.
pub(crate) trait Transact {
    /// Reads all values that a link watches, as of one revision.
    async fn all(&mut self, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)>;

    /// Reads a key and all keys with a prefix, as they are at one revision.
    async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>>;

    /// Sends a transaction. Returns the store's revision, or `None` if a key is not as expected.
    async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>>;
}

/// Reads one key.
pub(crate) async fn get(store: &mut impl Transact, key: &str) -> anyhow::Result<Option<Pair>> {
    Ok(store.some(key, key).await?.into_iter().find(|pair| pair.key == key.as_bytes()))
}

/// The end of an exit's membership, if it was removed or has left.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn ended(
    store: &mut impl Transact,
    keys: &Keys,
    exit: &ExitId,
) -> anyhow::Result<Option<Removed>> {
    let pair = get(store, &keys.name(&Key::RemovedExit(exit.clone()))).await?;
    Ok(pair.and_then(|pair| pair.removed()))
}

/// A store that can also be asked for its exits, and for the state that a link checks.
pub(crate) trait ReadExits {
    /// Reads which exits belong to the fleet and which were removed.
    async fn exits(&mut self, keys: &Keys) -> anyhow::Result<ExitsInStore>;

    /// Reads the state of the store that one exit's link checks.
    async fn found(&mut self, keys: &Keys, me: &ExitId) -> anyhow::Result<Found>;
}

impl ReadExits for Client {
    async fn exits(&mut self, keys: &Keys) -> anyhow::Result<ExitsInStore> {
        let gets = [keys.members(), keys.removed_exits()]
            .map(|prefix| TxnOp::get(prefix, Some(GetOptions::new().with_prefix())));
        let answer = in_words(self.txn(Txn::new().and_then(gets)).await)?;
        let mut exits = ExitsInStore::default();
        for response in answer.op_responses() {
            let TxnOpResponse::Get(response) = response else { continue };
            for pair in response.kvs() {
                match keys.parse(pair.key()) {
                    Some(Key::Member(exit)) => {
                        let member = Pair::new(pair.key(), pair.value(), pair.mod_revision()).parse("exit");
                        exits.add(exit, (pair.create_revision(), pair.mod_revision()), member);
                    }
                    Some(Key::RemovedExit(exit)) => {
                        let removed = Removed::read(pair.value(), pair.mod_revision());
                        exits.removed.extend([(exit, removed)]);
                    }
                    _ => {}
                }
            }
        }
        Ok(exits)
    }

    async fn found(&mut self, keys: &Keys, me: &ExitId) -> anyhow::Result<Found> {
        timeout(ANSWER_TIMEOUT, find(self, keys, me)).await.context("the store does not answer")?
    }
}

impl Transact for Client {
    async fn all(&mut self, keys: &Keys) -> anyhow::Result<(i64, Vec<Pair>)> {
        read_all(self, keys).await
    }

    async fn some(&mut self, key: &str, prefix: &str) -> anyhow::Result<Vec<Pair>> {
        let mut gets = vec![TxnOp::get(key, None)];
        // The user of a removed exit may read one key, and nothing else that begins with it.
        if key != prefix {
            gets.push(TxnOp::get(prefix, Some(GetOptions::new().with_prefix())));
        }
        let answer = timeout(ANSWER_TIMEOUT * 5, self.txn(Txn::new().and_then(gets))).await;
        let answer = in_words(answer.context("the store does not answer")?)?;
        let pairs = answer.op_responses().into_iter().flat_map(|response| match response {
            TxnOpResponse::Get(response) => pairs_of(&response),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => Vec::new(),
        });
        Ok(pairs.collect())
    }

    async fn transact(&mut self, transaction: &Transaction) -> anyhow::Result<Option<i64>> {
        let answer = timeout(ANSWER_TIMEOUT * 5, self.txn(as_txn(transaction, None))).await;
        let answer = in_words(answer.context("the store does not answer")?)?;
        let revision = answer.header().context("etcd's answer has no header")?.revision();
        Ok(answer.succeeded().then_some(revision))
    }
}

/// Makes changes for a command, or while a link starts. Each group succeeds as a whole or not at all. Returns the groups that
/// conflict with rows that others have stored.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn apply(
    store: &mut impl Transact,
    keys: &Keys,
    rows: &mut Rows,
    groups: Vec<Vec<RowChange>>,
) -> anyhow::Result<Vec<Vec<RowChange>>> {
    let mut refused = Vec::new();
    let mut waiting = VecDeque::from(groups);
    let mut is_alone = false;
    while !waiting.is_empty() {
        let (draft, count) = join_first(keys, rows, &waiting, is_alone);
        if count == 0 {
            refused.extend(waiting.pop_front());
            continue;
        }
        if let Some(revision) = carry_out(store, &draft).await? {
            draft.rows.into_iter().for_each(|row| rows.put(row, revision));
            draft.touched.into_iter().for_each(|subject| rows.touch(subject, revision));
            waiting.drain(..count);
            is_alone = false;
        } else if count == 1 {
            refused.extend(waiting.pop_front());
        } else {
            // One of the groups conflicts, so each one is now tried alone.
            is_alone = true;
        }
    }
    Ok(refused)
}

/// Joins the first groups that fit into one transaction. Returns the joined draft and the number of groups.
fn join_first(
    keys: &Keys,
    rows: &Rows,
    waiting: &VecDeque<Vec<RowChange>>,
    is_alone: bool,
) -> (Draft, usize) {
    let unseen = Unseen::default();
    let known = Known { keys, rows, unseen: &unseen, basis: i64::MAX };
    let mut joined = Draft::default();
    let mut count = 0;
    for group in waiting {
        let Ok(next) = draft(known, group, group) else { break };
        if count > 0 && (is_alone || !next.is_apart_from(&joined) || !joined.has_room_for(&next)) {
            break;
        }
        joined.join(next);
        count += 1;
    }
    (joined, count)
}

/// Sends a draft. Returns the store's revision, or `None` if the draft conflicts with rows that others have stored.
async fn carry_out(store: &mut impl Transact, draft: &Draft) -> anyhow::Result<Option<i64>> {
    let (expected, then) = (draft.expected.clone(), draft.operations.clone());
    store.transact(&Transaction { expected, then, ..Transaction::default() }).await
}
