//! The page's view of the exit as a whole, such as rates and drops. It never shows where packets go.

use std::time::SystemTime;

use serde_json::{Value, json};
use warren_packet::reason::DropReason;
use warren_quic::strangers::Turned;

use super::{Observations, Reporting};
use warren_control::InvitationView;
use warren_control::status::{State, Status};

/// Maximum number of invitations that the page shows.
const MOST_INVITATIONS: usize = 50;

impl Reporting {
    /// The rates of the last day.
    pub(crate) fn day(&self) -> Value {
        json!(self.web.as_ref().map(|web| web.history.day.series()))
    }

    /// Everything that the page shows at once, except the table of clients.
    pub(crate) fn overview(&self, seen: &Observations<'_>) -> Value {
        let Observations { config, clients, .. } = seen;
        let status = self.status(seen, Vec::new());
        let invitations = clients.registry().open_invitations(SystemTime::now());
        let shown: Vec<InvitationView> =
            invitations.iter().take(MOST_INVITATIONS).map(|open| InvitationView::of(open)).collect();
        json!({
            "version": status.version,
            "endpoint": config.endpoint.as_ref().map(ToString::to_string),
            // The reason why no phone can be added, if there is one.
            "no_wireguard": crate::wireguard::endpoint(config).err().map(|error| format!("{error:#}")),
            "stopping": matches!(status.state, State::Stopping),
            "since_seconds": status.since_seconds,
            "reload_error": seen.reloads.error,
            "process": status.process,
            "rates": status.rates,
            "clients": { "enrolled": clients.registry().len(), "connected": clients.with_sessions() },
            "invitations": { "open": invitations.len(), "first": shown },
            "repair": repair(&status),
            "drops": drops(&status),
            "strangers": strangers(&status),
            "fleet": status.exit.as_ref().and_then(|exit| exit.fleet.as_ref()),
            "minutes": self.web.as_ref().map(|web| web.history.minutes.series()),
        })
    }
}

/// Returns the number of packets lost on all connections' paths since the exit started, and how many lost datagrams were sent
/// again. `waiting` and `kept_bytes` are current values.
fn repair(status: &Status) -> Value {
    let total = |name: &str| status.totals.get(name).copied().unwrap_or_default();
    json!({
        // A packet that was declared lost but acknowledged later was not lost.
        "lost": total("quic_lost_packets").saturating_sub(total("quic_spurious_losses")),
        "spurious": total("quic_spurious_losses"),
        "repaired": total("repaired_datagrams"),
        "given_up": total("given_up_datagrams"),
        "late": total("late_datagrams"),
        "repeated": status.drops.get(DropReason::Repeated.name()).copied().unwrap_or_default(),
        "waiting": total("waiting_datagrams"),
        "kept_bytes": total("quic_kept_bytes"),
    })
}

/// Every reason for drops, including those that never occurred.
fn drops(status: &Status) -> Vec<Value> {
    let row = |reason: DropReason| {
        let count = status.drops.get(reason.name()).copied().unwrap_or_default();
        json!({ "reason": reason.name(), "what": reason.description(), "count": count })
    };
    DropReason::ALL.into_iter().map(row).collect()
}

fn strangers(status: &Status) -> Vec<Value> {
    let counts = status.exit.as_ref().map(|exit| &exit.strangers);
    let row = |why: Turned| {
        let count = counts.and_then(|counts| counts.get(why.name())).copied().unwrap_or_default();
        json!({ "reason": why.name(), "what": why.description(), "count": count })
    };
    Turned::ALL.into_iter().map(row).collect()
}
