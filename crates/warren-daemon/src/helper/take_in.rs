//! Makes the cgroups of both sides of the tunnel, and moves users' processes into them.

use std::io;
use std::os::fd::OwnedFd;

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
/// The number of a process may belong to another process by now. So only a process that belongs to `user` alone is moved.
/// Users can thus move only their own processes.
///
/// # Errors
/// If it is another user's process, or has ended, or the kernel refuses.
pub(super) fn take_in(group: &ExecGroup, process: u32, user: u32) -> io::Result<()> {
    move_only(process, user, || group.take_in(process), || group.put_back(process))
}

/// Moves a process that belongs to `user` alone. The kernel moves processes by number, and the process that asked may have
/// ended just before. If another process was moved in its place, puts that process back.
fn move_only(
    process: u32,
    user: u32,
    take_in: impl FnOnce() -> io::Result<()>,
    put_back: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let gone = || io::Error::other("the process that asked has ended");
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    // The handle always refers to this process, even after its number is used again.
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).map_err(|_| gone())?;
    if !is_of(user, &status) {
        return Err(io::Error::other(format!(
            "process {process} does not belong to user {user} alone; a program that has changed its user cannot be moved"
        )));
    }
    // While the process lives, no other process gets its number. So the status that was read belongs to this
    // process.
    if has_ended(&handle)? {
        return Err(gone());
    }
    take_in()?;
    if has_ended(&handle)? {
        put_back()?;
        return Err(gone());
    }
    Ok(())
}

/// Whether a process has ended. The handle of an ended process is readable.
fn has_ended(handle: &OwnedFd) -> io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&now))? != 0)
}

/// Whether all user IDs of a process are those of this user, according to its `/proc/PID/status`.
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

    #[test]
    fn what_takes_an_ended_askers_number_is_put_back() {
        let me = rustix::process::geteuid().as_raw();
        for ends in [true, false] {
            let mut asker = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let process = asker.id();
            let was_put_back = std::cell::Cell::new(false);
            let take_in = || {
                if ends {
                    asker.kill()?;
                    // From here on, another process may get its number.
                    asker.wait()?;
                }
                Ok(())
            };
            let put_back = || {
                was_put_back.set(true);
                Ok(())
            };
            assert_eq!(move_only(process, me, take_in, put_back).is_err(), ends);
            assert_eq!(was_put_back.get(), ends);
            // The first one has ended already.
            drop(asker.kill());
            asker.wait().unwrap();
        }
    }
}
