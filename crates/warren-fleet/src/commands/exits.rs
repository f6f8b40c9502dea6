//! `warren fleet drain` and `warren fleet remove`.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use warren_fleet_link::ExitId;

use super::roster::{self, InRoster};
use super::ticket::AdminArguments;
use super::{Connected, connect, print};
use crate::config::{exit_toml, is_there};
use crate::exits::Removal;
use crate::keys::Key;
use crate::membership::{confirm_removal, take_out};
use crate::run::Directories;
use crate::snapshot::StateDirectory;
use crate::store::{ended, get, has_found, in_words};
use crate::users::{self, user_name};

/// How long to wait until a removed exit confirms that it stops serving. Its link looks at the store every two seconds.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(8);

/// `warren fleet drain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DrainArguments {
    /// The exit's name.
    exit: String,
    /// Accept clients again.
    #[arg(long)]
    end: bool,
}

/// `warren fleet remove`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RemoveArguments {
    /// The exit's name.
    exit: String,
    /// Remove the exit even if it serves clients now. It then stops serving them.
    #[arg(long, conflicts_with = "stopped")]
    force: bool,
    /// Declare that the exit no longer runs. It then counts as stopped, even if it has not confirmed its removal.
    #[arg(long)]
    stopped: bool,
    /// The file of the fleet key, to sign a roster without the exit.
    #[arg(long, value_name = "FILE")]
    fleet_key: Option<PathBuf>,
    #[command(flatten)]
    admin: AdminArguments,
}

/// Makes an exit send its clients to other exits, or accept clients again.
///
/// # Errors
/// If the fleet has no such exit.
pub(crate) async fn drain(directories: Directories<'_>, arguments: &DrainArguments) -> anyhow::Result<()> {
    let mut fleet = connect(&directories).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    let is_member = Compare::version(fleet.keys.name(&Key::Member(exit.clone())), CompareOp::Greater, 0);
    let look = TxnOp::get(fleet.keys.name(&Key::Heartbeat(exit.clone())), None);
    let key = fleet.keys.name(&Key::Drain(exit.clone()));
    let operation = if arguments.end { TxnOp::delete(key, None) } else { TxnOp::put(key, "1", None) };
    let answer = in_words(fleet.client.txn(Txn::new().when([is_member]).and_then([operation, look])).await)?;
    if !answer.succeeded() {
        bail!("the fleet has no exit {exit}; `warren fleet status` lists all");
    }
    let what = if arguments.end { "accepts clients again" } else { "sends its clients to other exits" };
    let is_alive = answer.op_responses().iter().any(has_found);
    let when = if is_alive { "" } else { " once it is linked to the store; it is not linked now" };
    print(&format!("{exit} {what}{when}.\n"))
}

