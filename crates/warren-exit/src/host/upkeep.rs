//! Keeps forwarding, addresses and the link as the exit needs them, and restores what other programs undo. The exit's nftables
//! tables are not part of this, because only the exit can change them. If the host gets another route to the internet, the exit
//! uses it.

use std::time::{Duration, Instant};

use warren_host::{Applied, Host, Plan, Step};

/// How often the host is checked. A check is a handful of netlink requests and reads of files.
const EVERY: Duration = Duration::from_secs(2);
/// Checks take at most this fraction (1 / `SHARE`) of the time. A host with a full internet routing table takes long to list its
/// routes.
const SHARE: u32 = 20;

/// The part of the exit's plan that other programs can undo.
#[derive(Debug)]
pub(super) struct Upkeep {
    plan: Plan,
    applied: Applied,
    due: Instant,
    /// The failures that were logged at the last check, so that each one is logged once.
    logged: Vec<String>,
}

impl Upkeep {
    pub(super) fn new(plan: Plan, applied: Applied, now: Instant) -> Self {
        // No other program can change the exit's tables, so they need no upkeep.
        let steps = plan.steps.into_iter().filter(|step| !matches!(step, Step::Nftables { .. })).collect();
        Self { plan: Plan { steps }, applied, due: now + EVERY, logged: Vec::new() }
    }

    /// When the next check is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Applies the steps of `plan` that the previous plan lacked. Then restores everything that is missing on the host, and logs
    /// it.
    ///
    /// `began` is when the daemon began to make `plan`. The time since then counts as part of the check.
    pub(super) async fn look(&mut self, host: &mut Host, plan: anyhow::Result<Plan>, began: Instant) {
        let mut failed = Vec::new();
        match plan {
            Ok(plan) => failed.extend(self.follow(host, plan).await),
            Err(error) => failed
                .push(format!("the firewall rules could not be adapted to a change on this host: {error:#}")),
        }
        match host.repair(&self.plan, &mut self.applied).await {
            Ok(found) => {
                for missing in found.repaired {
                    tracing::warn!("restored what another program had undone: {missing}");
                }
                let cannot = |(missing, error)| format!("{missing}, and restoring it failed: {error}");
                failed.extend(found.failed.into_iter().map(cannot));
            }
            Err(error) => tracing::debug!("cannot look at the host: {error}"),
        }
        // A failure that lasts is logged once, not at every check.
        for sentence in failed.iter().filter(|sentence| !self.logged.contains(sentence)) {
            tracing::error!("{sentence}");
        }
        self.logged = failed;
        self.due = Instant::now() + EVERY.max(began.elapsed() * SHARE);
    }

    /// Turns forwarding on for the devices through which packets leave now. If that fails, returns why.
    async fn follow(&mut self, host: &mut Host, plan: Plan) -> Option<String> {
        let steps: Vec<Step> = plan.steps.into_iter().filter(is_of_device).collect();
        let new: Vec<Step> = steps.iter().filter(|step| !self.plan.steps.contains(step)).cloned().collect();
        let made = host.apply(&Plan { steps: new }).await;
        if let Err(error) = made.map(drop) {
            // The plan stays the same, so the next check tries again.
            return Some(error.to_string());
        }
        self.plan.steps.retain(|step| !is_of_device(step));
        self.plan.steps.extend(steps);
        None
    }
}

/// Whether a step is one that the plan contains for each device through which packets leave.
fn is_of_device(step: &Step) -> bool {
    matches!(step, Step::Sysctl { key, .. } if key.starts_with("net.ipv4.conf."))
}
