//! `warren fleet join`: makes a host an exit of a fleet, with a ticket.
//!
//! A ticket works for one host. If anything fails, the same host may use the ticket again until it has joined. For this, the host
//! draws a secret and keeps it in a file before it uses the ticket. From this secret, the store learns which host has used the
//! ticket. `fleet.toml` gets its name last. If the command is killed, the next one finishes or undoes what was begun
//! (`attempt.rs`).

use std::io::Read as _;
use std::time::SystemTime;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use serde::Serialize;
use tokio::time::timeout;
use warren_config::counted;
use warren_config::storage::{remove_abandoned, remove_leftovers};
use warren_fleet_link::{ExitId, Pools};
use warren_session::clients::ClientRegistry;

use super::attempt::{Attempt, Files};
use super::bring::{self, own_registry};
use super::files::{begin_exits_file, credentials_directory, forget_exits_file, lock};
use super::ticket::{Ticket, seconds};
use super::{print, print_json, read_meta};
use crate::config::{FleetConfig, is_absent};
use crate::exits::Member;
use crate::keys::{Key, Keys};
use crate::link::{Transaction, pools_text};
use crate::meta::Meta;
use crate::planted::reached;
use crate::run::Directories;
use crate::snapshot::StateDirectory;
use crate::store::{ANSWER_TIMEOUT, StoreOptions, Transact as _, get, in_words, is_refused, pairs_of};
use crate::transaction::Expected;
use crate::users;

/// `warren fleet join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArguments {
    /// What `warren fleet ticket` has printed; `-` to read it from standard input, or @FILE to read it from a file. Every user of
    /// this host can see command lines. If joining has failed, give the same ticket again.
    #[arg(value_name = "TICKET|-|@FILE")]
    ticket: String,
    /// Bring this exit's own clients, open invitations and removed keys into the fleet. If one of them collides with a client of the
    /// fleet, nothing is changed. Clients stay enrolled, and disabled clients stay disabled.
    #[arg(long, conflicts_with = "replace_clients")]
    bring_clients: bool,
    /// Join even if this exit has clients of its own. The fleet's clients replace them.
    #[arg(long)]
    replace_clients: bool,
    /// Print the exit's name and the fleet's inner prefixes as JSON.
    #[arg(long)]
    json: bool,
}

/// The output of `warren fleet join --json`.
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
    let _lock = lock(&directories)?;
    let attempt = Attempt::of(directories.config, &ticket)?;
    let is_named = attempt.is_named(&ticket)?;
    let brought = own_clients(&directories, arguments, is_named)?;
    if !attempt.is_again {
        if ticket.expires <= seconds(SystemTime::now()) {
            bail!("this ticket has expired; get another one with `warren fleet ticket {}`", ticket.exit);
        }
        settle_earlier(&directories).await?;
    }
    let files = Files::of(directories.config, &ticket, attempt.is_again)?;
    let meta = take_place(&ticket, &attempt, &files, is_named, brought.as_ref()).await?;
    finish(&attempt, is_named, brought.is_some(), &directories)?;
    let config = files.config;
    if arguments.json {
        return print_json(&Joined { fleet: &config.fleet, exit: &config.exit, pools: &meta.pools });
    }
    let pools = pools_text(&meta.pools);
    let brought = brought.as_ref().map(summary).unwrap_or_default();
    print(&format!(
        "This exit is {} of fleet {:?}. {} is written.\n{brought}Next: give exit.toml the prefixes {pools} in `[addresses]`, and `[fleet]` with \
         `name = \"{}\"`. Then start the exit and warren-fleet.service.\n",
        config.exit,
        config.fleet,
        FleetConfig::path(directories.config).display(),
        config.exit,
    ))
}

