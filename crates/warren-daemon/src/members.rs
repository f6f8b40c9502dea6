//! The group whose members may ask a client for its status, and start and stop clients by systemd.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use anyhow::Context as _;

use crate::daemon_directory::DaemonDirectory;

/// The group's name. The package makes it.
pub const GROUP: &str = "warren";

/// Opens a client's directory to the group, so that its members reach the control socket. Returns the group, or None where there is
/// none or this process may not. Files in the directory stay root's.
pub fn admit(directory: &DaemonDirectory) -> Option<u32> {
    let group = group_in(&std::fs::read_to_string("/etc/group").ok()?)?;
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    match open_to(directory.path(), group) {
        Ok(()) => Some(group),
        Err(error) => {
            tracing::warn!("members of the group {GROUP} cannot ask for the status: {error:#}");
            None
        }
    }
}

fn open_to(directory: &Path, group: u32) -> anyhow::Result<()> {
    // Under systemd's umask, the directory above is root's alone.
    let above = directory.parent().context("the directory has none above it")?;
    let mode = above.metadata().context("cannot inspect the directory above")?.permissions().mode();
    if mode & 0o055 != 0o055 {
        std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o755))
            .context("cannot open the directory above to all")?;
    }
    chown(directory, None, Some(group)).context("cannot give the directory to the group")?;
    // Members may pass through, and list nothing.
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o710))
        .context("cannot open the directory to the group")
}

/// The group's number in a text in the format of group(5).
fn group_in(text: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == GROUP).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_number_is_found_by_its_whole_name() {
        assert_eq!(group_in("root:x:0:\nwarrens:x:7:\nwarren:x:998:ann,bob\n"), Some(998));
        assert_eq!(group_in("warren:x:\n#warren:x:1:\n"), None);
        assert_eq!(group_in("# nothing\n"), None);
    }
}
