//! An nft process that was started before the calls that it carries out.
//!
//! Starting nft takes longer than most calls. Moreover, a process that has deleted a table ends only after a grace
//! period of RCU, tens of milliseconds later. Nobody waits for the end of this process.

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Mutex, time::sleep};

use super::{NftCall, NftError, process::Process};

/// At most one nft that waits for calls.
#[derive(Debug, Default)]
pub(super) struct Session {
    ready: Arc<Mutex<Option<Ready>>>,
}

#[derive(Debug)]
struct Ready {
    process: Process,
    last_used: Instant,
}

impl Session {
    /// Starts an nft, unless there is one, and waits until it answers. Without one, each call starts its own.
    pub(super) async fn get_ready(&self, lock: Option<File>) {
        let mut ready = self.ready.lock().await;
        if ready.is_some() {
            return;
        }
        let Ok(mut process) = Process::start(lock) else { return };
        // An nft without interactive mode ends at once. On some hosts, nft is not allowed to open the descriptor.
        if process.reads_rulesets().await {
            self.keep(&mut ready, process);
        }
    }

    /// Keeps the process of an owner that no longer has a table, for further calls.
    pub(super) async fn give(&self, process: Process) {
        let mut ready = self.ready.lock().await;
        if ready.is_none() {
            self.keep(&mut ready, process);
        }
    }

    fn keep(&self, ready: &mut Option<Ready>, process: Process) {
        *ready = Some(Ready { process, last_used: Instant::now() });
        tokio::spawn(end_once_unused(self.ready.clone()));
    }

    /// Hands the waiting nft over to an owner of tables. `None` if no nft is waiting.
    pub(super) async fn take(&self) -> Option<Process> {
        self.ready.lock().await.take().map(|ready| ready.process)
    }

    /// Carries out a call in the waiting nft. `None` if no nft is waiting, or if it cannot carry out this call.
    pub(super) async fn run(&self, call: &NftCall) -> Option<Result<String, NftError>> {
        let mut place = self.ready.lock().await;
        let ready = place.as_mut()?;
        ready.last_used = Instant::now();
        let process = &mut ready.process;
        let outcome = match call {
            NftCall::Load { ruleset } if process.is_locked() => {
                process.load(ruleset).await.map(|()| String::new())
            }
            NftCall::ListTables { family } => {
                process.command(&format!("list tables {}", family.name())).await
            }
            NftCall::ListTable { family, table, stateless: true } => {
                process.command(&format!("list table {} {table}", family.name())).await
            }
            NftCall::DeleteTable { family, table } => {
                process.command(&format!("delete table {} {table}", family.name())).await
            }
            // This nft prints no counters, and it may load a ruleset only if it holds a lock. The other calls concern owners.
            NftCall::ListTable { stateless: false, .. }
            | NftCall::Load { .. }
            | NftCall::GetReady
            | NftCall::LoadOwned { .. }
            | NftCall::AwaitOwner { .. }
            | NftCall::ReleaseOwner { .. }
            | NftCall::EndOwner { .. } => return None,
        };
        if matches!(outcome, Err(NftError::Gone | NftError::Io(_))) {
            // Ends this nft, because its late output would be mistaken for the answer to the next call.
            *place = None;
        }
        Some(outcome)
    }
}

/// Ends the nft after a while without a call. The changes that it made stay.
async fn end_once_unused(place: Arc<Mutex<Option<Ready>>>) {
    loop {
        sleep(IDLE).await;
        let mut place = place.lock().await;
        match place.as_ref() {
            Some(ready) if ready.last_used.elapsed() < IDLE => {}
            Some(_) => {
                let ended = place.take();
                drop(place);
                if let Some(Ready { process, .. }) = ended {
                    process.end().await;
                }
                return;
            }
            None => return,
        }
    }
}

/// Longer than the pauses between the calls of a start or of a stop.
const IDLE: Duration = Duration::from_secs(1);
