//! An import's effects at this exit, which are printed before anything is changed.

use warren_control::{ClientView, NewClient};
use warren_daemon::output;

use super::left;
use super::present::Present;
use super::table::table;
use super::wireguard::WireGuardServer;

/// An import: the file's content, and the clients at this exit.
pub(super) struct Import {
    /// The content of the file, without the peers that are already enrolled.
    pub(super) server: WireGuardServer,
    /// The clients for the peers of `server`, in the same order, with placeholder keys.
    pub(super) planned: Vec<NewClient>,
    pub(super) enrolled: Vec<ClientView>,
    /// The peers that are enrolled already.
    pub(super) present: Present,
}

impl Import {
    /// Prints what the import would do, before anything changes.
    pub(super) fn announce(&self) -> anyhow::Result<()> {
        output::print(&self.present.text())?;
        if self.planned.is_empty() {
            return Ok(());
        }
        left::say(&self.server, &self.planned, &self.enrolled);
        output::print(&table(&self.planned))
    }
}
