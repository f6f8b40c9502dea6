//! Resolvers that killed daemons set and could not put back.

use std::path::Path;

use warren_host::dns::{self, DnsError};

/// Puts back what killed daemons had set; a running one keeps what it has. Returns whose remains were removed.
///
/// # Errors
/// When something cannot be put back.
pub async fn clean_up(state_dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut cleaned = Vec::new();
    for owner in dns::owners(state_dir)? {
        match dns::recover(state_dir, &owner).await {
            Ok(_) => cleaned.push(owner),
            Err(DnsError::Busy(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(cleaned)
}
