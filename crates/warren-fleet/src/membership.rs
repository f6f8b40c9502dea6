//! How an exit leaves its fleet, and how it is added again after a recovery.

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use warren_fleet_link::ExitId;

use crate::exits::{Member, Removal};
use crate::keys::{Key, Keys};
use crate::store::{in_words, pairs_of};
use crate::users::Grant;

/// Makes an exit a member of its fleet again, after a recovery from a backup that is older than the exit. Does nothing if the exit
/// was removed.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn rejoin(client: &mut Client, keys: &Keys, me: &ExitId) -> anyhow::Result<()> {
    let [name, removed] = [Key::Member(me.clone()), Key::RemovedExit(me.clone())].map(|key| keys.name(&key));
    let member = serde_json::to_vec(&Member::default())?;
    // In the meantime, another link may have added the exit, or an operator may have removed it.
    let absent = [&name, &removed].map(|key| Compare::version(key.as_str(), CompareOp::Equal, 0));
    let put = TxnOp::put(name, member, None);
    in_words(client.txn(Txn::new().when(absent).and_then([put])).await)?;
    Ok(())
}

/// Confirms in the store that a removed exit stops serving. Returns whether this was not known yet.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn confirm_removal(client: &mut Client, keys: &Keys, exit: &ExitId) -> anyhow::Result<bool> {
    let key = keys.name(&Key::RemovedExit(exit.clone()));
    let answer = in_words(client.get(key.as_str(), None).await)?;
    let Some(pair) = pairs_of(&answer).into_iter().next() else { return Ok(false) };
    let removal = pair.value.as_deref().and_then(Removal::read);
    let Some(removal) = removal.filter(|removal| !removal.has_stopped) else { return Ok(false) };
    // The exit may join again in the meantime.
    let same = Compare::mod_revision(key.as_str(), CompareOp::Equal, pair.modified);
    let value = serde_json::to_vec(&Removal { has_stopped: true, ..removal })?;
    let put = TxnOp::put(key, value, None);
    Ok(in_words(client.txn(Txn::new().when([same]).and_then([put])).await)?.succeeded())
}

/// Returns the changes that take an exit out of the fleet. The exit stays out until it joins with a new ticket. Its etcd user
/// stays until a link or command that may remove users removes this user. `removal`: given if the exit must stop serving.
pub(crate) fn leaving(keys: &Keys, exit: &ExitId, removal: Option<Removal>) -> anyhow::Result<Vec<TxnOp>> {
    let mut operations: Vec<TxnOp> = keys.of_exit(exit).map(|key| TxnOp::delete(key, None)).into();
    let value = Removal::value(removal)?;
    operations.push(TxnOp::put(keys.name(&Key::RemovedExit(exit.clone())), value, None));
    // From this grant, a link that may remove users knows that the exit's user must be removed.
    operations.push(TxnOp::put(keys.grant(exit), serde_json::to_vec(&Grant::default())?, None));
    // An exit can leave a fleet only after `init` has completed it.
    operations.push(TxnOp::delete(keys.beginning(), None));
    Ok(operations)
}
