//! Makes the cgroups of both sides of the tunnel, and moves users' processes into them.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warren_host::exec_groups::{ExecGroup, Side};

/// Makes the cgroups of the daemon `name`.
///
/// # Errors
/// If this host has no cgroup v2, or the kernel refuses.
pub(super) fn make_groups(name: &str) -> io::Result<()> {
    [Side::Inside, Side::Outside].into_iter().try_for_each(|side| ExecGroup::of(name, side)?.make())
}

/// Moves a process into a cgroup.
///
/// The number of a process may belong to another one by now, so only a process that is `user`'s alone is moved. A user can
/// do no more with this than move its own processes.
///
/// # Errors
/// If it is another user's process, or has ended, or the kernel refuses.
pub(super) fn take_in(group: &ExecGroup, process: u32, user: u32) -> io::Result<()> {
    let gone = || io::Error::other("the process that asked has ended");
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    // Refers to this process for good, even after its number is used again.
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).map_err(|_| gone())?;
    if !is_of(user, &status) {
        return Err(io::Error::other(format!(
            "process {process} does not belong to user {user} alone; a program that has changed its user cannot be moved"
        )));
    }
    group.take_in(process)?;
    // The handle of a process that has ended can be read. The asker is waiting for the answer, so it has not.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&now))?;
    if ended == 0 { Ok(()) } else { Err(gone()) }
}

/// Whether all of a process's users are this one, according to its `/proc/PID/status`.
fn is_of(user: u32, status: &str) -> bool {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let mut users = users.split_whitespace().map(str::parse);
    users.clone().count() == 4 && users.all(|one| one == Ok(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_a_second_user_is_nobodys() {
        assert!(is_of(1000, "Name:\tcurl\nUid:\t1000\t1000\t1000\t1000\n"));
        assert!(!is_of(1000, "Uid:\t1000\t0\t0\t0\n"));
        assert!(!is_of(1000, "Uid:\t1000\n"));
        assert!(!is_of(0, "Name:\tx\n"));
    }
}