/// Removes an exit from the fleet, or the tickets of an exit that has not joined. A live exit gets a few seconds to confirm that it stops
/// serving. If it does so, its etcd user is removed. Otherwise the user is only confined.
///
/// # Errors
/// If the fleet has no such exit, the exit is alive and `--force` is missing, or this command may not remove the exit's etcd user. Nothing
/// is changed in these cases.
pub(crate) async fn remove(directories: Directories<'_>, arguments: &RemoveArguments) -> anyhow::Result<()> {
    let fleet_key = arguments.fleet_key.as_deref().map(roster::read_key).transpose()?;
    let mut fleet = connect(&directories).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    // Taking the exit out is final, so everything that can be checked is checked first.
    let in_roster = roster::sign_without(&mut fleet, directories.state, &exit, fleet_key.as_ref()).await?;
    let is_here = is_here(&directories, &fleet, &exit)?;
    check_right(&mut fleet, &exit, is_here, &arguments.admin).await?;
    // The tickets are voided first, so that no host joins in between. A member has no tickets.
    let had_tickets = users::void_tickets(&mut fleet.client, &fleet.keys, &exit).await?;
    let had_grant = users::granted(&mut fleet.client, &fleet.keys, &exit).await?.is_some();
    let heartbeat = fleet.keys.name(&Key::Heartbeat(exit.clone()));
    let is_alive = !in_words(fleet.client.get(heartbeat, None).await)?.kvs().is_empty();
    let was_member = take_out(&mut fleet.client, &fleet.keys, &exit, arguments.force).await?;
    if was_member {
        // While this command waits, the exit's user can only read and confirm the removal. A failure is reported below.
        let _ = end_user(&mut fleet, &exit, &arguments.admin).await;
    }
    // If an earlier command was interrupted, the exit still has its user, and may still confirm its removal.
    let may_confirm = if was_member { is_alive } else { had_grant };
    let left = left_serving(&mut fleet, &exit, arguments.stopped, may_confirm).await.with_context(|| {
        format!(
            "{exit} is out of the fleet, but it is not known whether it still serves clients; run this again"
        )
    })?;
    let Left { clause: serving, may_serve } = left;
    let is_known = was_member || had_tickets || had_grant || !serving.is_empty();
    let is_listed = matches!(in_roster, InRoster::Yes | InRoster::Without(_));
    let roster = store_roster(&mut fleet, &exit, in_roster).await.with_context(|| {
        format!("{exit} is out of the fleet{serving}. It is still in the roster, so run this again")
    })?;
    let user = match end_user(&mut fleet, &exit, &arguments.admin).await {
        Err(_) if !is_known => User::None,
        removed => removed.with_context(|| {
            format!(
                "{exit} is out of the fleet{serving}. Its tickets are void, but its etcd user, {}, may still exist, so run this again \
                 with --admin and --admin-password-file",
                user_name(&fleet.config.fleet, &exit)
            )
        })?,
    };
    if user == User::OfNewMember {
        return print(&format!("{}{roster}", joined_again(&exit, was_member)));
    }
    let had_user = user == User::Ended;
    let what = match (was_member, is_known || had_user) {
        (true, _) => format!("{exit} is removed from the fleet{serving}.\n"),
        (false, true) if may_serve => format!("{exit} is not in the fleet{serving}.\n"),
        (false, true) => format!(
            "{exit} is not in the fleet{serving}. Any tickets and etcd user that it still had are now removed.\n"
        ),
        (false, false) if !is_listed => {
            bail!("the fleet has no exit {exit}; `warren fleet status` lists all")
        }
        (false, false) => format!("{exit} is not in the fleet.\n"),
    };
    let access = if may_serve { access_left(&fleet, &exit, had_user).await? } else { String::new() };
    print(&format!("{what}{access}{roster}"))
}

/// Whether this host is the exit. A machine of the operator may have a `fleet.toml` with the same name.
fn is_here(directories: &Directories<'_>, fleet: &Connected, exit: &ExitId) -> anyhow::Result<bool> {
    let is_exit =
        is_there(&exit_toml(directories.config))? || StateDirectory::new(directories.state).has_copy()?;
    Ok(is_exit && fleet.config.exit == *exit)
}

/// Checks that the command may remove the exit's etcd user. `is_here`: this host is the exit.
///
/// # Errors
/// If the command may not do so, although the fleet knows the exit.
async fn check_right(
    fleet: &mut Connected,
    exit: &ExitId,
    is_here: bool,
    admin: &AdminArguments,
) -> anyhow::Result<()> {
    let name = user_name(&fleet.config.fleet, exit);
    // A user can see itself, but cannot remove itself.
    if admin.user(fleet)?.is_some_and(|user| user == name) {
        bail!(
            "nothing was changed, because {exit} cannot remove its own etcd user, {name}; take this exit out of its fleet with \
             `warren fleet leave`, or give --admin and --admin-password-file"
        );
    }
    if is_here && !admin.is_given() {
        bail!(
            "nothing was changed, because this host is {exit} itself; take it out of its fleet with `warren fleet leave`, or remove it from \
             another host"
        );
    }
    let looked = users::is_there(&admin.connect(fleet).await?, &name).await;
    let member = in_words(fleet.client.get(fleet.keys.name(&Key::Member(exit.clone())), None).await)?;
    let is_known =
        !member.kvs().is_empty() || users::granted(&mut fleet.client, &fleet.keys, exit).await?.is_some();
    match looked {
        Err(error) if is_known => Err(error).with_context(|| {
            format!(
                "nothing was changed, because the etcd user {name} could not be removed; run this at an exit whose own etcd user may \
                 remove users, such as the first one, or give --admin and --admin-password-file"
            )
        }),
        Err(_) | Ok(_) => Ok(()),
    }
}

/// Whether a removed exit may still serve clients.
struct Left {
    /// A clause that tells the operator. Empty if there is nothing to say.
    clause: String,
    may_serve: bool,
}

