//! How commands describe a kill switch that somebody else has opened.

use warren_host::kill_switch::{Standing, table_name};

/// What is wrong with a kill switch whose table is not what it was made.
pub(crate) fn describe(standing: Standing, name: &str) -> String {
    let table = table_name(name);
    match standing {
        Standing::Gone => format!(
            "its kill switch is not in force: somebody has deleted its nftables table inet {table}, as `nft flush ruleset` does, and \
             traffic may leave outside the tunnel"
        ),
        Standing::Open | Standing::Closed | Standing::Changed => format!(
            "its kill switch may not be in force: somebody has changed its nftables table inet {table}, and traffic may leave \
             outside the tunnel"
        ),
    }
}

/// What to do about one.
pub(crate) fn advice(name: &str) -> String {
    format!(
        "`warren client close {name}` closes it again and `warren up {name}` connects, `warren down {name}` opens it for good"
    )
}
