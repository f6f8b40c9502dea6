//! The tables that a process may change.

use crate::table_names::{
    EXIT_TABLE, HOLD_TABLE, exec_table, firewall_table, guard_table, kill_switch_table, portal_table,
};

/// The names of Warren's tables that one process is responsible for, in every family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnTables {
    /// All of Warren's tables, of any profile, for a command that root runs.
    #[default]
    All,
    /// The tables of one daemon. It must not change another profile's kill switch, for instance.
    Of(Vec<String>),
}

impl OwnTables {
    /// The tables of a profile's daemon.
    pub fn of_profile(name: &str) -> Self {
        Self::Of(vec![
            guard_table(name),
            firewall_table(name),
            kill_switch_table(name),
            exec_table(name),
            portal_table(name),
        ])
    }

    /// The tables of the exit.
    pub fn of_exit() -> Self {
        Self::Of(vec![EXIT_TABLE.into(), HOLD_TABLE.into()])
    }

    /// Whether a table is one of Warren's tables.
    pub(super) fn has(&self, name: &str) -> bool {
        // nft joins its arguments into one text, so a name must not contain anything that would end it.
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        match self {
            Self::All => name.starts_with("warren") && name.bytes().all(allowed),
            Self::Of(names) => names.iter().any(|own| own == name),
        }
    }
}