/// Finds out whether a removed exit may still serve clients. `says_stopped`: the operator knows that the exit no longer runs.
/// `may_confirm`: the exit may be linked to the store, so it gets some time to confirm that it stops.
async fn left_serving(
    fleet: &mut Connected,
    exit: &ExitId,
    says_stopped: bool,
    may_confirm: bool,
) -> anyhow::Result<Left> {
    if says_stopped && confirm_removal(&mut fleet.client, &fleet.keys, exit, None).await? {
        let clause = ", and counts as stopped from now on".to_owned();
        return Ok(Left { clause, may_serve: false });
    }
    let began = Instant::now();
    loop {
        let removal = ended(&mut fleet.client, &fleet.keys, exit).await?.and_then(|removed| removed.removal);
        // Without this value, the exit has joined again or has left.
        let Some(removal) = removal.filter(|removal| removal.may_serve(SystemTime::now())) else {
            return Ok(Left { clause: String::new(), may_serve: false });
        };
        if may_confirm && began.elapsed() < CONFIRMED_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        let how_long = Removal::how_long(removal.until, SystemTime::now());
        let clause = format!(
            ", but it has not confirmed that it stops serving. If it still runs, it may serve the fleet's clients {how_long}, even clients \
             that you remove now. Stop it on its host, and then run `warren fleet remove {exit} --stopped`, so that it no longer counts as \
             serving"
        );
        return Ok(Left { clause, may_serve: true });
    }
}

/// Stores the roster without the exit. Returns what to tell the operator about the roster.
async fn store_roster(fleet: &mut Connected, exit: &ExitId, in_roster: InRoster) -> anyhow::Result<String> {
    Ok(match in_roster {
        InRoster::Without(signed) => {
            let (stored, signed) = *signed;
            roster::store(fleet, &stored, &signed).await?;
            format!("{exit} is no longer in the roster. {}", roster::summary(&signed))
        }
        InRoster::Yes => format!(
            "Clients still find it in the roster: run `warren fleet remove {exit} --fleet-key FILE`.\n"
        ),
        InRoster::Unreadable(error) => format!(
            "Clients may still find it in the roster: {error:#}.\nThen run `warren fleet remove {exit} --fleet-key FILE`.\n"
        ),
        InRoster::No => String::new(),
    })
}

/// What has become of the etcd user of an exit that was taken out of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// There was none.
    None,
    /// The user is removed, or confined.
    Ended,
    /// A host has joined under the exit's name in the meantime, and uses it.
    OfNewMember,
}

/// Removes the etcd user of an exit that is not in the fleet. If the exit may still serve, the user stays, so that the exit learns of
/// its removal, and has no other right.
async fn end_user(fleet: &mut Connected, exit: &ExitId, admin: &AdminArguments) -> anyhow::Result<User> {
    let mut client = admin.connect(fleet).await?;
    let was_there = match users::granted(&mut fleet.client, &fleet.keys, exit).await? {
        None => users::remove_of(&mut client, &fleet.keys, exit).await?,
        Some(granted) => {
            let was_there = users::is_there(&client, &user_name(&fleet.config.fleet, exit)).await?;
            // This changes nothing if somebody has made a new ticket in the meantime, or a host has joined with one.
            users::end(&mut client, &fleet.keys, &granted).await?;
            let member = fleet.keys.name(&Key::Member(exit.clone()));
            if granted.grant.host.is_some() && get(&mut fleet.client, &member).await?.is_some() {
                return Ok(User::OfNewMember);
            }
            was_there
        }
    };
    Ok(if was_there { User::Ended } else { User::None })
}

/// Says that a host has joined under the name of a removed exit while the command ran.
fn joined_again(exit: &ExitId, was_member: bool) -> String {
    let what = if was_member { "is removed from the fleet" } else { "was not in the fleet" };
    format!(
        "{exit} {what}. In the meantime, a host has joined the fleet under this name with a new ticket, and stays in it. To remove that \
         one, run `warren fleet remove {exit}` again.\n"
    )
}

/// Says what an exit can still do in the store as long as it has not heard of its removal.
async fn access_left(fleet: &Connected, exit: &ExitId, had_user: bool) -> anyhow::Result<String> {
    let is_confined = had_user && !fleet.config.store.options()?.is_open_to_all().await;
    Ok(match is_confined {
        true => format!(
            "{exit} stops as soon as it reaches the store. Its etcd user can do nothing else there.\n"
        ),
        false => {
            format!(
                "No etcd user restricts {exit}. It can still use the store with another user, or if etcd's authentication is off.\n"
            )
        }
    })
}
