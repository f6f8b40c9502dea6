//! Everything that the page shows about one client. It never shows where the client connects from.

use std::time::Instant;

use serde_json::{Value, json};

use super::client_table::{ClientRow, SessionFigures};
use super::{Observations, Reporting};
use crate::audit::Audit;

impl Reporting {
    /// A client's figures, its rates over the last day, its drops by reason, and its entries in the audit log.
    ///
    /// # Errors
    /// When there is no such client.
    pub(crate) fn client_page(
        &self,
        seen: &Observations<'_>,
        name: &str,
        audit: &Audit,
        now: Instant,
    ) -> Result<Value, String> {
        let Observations { clients, snapshot, .. } = seen;
        let client =
            clients.registry().by_name(name).ok_or_else(|| format!("no client is named {name:?}"))?;
        let row = ClientRow::of(client, clients, snapshot, &SessionFigures::of(&self.meter, snapshot));
        let total = snapshot.clients.get(&client.public_key).copied().unwrap_or_default();
        let day = self.web.as_ref().map(|web| web.history.clients.series(now, client.public_key, total));
        let drops = clients.drops_of(client);
        let drops: Vec<Value> = drops
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| json!({ "reason": reason.name(), "what": reason.description(), "count": count }))
            .collect();
        Ok(json!({ "client": row, "day": day, "drops": drops, "audit": audit.of_client(name) }))
    }
}
