//! What others undo while the exit runs: forwarding, its addresses and its link are made again. Its tables are nobody else's to undo.
//! What comes to the host meanwhile is followed: another way to the internet.

use std::time::{Duration, Instant};

use warren_host::{Applied, Host, Plan, Step};

/// How often the host is looked at; a look is a handful of netlink questions and files.
const EVERY: Duration = Duration::from_secs(2);
/// A host with all routes of the internet takes long to say so: a look may take this part of the time.
const SHARE: u32 = 20;

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

    /// Makes what the plan of this moment has beyond the one before, makes again what is missing, and says so.
    ///
    /// The look began with what `plan` took.
    pub(super) async fn look(&mut self, host: &mut Host, plan: anyhow::Result<Plan>, began: Instant) {
        let mut failed = Vec::new();
        match plan {
            Ok(plan) => failed.extend(self.follow(host, plan).await),
            Err(error) => {
                failed.push(format!("the firewall cannot follow what has changed on this host: {error:#}"))
            }
        }
        match host.repair(&self.plan, &mut self.applied).await {
            Ok(found) => {
                for missing in found.repaired {
                    tracing::warn!("made again what somebody had undone: {missing}");
                }
                let cannot = |(missing, error)| format!("{missing}, and it cannot be made so: {error}");
                failed.extend(found.failed.into_iter().map(cannot));
            }
            Err(error) => tracing::debug!("cannot look at the host: {error}"),
        }
        for sentence in failed.iter().filter(|sentence| !self.told.contains(sentence)) {
            tracing::error!("{sentence}");
        }
        self.told = failed;
        self.due = Instant::now() + EVERY.max(began.elapsed() * SHARE);
    }

    /// Takes over the devices that are to forward now; returns what cannot be done.
    async fn follow(&mut self, host: &mut Host, plan: Plan) -> Option<String> {
        let steps: Vec<Step> = plan.steps.into_iter().filter(is_of_device).collect();
        let new: Vec<Step> = steps.iter().filter(|step| !self.plan.steps.contains(step)).cloned().collect();
        let made = host.apply(&Plan { steps: new }).await;
        if let Err(error) = made.map(drop) {
            return Some(error.to_string());
        }
        self.plan.steps.retain(|step| !is_of_device(step));
        self.plan.steps.extend(steps);
        None
    }
}

/// Whether a step is one of those for each device by which packets leave.
fn is_of_device(step: &Step) -> bool {
    matches!(step, Step::Sysctl { key, .. } if key.starts_with("net.ipv4.conf."))
}
