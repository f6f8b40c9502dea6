//! The group `warren`, whose members may ask a client for its status, and may start and stop clients through systemd.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use anyhow::Context as _;

use crate::daemon_directory::DaemonDirectory;

/// The group's name. Warren's package creates the group.
pub const GROUP: &str = "warren";

/// The IDs of the users in the group.
pub fn all() -> Vec<u32> {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    members_in(&groups, &std::fs::read_to_string("/etc/passwd").unwrap_or_default())
}

/// Opens a client's directory to the group, so that its members reach the control socket. Returns the group. `None` if there is
/// no such group, or this process is not allowed to change the directory. Files in the directory still belong to root.
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
    // The directory above is opened too, because under systemd's umask it was created for root alone.
    let above = directory.parent().context("the directory has no parent")?;
    let mode = above.metadata().context("cannot inspect the directory above")?.permissions().mode();
    if mode & 0o055 != 0o055 {
        std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o755))
            .context("cannot let all users into the directory above")?;
    }
    chown(directory, None, Some(group)).context("cannot give the directory to the group")?;
    // Members may open files in the directory, but not list it.
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o710))
        .context("cannot open the directory to the group")
}

/// Returns the IDs of the group's members, according to the texts of group(5) and passwd(5).
fn members_in(groups: &str, accounts: &str) -> Vec<u32> {
    let group = group_in(groups);
    let listed = groups.lines().find(|line| line.split(':').next() == Some(GROUP));
    let names: Vec<&str> =
        listed.and_then(|line| line.split(':').nth(3)).unwrap_or_default().split(',').collect();
    let of_account = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, user, own, ..] = fields.as_slice() else { return None };
        // A user whose primary group is this group also counts, except for the exit's own user.
        let is_member =
            names.contains(name) || (group.is_some() && own.parse().ok() == group && *name != GROUP);
        if is_member { user.parse().ok() } else { None }
    };
    accounts.lines().filter_map(of_account).collect()
}

/// The group's number in a text in the format of group(5).
fn group_in(text: &str) -> Option<u32> {
    number_in(text, GROUP)
}

/// The number of a user or a group in a text in the format of passwd(5) or group(5).
pub fn number_in(text: &str, account: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == account).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_or_have_the_group_as_their_own() {
        let accounts = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:998::/:/bin/sh\n\
                        warren:x:997:998::/:/bin/false\n";
        assert_eq!(members_in("warren:x:998:ann,eve\n", accounts), [1000, 1001]);
        assert!(members_in("users:x:100:ann\n", accounts).is_empty());
    }

    #[test]
    fn the_groups_number_is_found_by_its_whole_name() {
        assert_eq!(group_in("root:x:0:\nwarrens:x:7:\nwarren:x:998:ann,bob\n"), Some(998));
        assert_eq!(group_in("warren:x:\n#warren:x:1:\n"), None);
        assert_eq!(group_in("# nothing\n"), None);
    }
}
