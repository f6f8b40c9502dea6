//! What others undo while the exit runs: forwarding, its addresses and its link are made again. Its tables are nobody else's to undo.

use std::time::{Duration, Instant};

use warren_host::{Applied, Host, Plan, Step};

/// How often the host is looked at; a look is a handful of netlink questions and files.
const EVERY: Duration = Duration::from_secs(2);

/// The part of the exit's plan that others can undo.
#[derive(Debug)]
pub(super) struct Upkeep {
    plan: Plan,
    applied: Applied,
    due: Instant,
    /// What could not be made again, as it was told.
    told: Vec<String>,
}

impl Upkeep {
    pub(super) fn new(plan: Plan, applied: Applied, now: Instant) -> Self {
        let steps = plan.steps.into_iter().filter(|step| !matches!(step, Step::Nftables { .. })).collect();
        Self { plan: Plan { steps }, applied, due: now + EVERY, told: Vec::new() }
    }

    /// When to look next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Makes again what is missing, and says so.
    pub(super) async fn look(&mut self, host: &mut Host) {
        self.due = Instant::now() + EVERY;
        let found = match host.repair(&self.plan, &mut self.applied).await {
            Ok(found) => found,
            Err(error) => return tracing::debug!("cannot look at the host: {error}"),
        };
        for missing in found.repaired {
            tracing::warn!("made again what somebody had undone: {missing}");
        }
        let failed: Vec<String> = found
            .failed
            .iter()
            .map(|(missing, error)| format!("{missing}, and it cannot be made so: {error}"))
            .collect();
        for sentence in failed.iter().filter(|sentence| !self.told.contains(sentence)) {
            tracing::error!("{sentence}");
        }
        self.told = failed;
    }
}
