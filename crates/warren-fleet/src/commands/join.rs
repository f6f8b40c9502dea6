//! `warren fleet join`: makes a host an exit of a fleet, with a ticket.
//!
//! A ticket works for one host. If anything fails, the same host may join with it again until it has succeeded. For this,
//! the host draws a secret and keeps it in a file before it uses the ticket. The store then learns by this secret which host
//! has used the ticket.

use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use warren_fleet_link::{ExitId, Pools};

use super::files::{ATTEMPT, credentials_directory, write, write_config};
use super::ticket::{Ticket, seconds};
use super::{print, print_json, read_meta};
use crate::config::{FleetConfig, StoreConfig};
use crate::exits::Member;
use crate::keys::{Key, Keys};
use crate::link::pools_text;
use crate::meta::Meta;
use crate::run::{Directories, random_name};
use crate::store::{ANSWER_TIMEOUT, StoreOptions, in_words, pairs_of};
use crate::users::Grant;

/// `warren fleet join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArguments {
    /// What `warren fleet ticket` has printed; `-` to read it from standard input, or @FILE to read it from a file. Every user of
    /// this host can see command lines. If joining has failed, give the same ticket again.
    #[arg(value_name = "TICKET|-|@FILE")]
    ticket: String,
    /// Print the exit's name and the fleet's inner prefixes as JSON.
    #[arg(long)]
    json: bool,
}

/// What `warren fleet join --json` prints.
#[derive(Serialize)]
struct Joined<'a> {
    fleet: &'a str,
    exit: &'a ExitId,
    pools: &'a Pools,
}

/// How often the store is asked to accept the ticket, if its answers are lost.
const TRIES: usize = 3;

/// Joins a fleet: writes `fleet.toml` and the files that it names.
///
/// # Errors
/// If the ticket is used or damaged, or the store cannot be reached.
pub(crate) async fn join(directories: Directories<'_>, arguments: &JoinArguments) -> anyhow::Result<()> {
    let ticket = Ticket::parse(&text_of(&arguments.ticket)?)?;
    let attempt = Attempt::of(directories.config, &ticket)?;
    let path = FleetConfig::path(directories.config);
    if !attempt.is_again {
        FleetConfig::free_path(directories.config)?;
        if ticket.expires <= seconds(SystemTime::now()) {
            bail!("this ticket has expired; get another one with `warren fleet ticket {}`", ticket.exit);
        }
    }
    // An operator may have changed it since.
    let is_written = path.exists();
    let files = Files::of(directories.config, &ticket, attempt.is_again)?;
    let Ticket { endpoints, ca, identity, user, .. } = ticket.clone();
    let options = StoreOptions { endpoints, ca, identity, user };
    let (client, meta) = look(&options, &ticket).await?;
    let meta = meta.with_context(|| format!("the store no longer has the fleet {:?}", ticket.fleet))?;
    // Before the ticket is used: without them the exit could not reach the store.
    let written =
        if is_written { Ok(()) } else { attempt.keep().and_then(|()| files.write(directories.config)) };
    let used = match written {
        Ok(()) => use_up(&options, client, &ticket, &attempt.host).await,
        Err(error) if attempt.is_again => Used::Unknown(error),
        Err(error) => Used::Refused(error),
    };
    if let Used::Refused(_) | Used::Unknown(_) = &used
        && !is_written
    {
        // Without them the exit belongs to no fleet, and the ticket still contains the secrets.
        files.remove(directories.config);
    }
    match used {
        Used::ByThisHost => {}
        Used::Refused(error) => {
            attempt.forget(is_written);
            return Err(error);
        }
        Used::Unknown(error) => {
            return Err(error.context(
                "it is not known whether the store has accepted the ticket; run this again with the same one",
            ));
        }
    }
    let config = files.config;
    if arguments.json {
        return print_json(&Joined { fleet: &config.fleet, exit: &config.exit, pools: &meta.pools });
    }
    let pools = pools_text(&meta.pools);
    print(&format!(
        "This exit is {} of fleet {:?}. {} is written.\nNext: give exit.toml the prefixes {pools} in `[addresses]`, and `[fleet]` with \
         `name = \"{}\"`. Then start the exit and warren-fleet.service.\n",
        config.exit,
        config.fleet,
        path.display(),
        config.exit,
    ))
}

/// Connects with the ticket's credentials, and reads what the fleet agrees on.
async fn look(options: &StoreOptions, ticket: &Ticket) -> anyhow::Result<(Client, Option<Meta>)> {
    let looked = async {
        let mut client = options.connect_any().await?;
        let meta = read_meta(&mut client, &Keys::new(&ticket.fleet)).await?;
        anyhow::Ok((client, meta))
    };
    looked.await.map_err(|error| {
        let text = format!("{error:#}");
        match ["permission denied", "authentication failed"].iter().any(|part| text.contains(part)) {
            true => anyhow!(
                "the store does not know this ticket's user any more, because the ticket has expired or is void; get another one with \
                 `warren fleet ticket {}`",
                ticket.exit
            ),
            false => error,
        }
    })
}

