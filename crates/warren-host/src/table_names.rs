//! Warren's nftables tables: their names and families.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The packets that a table filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableFamily {
    /// IP of both versions.
    #[default]
    Inet,
    /// ARP.
    Arp,
}

impl TableFamily {
    /// Whether `word` is nft's name of a family of which Warren has tables.
    pub(crate) fn is_known(word: &str) -> bool {
        [Self::Inet, Self::Arp].iter().any(|family| family.name() == word)
    }

    /// nft's word for the family.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Arp => "arp",
        }
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The exit's own tables: one of family `inet`, one of family `arp`.
pub const EXIT_TABLE: &str = "warren_exit";

/// The table of family `inet` that stays after an exit has ended. No process owns it.
pub const HOLD_TABLE: &str = "warren_exit_hold";

/// Returns the name of a profile's own table. No profile may be called `exit`, so the name is never the exit's.
pub fn firewall_table(profile: &str) -> String {
    format!("warren_{profile}")
}

/// Returns the name of a profile's table that refuses DNS queries outside the tunnel. No name from [`firewall_table`]
/// has this prefix.
pub fn guard_table(profile: &str) -> String {
    format!("warren-dns_{profile}")
}

/// Returns the name of a profile's table for `warren exec`. No name from [`firewall_table`] has this prefix.
pub fn exec_table(profile: &str) -> String {
    format!("warren-exec_{profile}")
}

/// Returns the name of a profile's table for a portal. No name from [`firewall_table`] has this prefix.
pub fn portal_table(profile: &str) -> String {
    format!("warren-portal_{profile}")
}

/// Returns the name of a profile's kill switch table. No name from [`firewall_table`] has this prefix.
///
/// A profile's name has only characters that nft accepts.
pub fn kill_switch_table(profile: &str) -> String {
    format!("warren-kill-switch_{profile}")
}
