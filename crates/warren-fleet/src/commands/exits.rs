//! `warren fleet drain` and `warren fleet remove`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use warren_fleet_link::ExitId;

use super::ticket::{revoke, user_name};
use super::{connect, print, roster};
use crate::keys::Key;
use crate::run::Directories;
use crate::store::{has_found, in_words};

/// `warren fleet drain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DrainArguments {
    /// The exit's name.
    exit: String,
    /// Take clients again.
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
}

/// Makes an exit send its clients to other exits, or take clients again.
///
/// # Errors
/// If the fleet has no such exit.
pub(crate) async fn drain(directories: Directories<'_>, arguments: &DrainArguments) -> anyhow::Result<()> {
    let mut fleet = connect(directories.config).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    let is_member = Compare::version(fleet.keys.name(&Key::Member(exit.clone())), CompareOp::Greater, 0);
    let key = fleet.keys.name(&Key::Drain(exit.clone()));
    let operation = if arguments.end { TxnOp::delete(key, None) } else { TxnOp::put(key, "1", None) };
    let answer = in_words(fleet.client.txn(Txn::new().when([is_member]).and_then([operation])).await)?;
    if !answer.succeeded() {
        bail!("the fleet has no exit {exit}; `warren fleet status` lists all");
    }
    let what = if arguments.end { "takes clients again" } else { "sends its clients to other exits" };
    print(&format!("{exit} {what}.\n"))
}

/// Removes an exit from the fleet. Its link stops using the store at once.
///
/// # Errors
/// If the fleet has no such exit, or it is alive and `--force` is missing.
pub(crate) async fn remove(directories: Directories<'_>, arguments: &RemoveArguments) -> anyhow::Result<()> {
    // A key that cannot be read must not leave the exit half removed.
    let fleet_key = arguments.fleet_key.as_deref().map(roster::read_key).transpose()?;
    let mut fleet = connect(directories.config).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    let member = fleet.keys.name(&Key::Member(exit.clone()));
    let mut compares = vec![Compare::version(member.as_str(), CompareOp::Greater, 0)];
    if !arguments.force {
        let heartbeat = fleet.keys.name(&Key::Heartbeat(exit.clone()));
        compares.push(Compare::version(heartbeat, CompareOp::Equal, 0));
    }
    let deletes = fleet.keys.of_exit(&exit).map(|key| TxnOp::delete(key, None));
    let look = TxnOp::get(member, None);
    let answer =
        in_words(fleet.client.txn(Txn::new().when(compares).and_then(deletes).or_else([look])).await)?;
    if !answer.succeeded() {
        let is_there = answer.op_responses().iter().any(has_found);
        if is_there {
            bail!("{exit} serves clients now; drain and stop it first, or use --force");
        }
        // It was removed before, without the fleet key.
        if let Some(key) = &fleet_key
            && roster::has(&mut fleet, &exit).await?
        {
            return print(&roster::expel(&mut fleet, &exit, key).await?);
        }
        if revoke(&mut fleet, &exit).await? {
            return print(&format!("The tickets of {exit} are void. It has not joined the fleet.\n"));
        }
        bail!("the fleet has no exit {exit}; `warren fleet status` lists all");
    }
    // Its user stays if this exit's user may not delete users.
    let user = user_name(&fleet.config.fleet, &exit);
    let mut auth = fleet.client.auth_client();
    let note = match auth.user_delete(&user).await {
        Ok(_) => String::new(),
        Err(_) => format!(" Delete its user in the store too: etcdctl user delete {user}"),
    };
    let _ = auth.role_delete(&user).await;
    let roster = match &fleet_key {
        Some(key) => roster::expel(&mut fleet, &exit, key).await?,
        None if roster::has(&mut fleet, &exit).await? => {
            format!(
                "Clients still find it in the roster: run `warren fleet remove {exit} --fleet-key FILE`.\n"
            )
        }
        None => String::new(),
    };
    print(&format!("{exit} is removed from the fleet.{note}\n{roster}"))
}
