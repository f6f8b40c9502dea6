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
use crate::exits::{Member, Removal, milliseconds};
use crate::keys::Key;
use crate::membership::{confirm_removal, leaving};
use crate::run::Directories;
use crate::store::{has_found, in_words, pairs_of};
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
    /// Remove it even if it serves clients now. If it was removed earlier: it no longer runs, so it counts as stopped.
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
/// user. Before that, a live exit has a moment to learn of its removal, so that it stops serving.
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
    let heartbeat = fleet.keys.name(&Key::Heartbeat(exit.clone()));
    let is_alive = !in_words(fleet.client.get(heartbeat, None).await)?.kvs().is_empty();
    let was_member = take_out(&mut fleet, &exit, arguments.force).await?;
    let serving = if was_member { still_serving(&mut fleet, &exit, is_alive).await? } else { String::new() };
    // The operator says that this exit, which was removed earlier, no longer runs.
    let has_stopped =
        !was_member && arguments.force && confirm_removal(&mut fleet.client, &fleet.keys, &exit).await?;
    let is_known = was_member
        || has_stopped
        || had_tickets
        || users::granted(&mut fleet.client, &fleet.keys, &exit).await?.is_some();
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
        (true, _) => format!("{exit} is removed from the fleet{serving}.\n"),
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
    let [member, heartbeat] =
        [Key::Member(exit.clone()), Key::Heartbeat(exit.clone())].map(|key| fleet.keys.name(&key));
    let found = in_words(fleet.client.get(member.as_str(), None).await)?;
    let Some(pair) = pairs_of(&found).into_iter().next() else { return Ok(false) };
    let mut compares = vec![Compare::mod_revision(member.as_str(), CompareOp::Equal, pair.modified)];
    if !is_forced {
        compares.push(Compare::version(heartbeat, CompareOp::Equal, 0));
    }
    let removal = removal_of(pair.parse("exit").unwrap_or_default());
    let then = leaving(&fleet.keys, exit, Some(removal))?;
    let look = TxnOp::get(member, None);
    let answer = in_words(fleet.client.txn(Txn::new().when(compares).and_then(then).or_else([look])).await)?;
    if !answer.succeeded() && answer.op_responses().iter().any(has_found) {
        bail!("{exit} serves clients now, or has just changed; drain and stop it first, or use --force");
    }
    Ok(answer.succeeded())
}

/// How long a removed exit may serve if it does not hear of its removal. Its `max_staleness` began at the latest just now.
fn removal_of(member: Member) -> Removal {
    let seconds = member.max_staleness.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
    let until = seconds.map(|seconds| (milliseconds(SystemTime::now()) / 1_000).saturating_add(seconds));
    // An exit without a key was never linked, so it serves nobody.
    Removal { until, has_stopped: member.key.is_none() }
}

/// Waits until a removed exit confirms that it stops serving. Returns what to tell the operator if it does not.
async fn still_serving(fleet: &mut Connected, exit: &ExitId, is_alive: bool) -> anyhow::Result<String> {
    let key = fleet.keys.name(&Key::RemovedExit(exit.clone()));
    let began = Instant::now();
    loop {
        let found = in_words(fleet.client.get(key.as_str(), None).await)?;
        let value = pairs_of(&found).into_iter().next().and_then(|pair| pair.value);
        let removal = value.as_deref().and_then(Removal::read);
        // Without this value, the exit has joined again or has left.
        let Some(Removal { until, has_stopped: false }) = removal else { return Ok(String::new()) };
        if is_alive && began.elapsed() < CONFIRMED_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        let how_long = match until {
            Some(until) => {
                let left = until.saturating_sub(milliseconds(SystemTime::now()) / 1_000);
                format!("for another {} min (its max_staleness)", (left.max(0) + 59) / 60)
            }
            None => "for good, because its max_staleness is \"never\"".to_owned(),
        };
        return Ok(format!(
            ", but it has not confirmed that it stops serving. If it still runs, it may serve the fleet's clients {how_long}, even clients \
             that you remove now. Stop it on its host, and then run `warren fleet remove {exit} --force` again, so that it no longer counts as \
             serving"
        ));
    }
}

/// Removes the etcd user of an exit that is not in the fleet. Returns whether there was one.
async fn remove_user(fleet: &Connected, exit: &ExitId, admin: &AdminArguments) -> anyhow::Result<bool> {
    users::remove_of(&mut admin.connect(fleet).await?, &fleet.keys, exit).await
}