/// The clients to bring into the fleet, if the operator asks for it. Without an instruction, this host's exit must have no clients,
/// because they would be lost. Once `fleet.toml` has its name, an earlier command has taken care of them.
///
/// # Errors
/// If the exit has clients and the operator does not say what to do with them, or its clients cannot be read.
fn own_clients(
    directories: &Directories<'_>,
    arguments: &JoinArguments,
    is_named: bool,
) -> anyhow::Result<Option<ClientRegistry>> {
    // Once a link has run here, the exit has the fleet's clients, perhaps in an outdated copy.
    let has_run = is_named && StateDirectory::new(directories.state).was_used()?;
    if arguments.bring_clients {
        return (!has_run).then(|| own_registry(directories)).transpose();
    }
    if is_named || arguments.replace_clients {
        return Ok(None);
    }
    let own = own_registry(directories)?;
    let open = own.open_invitations(SystemTime::now()).len();
    if own.is_empty() && open == 0 {
        return Ok(None);
    }
    bail!(
        "nothing was changed, because this exit has {} and {} of its own, and the fleet's would replace them; run this again with \
         --bring-clients to bring them into the fleet, or with --replace-clients to give them up",
        counted(own.len(), "client"),
        counted(open, "open invitation")
    )
}

/// Says what this exit has brought into the fleet.
fn summary(own: &ClientRegistry) -> String {
    format!(
        "The fleet has its {} and {} now. Unless the exit is stopped already, stop it now (`systemctl stop warren-exit`) and run this command \
         once more with the same ticket: it adds what clients have done here in the meantime, such as redeeming an invitation. Do not change \
         clients here before that, because the change could collide with the fleet's clients.\n",
        counted(own.len(), "client"),
        counted(own.open_invitations(SystemTime::now()).len(), "open invitation")
    )
}

/// Names `fleet.toml`, because the ticket was used. Before that, removes the copies that an earlier fleet may have left, and makes the
/// exit read the fleet's clients before it serves anybody.
///
/// An exit that has brought its clients serves them at once, because the fleet has them.
fn finish(
    attempt: &Attempt,
    is_named: bool,
    brings: bool,
    directories: &Directories<'_>,
) -> anyhow::Result<()> {
    if !is_named {
        StateDirectory::new(directories.state).clear()?;
        match brings {
            true => forget_exits_file(directories)?,
            false => begin_exits_file(directories)?,
        }
    }
    // A command that was killed while it wrote the credentials may have left a part of them. This command has the lock.
    remove_leftovers(&credentials_directory(directories.config));
    remove_abandoned(directories.config);
    attempt.finish()
}

/// Writes the files and uses the ticket. If the ticket is refused, removes the files again. If the temporary file was already
/// renamed to `fleet.toml`, leaves the files alone in both cases. `brought`: the clients of this exit that go into the fleet.
async fn take_place(
    ticket: &Ticket,
    attempt: &Attempt,
    files: &Files,
    is_named: bool,
    brought: Option<&ClientRegistry>,
) -> anyhow::Result<Meta> {
    let refused = |error| {
        if !is_named && let Err(left) = attempt.undo() {
            tracing::warn!("not all files of this attempt are removed: {left:#}");
        }
        error
    };
    let unknown = |error: anyhow::Error| {
        error.context(
            "it is not known whether the store has accepted the ticket; run this again with the same one",
        )
    };
    let Ticket { endpoints, ca, identity, user, .. } = ticket.clone();
    let (ca_name, certificate_name) =
        ("the CA in the ticket".to_owned(), "the ticket's certificate".to_owned());
    let options = StoreOptions { endpoints, ca, identity, user, ca_name, certificate_name };
    let (client, meta) = match look(&options, ticket).await {
        Ok(looked) => looked,
        Err(Looked::Void(error)) => return Err(refused(error)),
        Err(Looked::Failed(error)) => return Err(error),
    };
    let keys = Keys::new(&ticket.fleet);
    if let Some(own) = brought {
        bring::check(&client, &keys, own, &meta.pools).await?;
    }
    // The files are written before the ticket is used. Without them the exit could not reach the store.
    if !is_named && let Err(error) = attempt.begin(files) {
        return Err(if attempt.is_again { unknown(error) } else { refused(error) });
    }
    match use_up(&options, client, ticket, attempt, brought.is_some()).await {
        Used::ByThisHost => {
            reached("ticket used");
            if let Some(own) = brought {
                let store = options.connect_any().await;
                let brought = async { bring::bring(store?, &keys, own, &meta.pools).await };
                brought.await.context(
                    "the ticket is used, but not all clients of this exit are in the fleet; run this again with the same ticket",
                )?;
            }
            Ok(meta)
        }
        Used::Refused(error) => Err(refused(error)),
        Used::Unknown(error) => Err(unknown(error)),
    }
}

