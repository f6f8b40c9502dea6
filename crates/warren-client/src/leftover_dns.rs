//! Restores the host's resolvers after daemons that were killed.

use std::path::Path;

use warren_host::dns::{self, DnsError};

/// Restores the resolvers that killed daemons had replaced. Leaves the resolvers of running daemons alone. Returns the names of
/// the killed daemons.
///
/// # Errors
/// When the resolvers cannot be restored.
pub async fn clean_up(state_dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut cleaned = Vec::new();
    for owner in dns::owners(state_dir)? {
        match dns::recover(state_dir, &owner).await {
            Ok(_) => cleaned.push(owner),
            // A running daemon holds the lock on its record, so its resolvers stay.
            Err(DnsError::Busy(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(cleaned)
}
