//! The kill switch: an own nftables table that lets nothing out but the tunnel and what carries it.
//!
//! The table belongs to no process. It stands until [`open`] is asked for, however the daemon that closed it ended; a
//! journal of its own says that it stands, so that whatever else is undone leaves it alone. What it lets out, in which
//! state of the client, is the table in `docs/kill-switch.md`.
//!
//! Others can delete the table all the same, as `nft flush ruleset` does. [`look`] tells, and [`close_again`] makes the table
//! anew from the record beside the journal.

mod record;
mod ruleset;

use std::{
    fmt,
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use self::record::Record;
use crate::{
    GuestNetwork, HostError, NftError, Step, TableFamily,
    host::recover_and_look_again,
    journal::{Journal, Place},
    nft,
    plan::table_text,
    undo::Undo,
};

/// What a kill switch lets out besides what goes through Warren's tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillSwitchRules {
    /// The networks that must not leave outside the tunnel; with a default route all of its IP version.
    pub include: Vec<IpNet>,
    /// Networks that go outside although `include` has them.
    pub exclude: Vec<IpNet>,
    /// This host's private networks, if they are to be reachable; not for DNS, which would tell them every name.
    pub lan: Vec<IpNet>,
    /// Networks of containers and virtual machines on this host: what goes there does not leave it. Ports of theirs that this host
    /// publishes (DNAT) answer who asks from outside as those in `allow_inbound` do.
    pub guests: Vec<GuestNetwork>,
    /// Networks behind this host, which the tunnel's other end may reach.
    pub prefixes: Vec<IpNet>,
    /// Ports of this host that answer who asks from outside.
    pub allow_inbound: Vec<InboundPort>,
    /// The networks that this host is on: a DHCP lease is renewed at a server there.
    pub on_link: Vec<IpNet>,
    /// Where packets that carry [`crate::CARRIER_MARK`] may go, by UDP: the exits.
    pub carriers: Vec<SocketAddr>,
    /// Where packets that carry `query_mark` may go, by UDP: the resolvers that the daemon asks for its exits.
    pub resolvers: Vec<SocketAddr>,
    /// The mark of the daemon's own queries, which nobody else on this host knows; none where no daemon asks.
    pub query_mark: Option<u32>,
}

/// A port of this host that stays reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InboundPort {
    /// TCP or UDP.
    pub protocol: InboundProtocol,
    /// The port.
    pub port: u16,
}

/// The protocol of an [`InboundPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A closed kill switch, kept by the daemon that closed it or found it closed.
///
/// Dropping this leaves it closed.
#[derive(Debug)]
pub struct KillSwitch {
    path: PathBuf,
    journal: Journal,
    table: String,
    record: Record,
}

/// What of a kill switch there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is open: nobody has closed it in this boot, or somebody has opened it since.
    Open,
    /// It is closed, and the kernel has its table.
    Closed,
    /// It was closed and is to be, but the kernel does not have its table.
    Gone,
    /// It was closed and is to be, but the kernel's table is another than was made.
    Changed,
}

/// Why a kill switch cannot be closed, or looked at.
#[derive(Debug, thiserror::Error)]
pub enum KillSwitchError {
    /// The journal, or the record beside it, cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// nft failed.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// There is a closed kill switch that nothing is known of.
    #[error("what it lets out is not recorded; run `warren client close {0}`, which asks the profile")]
    Unrecorded(String),
}

impl KillSwitchRules {
    /// The table of the profile `name` that lets this out and nothing else, to be printed.
    pub fn step(&self, name: &str) -> Step {
        let (table, ruleset) = (table_name(name), ruleset::ruleset(self));
        Step::Nftables { family: FAMILY, table, ruleset, owned: false }
    }
}

impl KillSwitch {
    /// Closes the kill switch of the profile `name`, whose journal is at `journal`. One that stands already is replaced
    /// with no moment between the two.
    ///
    /// # Errors
    /// If the journal is another process's or about another network namespace, or if nft fails; what stood before, then
    /// stands.
    pub async fn close(
        journal: impl AsRef<Path>,
        name: &str,
        rules: KillSwitchRules,
    ) -> Result<Self, KillSwitchError> {
        let path = journal.as_ref();
        let table = table_name(name);
        let mut journal = open_journal(path)?;
        let failed = |source| HostError::Journal { path: path.to_owned(), source };
        let new = match is_in(&journal, &table) {
            true => None,
            false => Some(journal.begin(undo(&table)).map_err(failed)?),
        };
        let before = Record::read(path).ok().flatten().filter(|_| new.is_none());
        match make(path, &table, rules, &journal).await {
            Ok(record) => Ok(Self { path: path.to_owned(), journal, table, record }),
            Err(error) => {
                put_back(path, before.as_ref());
                if let Some(entry) = new {
                    journal.end(entry).map_err(failed)?;
                }
                Err(error)
            }
        }
    }