/// The outcome of redeeming a ticket.
enum Used {
    /// This host has used it, now or before.
    ByThisHost,
    /// Nothing was changed.
    Refused(anyhow::Error),
    /// The store's answer is lost.
    Unknown(anyhow::Error),
}

/// Turns the ticket into a member of the fleet. If an answer is lost, asks another member of the store.
async fn use_up(options: &StoreOptions, mut client: Client, ticket: &Ticket, host: &str) -> Used {
    let keys = Keys::new(&ticket.fleet);
    let mut tries = 0;
    loop {
        let tried = timeout(ANSWER_TIMEOUT * 5, try_to_use_up(&mut client, &keys, ticket, host)).await;
        let error = match tried.context("the store does not answer").and_then(|tried| tried) {
            Ok(used) => return used,
            Err(error) => error,
        };
        tries += 1;
        if tries == TRIES {
            return Used::Unknown(error);
        }
        match options.connect_any().await {
            Ok(another) => client = another,
            Err(error) => return Used::Unknown(error),
        }
    }
}

async fn try_to_use_up(
    client: &mut Client,
    keys: &Keys,
    ticket: &Ticket,
    host: &str,
) -> anyhow::Result<Used> {
    let (key, member) = (ticket.key(keys), keys.name(&Key::Member(ticket.exit.clone())));
    let grant = keys.grant(&ticket.exit);
    let used = Grant { ticket: ticket.digest(), host: Some(host.to_owned()), is_ending: false };
    let compares = [
        Compare::version(key.as_str(), CompareOp::Greater, 0),
        Compare::version(member.as_str(), CompareOp::Equal, 0),
    ];
    let then = [
        TxnOp::delete(key.as_str(), None),
        TxnOp::put(member.as_str(), serde_json::to_vec(&Member::default())?, None),
        TxnOp::put(grant.as_str(), serde_json::to_vec(&used)?, None),
    ];
    let otherwise = [&key, &member, &grant].map(|key| TxnOp::get(key.as_str(), None));
    let answer = in_words(client.txn(Txn::new().when(compares).and_then(then).or_else(otherwise)).await)?;
    if answer.succeeded() {
        return Ok(Used::ByThisHost);
    }
    let responses = answer.op_responses();
    let pairs: Vec<_> = responses
        .iter()
        .filter_map(|response| if let TxnOpResponse::Get(found) = response { Some(found) } else { None })
        .flat_map(pairs_of)
        .collect();
    let has = |key: &str| pairs.iter().any(|pair| pair.key == key.as_bytes());
    let stored = pairs.iter().find(|pair| pair.key == grant.as_bytes()).and_then(|pair| pair.parse("grant"));
    if has(&member) && stored == Some(used) {
        return Ok(Used::ByThisHost);
    }
    let exit = &ticket.exit;
    Ok(Used::Refused(match has(&key) {
        true => anyhow!("the fleet has an exit {exit} already; get a ticket with another name"),
        false => anyhow!(
            "this ticket was used by another host, has expired or is void; get another one with `warren fleet ticket {exit}`"
        ),
    }))
}

/// The ticket itself, or the content of standard input or of a file.
fn text_of(argument: &str) -> anyhow::Result<String> {
    /// Longer than any ticket.
    const MOST: u64 = 256 * 1024;
    let mut text = String::new();
    if argument == "-" {
        std::io::stdin().take(MOST).read_to_string(&mut text).context("standard input cannot be read")?;
        return Ok(text);
    }
    let Some(path) = argument.strip_prefix('@') else { return Ok(argument.to_owned()) };
    let file = std::fs::File::open(path).with_context(|| format!("{path} cannot be opened"))?;
    file.take(MOST).read_to_string(&mut text).with_context(|| format!("{path} cannot be read"))?;
    Ok(text)
}

