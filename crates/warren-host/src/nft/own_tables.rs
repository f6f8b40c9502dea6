//! Which tables a process may have changed.

use crate::{client_plan, dns, exit_hold, exit_plan, kill_switch};

/// The names of Warren's tables that one process answers for, in every family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnTables {
    /// All of Warren's, of whichever profile: what a command that root runs may change.
    #[default]
    All,
    /// Those of one daemon.
    Of(Vec<String>),
}

impl OwnTables {
    /// Those of a profile's daemon.
    pub fn of_profile(name: &str) -> Self {
        let tunnel = client_plan::firewall_table(name);
        Self::Of(vec![dns::guard_table(name), tunnel, kill_switch::table_name(name)])
    }

    /// Those of the exit.
    pub fn of_exit() -> Self {
        Self::Of(vec![exit_plan::TABLE.into(), exit_hold::HOLD_TABLE.into()])
    }

    /// Whether a table is among them.
    pub(super) fn has(&self, name: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        match self {
            Self::All => name.starts_with("warren") && name.bytes().all(allowed),
            Self::Of(names) => names.iter().any(|own| own == name),
        }
    }
}