    /// Takes a closed kill switch over from whoever closed it and has ended; none if it is open.
    ///
    /// # Errors
    /// If the journal is another process's or about another network namespace, or there is no record.
    pub fn take_over(journal: impl AsRef<Path>, name: &str) -> Result<Option<Self>, KillSwitchError> {
        let path = journal.as_ref();
        if !is_closed(path).map_err(|source| HostError::Journal { path: path.to_owned(), source })? {
            return Ok(None);
        }
        let table = table_name(name);
        let journal = open_journal(path)?;
        if !is_in(&journal, &table) {
            return Ok(None);
        }
        let record =
            Record::read(path).map_err(|source| HostError::Journal { path: path.to_owned(), source })?;
        let record = record.ok_or_else(|| KillSwitchError::Unrecorded(name.to_owned()))?;
        Ok(Some(Self { path: path.to_owned(), journal, table, record }))
    }

    /// What it has changed on this host, in a few words.
    pub fn change(&self) -> String {
        undo(&self.table).to_string()
    }

    /// What it lets out now.
    pub fn rules(&self) -> &KillSwitchRules {
        &self.record.rules
    }

    /// Lets out what `rules` say instead, with no moment between the two. Does nothing if they are in force.
    ///
    /// # Errors
    /// If nft fails or the record cannot be written; what was in force stays so.
    pub async fn set(&mut self, rules: KillSwitchRules) -> Result<(), KillSwitchError> {
        if rules == self.record.rules {
            return Ok(());
        }
        self.make(rules).await
    }

    /// Whether the kernel's table is as it was made.
    ///
    /// # Errors
    /// If nft fails.
    pub async fn stands(&self) -> Result<bool, NftError> {
        let listing = nft::listing(FAMILY, &self.table).await?;
        Ok(listing.is_some() && listing == self.record.listing)
    }

    /// Closes it again if somebody has changed or deleted the table. Returns whether that was so.
    ///
    /// # Errors
    /// If nft fails or the record cannot be written.
    pub async fn repair(&mut self) -> Result<bool, KillSwitchError> {
        if self.stands().await? {
            return Ok(false);
        }
        self.make(self.record.rules.clone()).await?;
        Ok(true)
    }

