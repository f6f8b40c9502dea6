//! Warren's nftables tables: their names and families.

use serde::{Deserialize, Serialize};

/// What the packets are that a table looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableFamily {
    /// IP of both versions.
    #[default]
    Inet,
    /// ARP.
    Arp,
}

/// The exit's own tables, one of family `inet` and one of family `arp`.
pub const EXIT_TABLE: &str = "warren_exit";

/// The table that outlives an exit, of family `inet`. No process owns it.
pub const HOLD_TABLE: &str = "warren_exit_hold";

/// Returns the name of a profile's own table. No profile may be called `exit`, so it is never the exit's.
pub fn firewall_table(profile: &str) -> String {
    format!("warren_{profile}")
}

/// Returns the name of a profile's table that refuses DNS queries outside the tunnel. No profile's own table begins like it.
pub fn guard_table(profile: &str) -> String {
    format!("warren-dns_{profile}")
}

/// Returns the name of a profile's kill switch table. No profile's own table begins like it.
///
/// A profile's name has no characters that nft would not take.
pub fn kill_switch_table(profile: &str) -> String {
    format!("warren-kill-switch_{profile}")
}