/// Finishes or undoes an unfinished attempt with another ticket.
///
/// # Errors
/// If that attempt has made this host an exit, or the store does not say whether it has.
async fn settle_earlier(directories: &Directories<'_>) -> anyhow::Result<()> {
    let directory = directories.config;
    let Some(earlier) = Attempt::find(directory)? else { return Ok(()) };
    let config = earlier.pending_config().with_context(|| {
        let pending = earlier.pending();
        format!(
            "an earlier `warren fleet join` with another ticket was interrupted, and {} cannot be used; correct it, or delete it to give \
             that one up",
            pending.display()
        )
    })?;
    let Some(config) = config else {
        // The earlier attempt has not used its ticket yet.
        return earlier.undo();
    };
    let has_joined = has_joined(&config, &earlier).await.with_context(|| {
        format!(
            "an earlier `warren fleet join` with another ticket was interrupted, and may have made this host the exit {} of fleet {:?}; run \
             this again when its store answers, or delete {} to give it up",
            config.exit,
            config.fleet,
            earlier.pending().display()
        )
    })?;
    if !has_joined {
        return earlier.undo();
    }
    finish(&earlier, false, false, directories)?;
    bail!(
        "an earlier `warren fleet join` with another ticket has made this host the exit {} of fleet {:?} before it was ended, and {} is written \
         now; leave that fleet with `warren fleet leave` first",
        config.exit,
        config.fleet,
        FleetConfig::path(directory).display()
    )
}