    async fn make(&mut self, rules: KillSwitchRules) -> Result<(), KillSwitchError> {
        match make(&self.path, &self.table, rules, &self.journal).await {
            Ok(record) => self.record = record,
            Err(error) => {
                put_back(&self.path, Some(&self.record));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Asks the kernel for a kill switch's table, if the kill switch of the profile `name` whose journal is at `journal` is closed.
/// While a process makes the table, it may be `Changed` for a moment.
///
/// # Errors
/// If the journal or its record cannot be read, it is about another network namespace, or nft fails.
pub async fn look(journal: impl AsRef<Path>, name: &str) -> Result<Standing, KillSwitchError> {
    let path = journal.as_ref();
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let here = Place::here().map_err(failed)?;
    match Place::of_file(path).map_err(failed)? {
        Some(place) if place.boot == here.boot && place.namespace == here.namespace => {}
        Some(place) if place.boot == here.boot => {
            return Err(HostError::OtherNamespace(path.to_owned()).into());
        }
        _ => return Ok(Standing::Open),
    }
    let record = Record::read(path).map_err(failed)?;
    let Some(listing) = nft::listing(FAMILY, &table_name(name)).await? else { return Ok(Standing::Gone) };
    Ok(match record {
        Some(record) if record.listing.as_ref() != Some(&listing) => Standing::Changed,
        _ => Standing::Closed,
    })
}

/// Closes a kill switch again whose table somebody has changed or deleted, and that no running process keeps. One that was opened
/// stays open. Returns whether there was anything to do.
///
/// # Errors
/// As [`KillSwitch::take_over`] and [`KillSwitch::repair`].
pub async fn close_again(journal: impl AsRef<Path>, name: &str) -> Result<bool, KillSwitchError> {
    match KillSwitch::take_over(journal, name)? {
        Some(mut closed) => closed.repair().await,
        None => Ok(false),
    }
}

/// Makes the table of a closed kill switch again that another process keeps and does not close, such as a daemon that hangs. That
/// one goes on keeping it. Returns whether the table was made.
///
/// # Errors
/// As [`look`].
pub async fn close_beside(journal: impl AsRef<Path>, name: &str) -> Result<bool, KillSwitchError> {
    let path = journal.as_ref();
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let standing = look(path, name).await?;
    let Some(record) = Record::read(path).map_err(failed)? else { return Ok(false) };
    // While it is being made by the other one, the record says so.
    let is_lost = standing == Standing::Gone || (standing == Standing::Changed && record.listing.is_some());
    if !is_lost {
        return Ok(false);
    }
    let table = table_name(name);
    let text = table_text(FAMILY, &table, &ruleset::ruleset(&record.rules), false);
    nft::replace(FAMILY, &table, &text, File::open("/dev/null").map_err(failed)?).await?;
    if is_closed(path).map_err(failed)? {
        // Whoever is opening it just now looks for the table again once it is not.
        return Ok(true);
    }
    // Somebody has opened it in the meantime, and nobody would delete what was made after that.
    nft::delete(FAMILY, &table).await?;
    Ok(false)
}

/// Opens the kill switch whose journal is at `journal`, if it is closed. Returns whether it was.
///
/// # Errors
/// If a daemon keeps it closed, it is in another network namespace, or nft fails.
pub async fn open(journal: impl AsRef<Path>) -> Result<bool, HostError> {
    let journal = journal.as_ref();
    let was_closed = !recover_and_look_again(journal).await?.undone.is_empty();
    if !journal.exists() {
        Record::remove(journal);
    }
    Ok(was_closed)
}

/// Whether the kill switch whose journal is at `journal` is closed in this boot.
///
/// # Errors
/// If the journal cannot be read.
pub fn is_closed(journal: impl AsRef<Path>) -> io::Result<bool> {
    let place = Place::of_file(journal.as_ref())?;
    Ok(match place {
        Some(place) => place.boot == Place::here()?.boot,
        None => false,
    })
}

/// The table looks at packets of both versions.
const FAMILY: TableFamily = TableFamily::Inet;

pub use crate::table_names::kill_switch_table as table_name;

/// Makes the table, and notes what it is to be before and what it is after.
async fn make(
    path: &Path,
    table: &str,
    rules: KillSwitchRules,
    journal: &Journal,
) -> Result<Record, KillSwitchError> {
    let failed = |source| HostError::Journal { path: path.to_owned(), source };
    let text = table_text(FAMILY, table, &ruleset::ruleset(&rules), false);
    let mut record = Record { rules, listing: None };
    record.write(path).map_err(failed)?;
    nft::replace(FAMILY, table, &text, journal.share_lock().map_err(failed)?).await?;
    // Somebody who deletes it this fast is found out by the next look.
    record.listing = nft::listing(FAMILY, table).await?;
    record.write(path).map_err(failed)?;
    Ok(record)
}

/// Notes again what was in force before something else failed to be.
fn put_back(path: &Path, before: Option<&Record>) {
    match before {
        // Without it the next look makes the table anew.
        Some(record) => drop(record.write(path)),
        None => Record::remove(path),
    }
}

fn undo(table: &str) -> Undo {
    Undo::Nftables { family: FAMILY, table: table.to_owned() }
}

/// Whether a journal says that the table stands.
fn is_in(journal: &Journal, table: &str) -> bool {
    let undo = undo(table);
    journal.outstanding().values().any(|outstanding| *outstanding == undo)
}

fn open_journal(path: &Path) -> Result<Journal, HostError> {
    let failed = |source| HostError::Journal { path: PathBuf::from(path), source };
    let mut journal = Journal::open(path).map_err(failed)?.ok_or_else(|| HostError::Busy(path.to_owned()))?;
    journal.forget_other_boots().map_err(failed)?;
    let here = Place::here().map_err(failed)?;
    match journal.place() {
        Some(place) if place.namespace != here.namespace && !journal.outstanding().is_empty() => {
            Err(HostError::OtherNamespace(path.to_owned()))
        }
        _ => Ok(journal),
    }
}

impl fmt::Display for InboundPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol, self.port)
    }
}

impl fmt::Display for InboundProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}
