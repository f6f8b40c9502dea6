//! The exits' etcd users. Making a ticket creates a user. The user is removed with its exit, or when the ticket has ended unused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use etcd_client::{
    AuthClient, Client, Compare, CompareOp, GetOptions, Permission, RoleAddResponse,
    RoleRevokePermissionOptions, Txn, TxnOp, UserAddOptions,
};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval, timeout};
use warren_fleet_link::ExitId;

use crate::config::FleetConfig;
use crate::keys::{Key, Keys};
use crate::once::Once;
use crate::store::{ANSWER_TIMEOUT, ended, in_words, is_denied, pairs_of};

/// How often a link searches for users whose tickets have ended.
const EVERY: Duration = Duration::from_secs(10);

/// The record of how an exit got its etcd user, `us/EXIT`. It is written with the ticket, before the user is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The digest of the latest ticket. Empty if the exit was removed or has left, and its user still exists.
    pub(crate) ticket: String,
    /// The random text of the host that has used the ticket. `None` while the ticket is unused.
    #[serde(default)]
    pub(crate) host: Option<String>,
    /// Whether the user is being removed.
    #[serde(default)]
    pub(crate) is_ending: bool,
}

/// A grant, and the revision of its latest change.
pub(crate) struct Granted {
    pub(crate) exit: ExitId,
    pub(crate) grant: Grant,
    pub(crate) modified: i64,
}

/// The name of an exit's etcd user, and of its role.
pub(crate) fn user_name(fleet: &str, exit: &ExitId) -> String {
    format!("warren-{fleet}-{exit}")
}

/// The right of an exit in the fleet: to read and write all of the fleet's keys.
fn right_of_member(keys: &Keys) -> Permission {
    Permission::read_write(keys.prefix()).with_prefix()
}

/// Makes a user, and a role that may write only the fleet's keys. Without a password, only a certificate proves the user.
///
/// # Errors
/// If the store refuses.
pub(crate) async fn add(
    auth: &mut AuthClient,
    keys: &Keys,
    name: &str,
    password: Option<&str>,
) -> anyhow::Result<()> {
    // The user of an earlier ticket is removed first. Otherwise the earlier ticket would get the rights of the new one.
    unless(auth.user_delete(name).await, "user name not found")?;
    let _: Option<RoleAddResponse> = unless(auth.role_add(name).await, "already exists")?;
    in_words(auth.role_grant_permission(name, right_of_member(keys)).await)?;
    let options = password.is_none().then(|| UserAddOptions::new().with_no_pwd());
    in_words(auth.user_add(name, password.unwrap_or_default(), options).await)?;
    in_words(auth.user_grant_role(name, name).await)?;
    Ok(())
}

/// Removes a user with its role. Returns whether there was one.
///
/// # Errors
/// If the store refuses, or does not answer.
async fn remove(auth: &mut AuthClient, name: &str) -> anyhow::Result<bool> {
    let deleted =
        timeout(ANSWER_TIMEOUT, auth.user_delete(name)).await.context("the store does not answer")?;
    let was_there = unless(deleted, "user name not found")?.is_some();
    let deleted =
        timeout(ANSWER_TIMEOUT, auth.role_delete(name)).await.context("the store does not answer")?;
    unless(deleted, "role name not found")?;
    Ok(was_there)
}

