//! Describes, for commands, a kill switch whose table another program has deleted or changed.

use warren_host::kill_switch::{Standing, table_name};

/// Returns a sentence about a kill switch whose table is gone or changed.
pub(crate) fn describe(standing: Standing, name: &str) -> String {
    let table = table_name(name);
    match standing {
        Standing::Gone => format!(
            "its kill switch is not in force: somebody has deleted its nftables table inet {table}, as `nft flush ruleset` does, so \
             traffic may leave outside the tunnel"
        ),
        Standing::Open | Standing::Closed | Standing::Changed => format!(
            "its kill switch may not be in force: somebody has changed its nftables table inet {table}, and traffic may leave \
             outside the tunnel"
        ),
    }
}
