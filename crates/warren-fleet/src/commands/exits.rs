//! `warren fleet drain` and `warren fleet remove`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use warren_fleet_link::ExitId;

use super::roster::{self, InRoster};
use super::ticket::AdminArguments;
use super::{Connected, connect, print};
use crate::keys::Key;
use crate::membership::leaving;
use crate::run::Directories;
use crate::store::{has_found, in_words};
use crate::users::{self, user_name};

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
    /// Remove it even if it serves clients now.
    #[arg(long)]
    force: bool,
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
    let mut fleet = connect(directories.config).await?;
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

/// Removes an exit from the fleet, or the tickets of an exit that has not joined. In both cases, also removes the exit's etcd
/// user. The link of a removed exit stops using the store at once.
///
/// # Errors If the fleet has no such exit, the exit is alive and `--force` is missing, or its user may not be removed. Then nothing
/// is changed.
pub(crate) async fn remove(directories: Directories<'_>, arguments: &RemoveArguments) -> anyhow::Result<()> {
    let fleet_key = arguments.fleet_key.as_deref().map(roster::read_key).transpose()?;
    let mut fleet = connect(directories.config).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    // Taking the exit out is final, so everything that can be checked is checked before.
    let in_roster = roster::sign_without(&mut fleet, directories.state, &exit, fleet_key.as_ref()).await?;
    check_right(&mut fleet, &exit, &arguments.admin).await?;
    // The tickets are voided first, so that no host joins in between. A member has no tickets.
    let had_tickets = users::void_tickets(&mut fleet.client, &fleet.keys, &exit).await?;
    let was_member = take_out(&mut fleet, &exit, arguments.force).await?;
    let is_known =
        was_member || had_tickets || users::granted(&mut fleet.client, &fleet.keys, &exit).await?.is_some();
    let roster = match in_roster {
        InRoster::Without(signed) => {
            let (stored, signed) = *signed;
            let again = || format!("{exit} is out of the fleet, but still in the roster; run this again");
            roster::store(&mut fleet, &stored, &signed).await.with_context(again)?;
            format!("{exit} is no longer in the roster. {}", roster::summary(&signed))
        }
        InRoster::Yes => format!(
            "Clients still find it in the roster: run `warren fleet remove {exit} --fleet-key FILE`.\n"
        ),
        InRoster::No => String::new(),
    };
    let had_user = match remove_user(&fleet, &exit, &arguments.admin).await {
        Err(_) if !is_known => false,
        removed => removed.with_context(|| {
            format!(
                "{exit} is out of the fleet and its tickets are void, but its etcd user, {}, may still exist: run this again \
                 with --admin and --admin-password-file",
                user_name(&fleet.config.fleet, &exit)
            )
        })?,
    };
    let what = match (was_member, is_known || had_user) {
        (true, _) => format!("{exit} is removed from the fleet.\n"),
        (false, true) => format!(
            "{exit} is not in the fleet. Any tickets and etcd user that it still had are now removed.\n"
        ),
        (false, false) if roster.is_empty() => {
            bail!("the fleet has no exit {exit}; `warren fleet status` lists all")
        }
        (false, false) => String::new(),
    };
    print(&format!("{what}{roster}"))
}

/// Checks that the command may remove the exit's etcd user.
///
/// # Errors
/// If it may not, and the fleet knows the exit.
async fn check_right(fleet: &mut Connected, exit: &ExitId, admin: &AdminArguments) -> anyhow::Result<()> {
    let name = user_name(&fleet.config.fleet, exit);
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

/// Takes an exit out of the fleet. Returns whether it was a member.
///
/// # Errors If the exit is alive and `is_forced` is not set.
async fn take_out(fleet: &mut Connected, exit: &ExitId, is_forced: bool) -> anyhow::Result<bool> {
    let member = fleet.keys.name(&Key::Member(exit.clone()));
    let mut compares = vec![Compare::version(member.as_str(), CompareOp::Greater, 0)];
    if !is_forced {
        let heartbeat = fleet.keys.name(&Key::Heartbeat(exit.clone()));
        compares.push(Compare::version(heartbeat, CompareOp::Equal, 0));
    }
    let then = leaving(&fleet.keys, exit)?;
    let look = TxnOp::get(member, None);
    let answer = in_words(fleet.client.txn(Txn::new().when(compares).and_then(then).or_else([look])).await)?;
    if !answer.succeeded() && answer.op_responses().iter().any(has_found) {
        bail!("{exit} serves clients now; drain and stop it first, or use --force");
    }
    Ok(answer.succeeded())
}

/// Removes the etcd user of an exit that is not in the fleet. Returns whether there was one.
async fn remove_user(fleet: &Connected, exit: &ExitId, admin: &AdminArguments) -> anyhow::Result<bool> {
    users::remove_of(&mut admin.connect(fleet).await?, &fleet.keys, exit).await
}