/// Removes the user of an exit that is not in the fleet, and its grant. Returns whether there was a user.
///
/// # Errors
/// If the store refuses, or does not answer.
pub(crate) async fn remove_of(client: &mut Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<bool> {
    let was_there = remove(&mut client.auth_client(), &user_name(keys.name_of_fleet(), exit)).await?;
    in_words(client.delete(keys.grant(exit), None).await)?;
    Ok(was_there)
}

/// Takes all rights from the user of a removed exit, except to read and write its removal. So an exit that is cut off from the store
/// still learns of its removal when it is back, and can confirm it. A hostile exit can also delete the value, or write a false one.
/// Returns whether there is such a user.
///
/// # Errors
/// If the store refuses, or does not answer.
pub(crate) async fn confine(client: &Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<bool> {
    let name = user_name(keys.name_of_fleet(), exit);
    let mut auth = client.auth_client();
    let Some(held) = rights(&mut auth, &name).await? else { return Ok(false) };
    let removal = keys.name(&Key::RemovedExit(exit.clone()));
    if held.iter().all(|right| !is_for(right, &removal)) {
        let right = Permission::read_write(removal.as_str());
        let granted = timeout(ANSWER_TIMEOUT, auth.role_grant_permission(name.as_str(), right)).await;
        in_words(granted.context("the store does not answer")?)?;
    }
    for right in held.iter().filter(|right| !is_for(right, &removal)) {
        let range = RoleRevokePermissionOptions::new().with_range_end(right.range_end());
        let revoked = auth.role_revoke_permission(name.as_str(), right.key(), Some(range));
        let revoked = timeout(ANSWER_TIMEOUT, revoked).await.context("the store does not answer")?;
        unless(revoked, "permission is not granted")?;
    }
    is_there(client, &name).await
}

/// Whether a user already has no other rights. Without its role, it has none at all.
async fn is_confined(client: &Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<bool> {
    let removal = keys.name(&Key::RemovedExit(exit.clone()));
    let held = rights(&mut client.auth_client(), &user_name(keys.name_of_fleet(), exit)).await?;
    Ok(held.is_none_or(|held| held.iter().all(|right| is_for(right, &removal))))
}

/// The rights of a role. `None` if it does not exist.
async fn rights(auth: &mut AuthClient, name: &str) -> anyhow::Result<Option<Vec<Permission>>> {
    let role = timeout(ANSWER_TIMEOUT, auth.role_get(name)).await.context("the store does not answer")?;
    Ok(unless(role, "role name not found")?.map(|role| role.permissions()))
}

/// Whether a right is for one key only.
fn is_for(right: &Permission, key: &str) -> bool {
    right.key() == key.as_bytes() && right.range_end().is_empty()
}

/// Whether a removed exit may still learn of its removal, because it has not confirmed it and may still serve.
async fn may_learn(client: &mut Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<bool> {
    let removed = ended(client, keys, exit).await?;
    Ok(removed.is_some_and(|removed| removed.may_serve(SystemTime::now())))
}

/// Returns the answer, or `None` if the error says that there was nothing to do.
fn unless<T>(answer: Result<T, etcd_client::Error>, nothing: &str) -> anyhow::Result<Option<T>> {
    match in_words(answer) {
        Err(error) if error.to_string().contains(nothing) => Ok(None),
        answer => answer.map(Some),
    }
}

/// The grant of one exit.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn granted(
    client: &mut Client,
    keys: &Keys,
    exit: &ExitId,
) -> anyhow::Result<Option<Granted>> {
    let answer = in_words(client.get(keys.grant(exit), None).await)?;
    Ok(pairs_of(&answer).into_iter().next().map(|pair| Granted {
        exit: exit.clone(),
        grant: pair.parse("grant").unwrap_or_default(),
        modified: pair.modified,
    }))
}

/// Returns all grants whose tickets have not been used.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn unused(client: &mut Client, keys: &Keys) -> anyhow::Result<Vec<Granted>> {
    let first = keys.grants();
    let read = client.get(first.as_str(), Some(GetOptions::new().with_prefix()));
    let answer = in_words(timeout(ANSWER_TIMEOUT, read).await.context("the store does not answer")?)?;
    let granted = pairs_of(&answer).into_iter().filter_map(|pair| {
        let name = std::str::from_utf8(&pair.key).ok()?.strip_prefix(&first)?;
        let exit = ExitId::try_from(name.to_owned()).ok()?;
        Some(Granted { exit, grant: pair.parse("grant").unwrap_or_default(), modified: pair.modified })
    });
    Ok(granted.filter(|granted| granted.grant.host.is_none()).collect())
}

/// Whether the ticket of a grant can still be used.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn is_open(client: &mut Client, keys: &Keys, grant: &Grant) -> anyhow::Result<bool> {
    Ok(!in_words(client.get(keys.ticket(&grant.ticket), None).await)?.kvs().is_empty())
}

/// Whether a user exists. Only a user who may remove users can see other users.
///
/// # Errors
/// If the store refuses, or does not answer.
pub(crate) async fn is_there(client: &Client, name: &str) -> anyhow::Result<bool> {
    let mut auth = client.auth_client();
    let found = timeout(ANSWER_TIMEOUT, auth.user_get(name)).await.context("the store does not answer")?;
    Ok(unless(found, "user name not found")?.is_some())
}

/// Removes the user of a grant whose ticket has ended. Returns whether the ticket had ended. The user of a removed exit that has
/// not confirmed its removal is only confined, and stays.
///
/// # Errors
/// If the store refuses or does not answer. Then the grant stays, and another link or a command ends it.
pub(crate) async fn end(client: &mut Client, keys: &Keys, granted: &Granted) -> anyhow::Result<bool> {
    let name = user_name(keys.name_of_fleet(), &granted.exit);
    let mut auth = client.auth_client();
    // The user is looked up before anything is written, because most links may not remove users.
    is_there(client, &name).await?;
    let key = keys.grant(&granted.exit);
    let is_kept = may_learn(client, keys, &granted.exit).await?;
    if is_kept && is_confined(client, keys, &granted.exit).await? {
        return Ok(false);
    }
    let compares = [
        Compare::mod_revision(key.as_str(), CompareOp::Equal, granted.modified),
        Compare::version(keys.ticket(&granted.grant.ticket), CompareOp::Equal, 0),
        Compare::version(keys.name(&Key::Member(granted.exit.clone())), CompareOp::Equal, 0),
    ];
    let began = Instant::now();
    // A new ticket for this exit waits until the removal is over. Otherwise the removal could hit the new ticket's user.
    let ending = serde_json::to_vec(&Grant { is_ending: true, ..granted.grant.clone() })?;
    let mark = TxnOp::put(key.as_str(), ending, None);
    let marking = timeout(ANSWER_TIMEOUT, client.txn(Txn::new().when(compares).and_then([mark]))).await;
    let answer = in_words(marking.context("the store does not answer")?)?;
    if !answer.succeeded() {
        return Ok(false);
    }
    let marked = answer.header().context("etcd's answer has no header")?.revision();
    // If the answer is late, for example because this host was paused, the mark may no longer protect the user, because a new
    // ticket waits only for a while.
    if began.elapsed() > 2 * ANSWER_TIMEOUT {
        bail!("the store's answer came too late");
    }
    let after = match is_kept {
        true => {
            confine(client, keys, &granted.exit).await?;
            TxnOp::put(key.as_str(), serde_json::to_vec(&granted.grant)?, None)
        }
        false => {
            remove(&mut auth, &name).await?;
            TxnOp::delete(key.as_str(), None)
        }
    };
    let same = Compare::mod_revision(key.as_str(), CompareOp::Equal, marked);
    in_words(client.txn(Txn::new().when([same]).and_then([after])).await)?;
    Ok(!is_kept)
}

/// Ends all tickets of an exit. Returns whether there was one.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn void_tickets(client: &mut Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<bool> {
    let all = GetOptions::new().with_prefix();
    let tickets = in_words(client.get(keys.tickets(), Some(all)).await)?;
    let mut is_found = false;
    for ticket in tickets.kvs().iter().filter(|ticket| ticket.value() == exit.as_str().as_bytes()) {
        in_words(client.delete(ticket.key(), None).await)?;
        is_found = true;
    }
    Ok(is_found)
}