/// A host's attempt to join. Its file is written before the ticket is used, so that the host can prove that it has used
/// the ticket.
struct Attempt {
    path: PathBuf,
    /// The ticket's digest.
    ticket: String,
    /// The random text that this host has drawn.
    host: String,
    /// Whether an earlier attempt was with the same ticket.
    is_again: bool,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Kept {
    ticket: String,
    host: String,
}

/// The random text that this host has drawn for the ticket with which it has joined. `None` if it did not join with one.
pub(super) fn host_of_join(directory: &Path) -> Option<String> {
    let text = std::fs::read(credentials_directory(directory).join(ATTEMPT)).ok()?;
    Some(serde_json::from_slice::<Kept>(&text).ok()?.host)
}

impl Attempt {
    /// Reads the file of an earlier attempt with the same ticket, or draws a new random text.
    ///
    /// # Errors
    /// If the file of an earlier attempt cannot be read.
    fn of(directory: &Path, ticket: &Ticket) -> anyhow::Result<Self> {
        let path = credentials_directory(directory).join(ATTEMPT);
        let kept = match std::fs::read(&path) {
            // A damaged one proves nothing.
            Ok(text) => serde_json::from_slice::<Kept>(&text).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        let ticket = ticket.digest();
        Ok(match kept.filter(|kept| kept.ticket == ticket) {
            Some(Kept { host, .. }) => Self { path, ticket, host, is_again: true },
            None => Self { path, ticket, host: random_name()?, is_again: false },
        })
    }

    fn keep(&self) -> anyhow::Result<()> {
        let kept = Kept { ticket: self.ticket.clone(), host: self.host.clone() };
        write(&self.path, &serde_json::to_vec(&kept)?)
    }

    /// Forgets an attempt that has failed for good. If the host belongs to a fleet, its credentials stay, and so
    /// does this file.
    fn forget(&self, belongs_to_fleet: bool) {
        if !belongs_to_fleet {
            let _ = std::fs::remove_file(&self.path);
            self.path.parent().into_iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
        }
    }
}

/// What joining writes: the ticket's credentials, and the `fleet.toml` that names them.
struct Files {
    config: FleetConfig,
    credentials: Vec<(PathBuf, String)>,
}

impl Files {
    /// The files to write. `is_again`: an earlier attempt with this ticket may have left them.
    ///
    /// # Errors
    /// If one of them exists.
    fn of(directory: &Path, ticket: &Ticket, is_again: bool) -> anyhow::Result<Self> {
        let mut credentials = Vec::new();
        let mut file = |name: &str, content: Option<&String>| {
            let Some(content) = content else { return Ok(None) };
            let path = std::path::absolute(credentials_directory(directory).join(name))?;
            // Unlike `exists`, this also finds a link that leads nowhere.
            if !is_again && std::fs::symlink_metadata(&path).is_ok() {
                bail!("{} exists and stays as it is; move it away, then run this again", path.display());
            }
            credentials.push((path.clone(), content.clone()));
            Ok(Some(path))
        };
        let identity = ticket.identity.as_ref();
        let store = StoreConfig {
            endpoints: ticket.endpoints.clone(),
            ca: file("store-ca.pem", ticket.ca.as_ref())?,
            certificate: file("store.pem", identity.map(|(certificate, _)| certificate))?,
            key: file("store.key", identity.map(|(_, key)| key))?,
            user: ticket.user.as_ref().map(|(user, _)| user.clone()),
            password_file: file("store.password", ticket.user.as_ref().map(|(_, password)| password))?,
        };
        let config = FleetConfig { fleet: ticket.fleet.clone(), exit: ticket.exit.clone(), store };
        Ok(Self { config, credentials })
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        for (path, content) in &self.credentials {
            write(path, content.as_bytes())?;
        }
        write_config(directory, &self.config)
    }

    fn remove(&self, directory: &Path) {
        for (path, _) in &self.credentials {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_dir(credentials_directory(directory));
        let _ = std::fs::remove_file(FleetConfig::path(directory));
    }
}

#[cfg(test)]
mod tests {
    use super::super::ticket::tests::a_ticket;
    use super::*;

    #[test]
    fn a_refused_join_leaves_no_secret_and_touches_no_file_that_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::of(directory.path(), &a_ticket(), false).unwrap();
        files.write(directory.path()).unwrap();
        assert!(directory.path().join("fleet/store.password").exists());
        files.remove(directory.path());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

        let own = directory.path().join("fleet/store.password");
        std::fs::create_dir(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "mine").unwrap();
        let refused = Files::of(directory.path(), &a_ticket(), false).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("store.password exists"), "{refused}");
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "mine");
    }

    #[test]
    fn a_ticket_is_read_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ticket");
        std::fs::write(&path, a_ticket().text().unwrap() + "\n").unwrap();
        let text = text_of(&format!("@{}", path.display())).unwrap();
        assert_eq!(Ticket::parse(&text).unwrap(), a_ticket());
        assert!(text_of("@/nonexistent").unwrap_err().to_string().contains("/nonexistent"));
    }

    #[test]
    fn an_attempt_is_known_again_by_its_ticket_and_another_ticket_begins_another() {
        let directory = tempfile::tempdir().unwrap();
        let first = Attempt::of(directory.path(), &a_ticket()).unwrap();
        assert!(!first.is_again);
        first.keep().unwrap();
        let again = Attempt::of(directory.path(), &a_ticket()).unwrap();
        assert!(again.is_again && again.host == first.host);
        let other = Ticket { secret: "y".to_owned(), ..a_ticket() };
        assert!(!Attempt::of(directory.path(), &other).unwrap().is_again);
        // Files of the earlier attempt are no obstacle. Files of another one are.
        Files::of(directory.path(), &a_ticket(), true).unwrap().write(directory.path()).unwrap();
        assert!(Files::of(directory.path(), &a_ticket(), true).is_ok());
        assert!(Files::of(directory.path(), &other, false).is_err());
    }
}
