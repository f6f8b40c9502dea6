//! The kill switch: an own nftables table that lets nothing out but the tunnel and what carries it.
//!
//! The table belongs to no process. It stands until [`open`] is asked for, however the daemon that closed it ended; a
//! journal of its own says that it stands, so that whatever else is undone leaves it alone. What it lets out, in which
//! state of the client, is the table in `docs/kill-switch.md`.

mod ruleset;

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;

use crate::{
    GuestNetwork, HostError, NftError, Step, TableFamily,
    journal::{Journal, Place},
    nft,
    plan::table_text,
    recover,
    undo::Undo,
};

/// What a kill switch lets out besides what goes through Warren's tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Where packets that carry [`crate::CARRIER_MARK`] may go, by UDP: the exits, and the resolvers asked for them.
    pub carriers: Vec<SocketAddr>,
}

/// A port of this host that stays reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InboundPort {
    /// TCP or UDP.
    pub protocol: InboundProtocol,
    /// The port.
    pub port: u16,
}

/// The protocol of an [`InboundPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    journal: Journal,
    table: String,
    rules: KillSwitchRules,
    /// The table as the kernel showed it right after it was made.
    listing: String,
}

/// Why a kill switch cannot be closed.
#[derive(Debug, thiserror::Error)]
pub enum KillSwitchError {
    /// The journal cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// nft failed.
    #[error("cannot close the kill switch: {0}")]
    Nft(#[from] NftError),
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
        let undo = Undo::Nftables { family: FAMILY, table: table.clone() };
        let new = match journal.outstanding().values().any(|outstanding| *outstanding == undo) {
            true => None,
            false => Some(journal.begin(undo).map_err(failed)?),
        };
        match make(&table, &rules, &journal).await {
            Ok(listing) => Ok(Self { journal, table, rules, listing }),
            Err(error) => {
                if let Some(entry) = new {
                    journal.end(entry).map_err(failed)?;
                }
                Err(error.into())
            }
        }
    }

    /// What it has changed on this host, in a few words.
    pub fn change(&self) -> String {
        Undo::Nftables { family: FAMILY, table: self.table.clone() }.to_string()
    }

    /// What it lets out now.
    pub fn rules(&self) -> &KillSwitchRules {
        &self.rules
    }

    /// Lets out what `rules` say instead, with no moment between the two. Does nothing if they are in force.
    ///
    /// # Errors
    /// If nft fails; what was in force stays so.
    pub async fn set(&mut self, rules: KillSwitchRules) -> Result<(), NftError> {
        if rules != self.rules {
            self.listing = make(&self.table, &rules, &self.journal).await?;
            self.rules = rules;
        }
        Ok(())
    }

    /// Closes it again if somebody has changed or deleted the table. Returns whether that was so.
    ///
    /// # Errors
    /// If nft fails.
    pub async fn repair(&mut self) -> Result<bool, NftError> {
        if nft::listing(FAMILY, &self.table).await?.as_deref() == Some(&self.listing) {
            return Ok(false);
        }
        self.listing = make(&self.table, &self.rules, &self.journal).await?;
        Ok(true)
    }
}

/// Opens the kill switch whose journal is at `journal`, if it is closed. Returns whether it was.
///
/// # Errors
/// If a daemon keeps it closed, it is in another network namespace, or nft fails.
pub async fn open(journal: impl AsRef<Path>) -> Result<bool, HostError> {
    Ok(!recover(journal).await?.undone.is_empty())
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

/// The table of the profile `name`. Names of profiles have no characters that nft would not take, and no profile's own
/// table begins like this one's.
pub fn table_name(name: &str) -> String {
    format!("warren-kill-switch_{name}")
}

async fn make(table: &str, rules: &KillSwitchRules, journal: &Journal) -> Result<String, NftError> {
    let text = table_text(FAMILY, table, &ruleset::ruleset(rules), false);
    nft::replace(FAMILY, table, &text, journal.share_lock()?).await?;
    // Somebody who deletes it this fast is found out by the next look.
    Ok(nft::listing(FAMILY, table).await?.unwrap_or_default())
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