/// Keeps the user of an exit that has joined since the backup. After a recovery, the store may know less about that exit than the
/// copy.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn keep(client: &mut Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<()> {
    let Some(Granted { grant, .. }) = granted(client, keys, exit).await? else { return Ok(()) };
    if grant.host.is_none() {
        let kept = Grant { host: Some(String::new()), is_ending: false, ..grant };
        in_words(client.put(keys.grant(exit), serde_json::to_vec(&kept)?, None).await)?;
    }
    Ok(())
}

/// Gives the role of an exit that a recovery has put back its rights again. etcd's users come from the backup, in which the exit may
/// have been removed, and its user confined. Does nothing if there is no such role.
///
/// # Errors
/// If the store refuses, as it does unless the command's own user may grant rights, or if the store does not answer.
pub(crate) async fn unconfine(client: &Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<()> {
    let mut auth = client.auth_client();
    let granting = auth.role_grant_permission(user_name(keys.name_of_fleet(), exit), right_of_member(keys));
    let granted = timeout(ANSWER_TIMEOUT, granting).await;
    unless(granted.context("the store does not answer")?, "role name not found").map(drop)
}

/// The command that does the same as [`unconfine`].
pub(crate) fn unconfine_command(keys: &Keys, exit: &ExitId) -> String {
    let name = user_name(keys.name_of_fleet(), exit);
    format!("etcdctl role grant-permission {name} --prefix=true readwrite {}", keys.prefix())
}

/// Periodically removes users whose tickets have ended. Only links whose own user may remove users can do so. `may_sweep`: whether
/// the link uses the store, and this host's clock is right. A store restored from an old backup may lack exits, so the link does not use
/// it. A wrong clock may say too early that a removed exit has stopped.
pub(crate) async fn watch(config: FleetConfig, may_sweep: Arc<AtomicBool>) {
    let keys = config.keys();
    let (mut client, mut gone) = (None, Vec::new());
    let mut said = Once::default();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !may_sweep.load(Ordering::Relaxed) {
            continue;
        }
        let swept = sweep(&config, &keys, &mut client, &mut gone).await;
        if let Err(error) = swept {
            client = None;
            let line =
                format!("the users of tickets that have ended are not removed by this link: {error:#}");
            if said.is_news(&line) {
                tracing::debug!("{line}");
            }
        }
    }
}