/// Whether the store says that this host has used the ticket of an earlier attempt.
async fn has_joined(config: &FleetConfig, earlier: &Attempt) -> anyhow::Result<bool> {
    let options = match config.store.options() {
        // Without its credentials, no host can have become this exit.
        Err(error) if error.downcast_ref().is_some_and(is_absent) => return Ok(false),
        options => options?,
    };
    let granted = async {
        let mut client = options.connect_any().await?;
        users::granted(&mut client, &config.keys(), &config.exit).await
    };
    match granted.await {
        Ok(granted) => Ok(granted.is_some_and(|granted| granted.grant == earlier.grant())),
        Err(error) if is_refused(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Why the fleet's settings could not be read from the store.
enum Looked {
    /// The store refuses the ticket's user.
    Void(anyhow::Error),
    Failed(anyhow::Error),
}

/// Connects with the ticket's credentials, and reads the fleet's agreement.
async fn look(options: &StoreOptions, ticket: &Ticket) -> Result<(Client, Meta), Looked> {
    let looked = async {
        let mut client = options.connect_any().await?;
        let meta = read_meta(&mut client, &Keys::new(&ticket.fleet)).await?;
        let meta = meta.with_context(|| format!("the store no longer has the fleet {:?}", ticket.fleet))?;
        anyhow::Ok((client, meta))
    };
    looked.await.map_err(|error| match is_refused(&error) {
        true => Looked::Void(anyhow!(
            "the store does not know this ticket's user any more, because the ticket has expired or is void; get another one with \
             `warren fleet ticket {}`",
            ticket.exit
        )),
        false => Looked::Failed(error),
    })
}

/// The outcome of redeeming a ticket.
enum Used {
    /// This host has used the ticket, now or before.
    ByThisHost,
    /// The attempt was refused, and nothing was changed.
    Refused(anyhow::Error),
    /// The store's answer is lost.
    Unknown(anyhow::Error),
}

/// Redeems the ticket, which makes this host a member of the fleet. If an answer is lost, asks another member of the store. `brings`:
/// whether this host brings its clients.
async fn use_up(
    options: &StoreOptions,
    mut client: Client,
    ticket: &Ticket,
    attempt: &Attempt,
    brings: bool,
) -> Used {
    let keys = Keys::new(&ticket.fleet);
    let mut tries = 0;
    loop {
        let trying = try_to_use_up(&mut client, &keys, ticket, attempt, brings);
        let tried = timeout(ANSWER_TIMEOUT * 5, trying).await;
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
    attempt: &Attempt,
    brings: bool,
) -> anyhow::Result<Used> {
    let (key, member) = (ticket.key(keys), keys.name(&Key::Member(ticket.exit.clone())));
    let grant = keys.grant(&ticket.exit);
    // An exit of this name may have been removed earlier.
    let removed = keys.name(&Key::RemovedExit(ticket.exit.clone()));
    let used = attempt.grant();
    let joining = Member { brings, ..attempt.member()? };
    let compares = [
        Compare::version(key.as_str(), CompareOp::Greater, 0),
        Compare::version(member.as_str(), CompareOp::Equal, 0),
    ];
    let then = [
        TxnOp::delete(key.as_str(), None),
        TxnOp::delete(removed, None),
        TxnOp::put(member.as_str(), serde_json::to_vec(&joining)?, None),
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
        if brings {
            note_bringing(client, &member).await?;
        }
        return Ok(Used::ByThisHost);
    }
    let exit = &ticket.exit;
    // If the ticket is still unused, the attempt was refused because the name is taken.
    Ok(Used::Refused(match has(&key) {
        true => anyhow!("the fleet has an exit {exit} already; get a ticket with another name"),
        false => anyhow!(
            "this ticket was used by another host, has expired or is void; get another one with `warren fleet ticket {exit}`"
        ),
    }))
}

/// Writes that the exit brings its clients. An earlier command without `--bring-clients` may have used the ticket.
async fn note_bringing(client: &mut Client, key: &str) -> anyhow::Result<()> {
    let Some(pair) = get(client, key).await? else { return Ok(()) };
    let Some(member) = pair.parse::<Member>("exit").filter(Member::serves_nobody) else { return Ok(()) };
    let expected = [(key.to_owned(), Expected::Modified(pair.modified))].into();
    let then = [(key.to_owned(), Some(serde_json::to_vec(&Member { brings: true, ..member })?))].into();
    let transaction = Transaction { expected, then, ..Transaction::default() };
    client.transact(&transaction).await?.context("the exit's entry in the store has just changed")?;
    Ok(())
}

/// The ticket itself, or the content of standard input or of a file.
fn text_of(argument: &str) -> anyhow::Result<String> {
    /// No ticket is longer than this.
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

#[cfg(test)]
mod tests {
    use super::super::ticket::tests::a_ticket;
    use super::*;

    #[test]
    fn a_ticket_is_read_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ticket");
        std::fs::write(&path, a_ticket().text().unwrap() + "\n").unwrap();
        let text = text_of(&format!("@{}", path.display())).unwrap();
        assert_eq!(Ticket::parse(&text).unwrap(), a_ticket());
        assert!(text_of("@/nonexistent").unwrap_err().to_string().contains("/nonexistent"));
    }

    #[tokio::test]
    async fn an_earlier_attempt_of_which_a_file_cannot_be_read_keeps_its_credentials() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::of(directory.path(), &a_ticket(), false).unwrap();
        let attempt = Attempt::of(directory.path(), &a_ticket()).unwrap();
        attempt.begin(&files).unwrap();
        let path = |name: &str| directory.path().join(name);
        let (config, runtime, state) = (directory.path(), directory.path(), directory.path());
        let settled = async || {
            let directories = Directories { config, runtime, state };
            settle_earlier(&directories).await.map_err(|error| format!("{error:#}"))
        };

        // A directory cannot be read as a file, not even by root.
        let password = std::fs::read(path("fleet/store.password")).unwrap();
        std::fs::remove_file(path("fleet/store.password")).unwrap();
        std::fs::create_dir(path("fleet/store.password")).unwrap();
        let refused = settled().await.unwrap_err();
        assert!(
            refused.contains("may have made this host") && refused.contains("store.password cannot be read"),
            "{refused}"
        );
        std::fs::remove_dir(path("fleet/store.password")).unwrap();
        std::fs::write(path("fleet/store.password"), password).unwrap();

        let pending = std::fs::read(attempt.pending()).unwrap();
        std::fs::write(attempt.pending(), "damaged").unwrap();
        let refused = settled().await.unwrap_err();
        assert!(refused.contains("fleet.toml.joining cannot be used; correct it"), "{refused}");
        assert!(path("fleet/store-ca.pem").exists() && path("fleet/store.password").exists());

        // The control: without its credentials, no host can have joined.
        std::fs::write(attempt.pending(), pending).unwrap();
        std::fs::remove_file(path("fleet/store.password")).unwrap();
        settled().await.unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
