//! How an exit leaves its fleet, and how it is added again after a recovery.

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use warren_fleet_link::ExitId;

use crate::exits::{Member, REMOVED};
use crate::keys::{Key, Keys};
use crate::store::in_words;
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

/// Returns the changes that take an exit out of the fleet. The exit stays out until it joins with a new ticket. Its etcd user
/// stays until a link or command that may remove users removes this user.
pub(crate) fn leaving(keys: &Keys, exit: &ExitId) -> anyhow::Result<Vec<TxnOp>> {
    let mut operations: Vec<TxnOp> = keys.of_exit(exit).map(|key| TxnOp::delete(key, None)).into();
    operations.push(TxnOp::put(keys.name(&Key::RemovedExit(exit.clone())), REMOVED, None));
    // From this grant, a link that may remove users knows that the exit's user must be removed.
    operations.push(TxnOp::put(keys.grant(exit), serde_json::to_vec(&Grant::default())?, None));
    // An exit can leave a fleet only after `init` has completed it.
    operations.push(TxnOp::delete(keys.beginning(), None));
    Ok(operations)
}