/// Removes the users that are no longer needed. `gone`: the users of exits that the previous call has found to be removed, each with the
/// revision of its grant.
async fn sweep(
    config: &FleetConfig,
    keys: &Keys,
    client: &mut Option<Client>,
    gone: &mut Vec<(ExitId, i64)>,
) -> anyhow::Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(config.store.options()?.connect_any().await?),
    };
    // A user can see itself, but cannot remove itself, so this exit is left out.
    let others: Vec<_> =
        unused(client, keys).await?.into_iter().filter(|granted| granted.exit != config.exit).collect();
    // An exit that has just been removed needs its user to learn of the removal, so only the next call removes this user.
    let is_gone = |granted: &&Granted| granted.grant.ticket.is_empty();
    let named = |granted: &Granted| (granted.exit.clone(), granted.modified);
    let earlier = std::mem::replace(gone, others.iter().filter(is_gone).map(named).collect());
    let due = others.iter().filter(|granted| !is_gone(granted) || earlier.contains(&named(granted)));
    for granted in due {
        match end(client, keys, granted).await {
            Ok(true) => tracing::info!(
                "the etcd user of {} is removed, because {}",
                granted.exit,
                match granted.grant.ticket.is_empty() {
                    true => "the exit is out of the fleet",
                    false => "its ticket has ended and nobody has used it",
                }
            ),
            Ok(false) => {}
            // Another link may have the right. The operator also sees the user in `warren fleet status`.
            Err(error) if is_denied(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
