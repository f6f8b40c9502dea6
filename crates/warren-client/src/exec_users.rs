//! The users beside root who may put their own programs inside or outside of the tunnel.

use warren_config::ClientProfile;
use warren_control::exec_socket::ExecSocket;
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::output;

/// Binds the socket on which the users that the profile names ask, if it names any. The sandbox would forbid that.
///
/// # Errors
/// When the socket cannot be bound.
pub(crate) fn socket(profile: &ClientProfile, directory: &DaemonDirectory) -> anyhow::Result<ExecSocket> {
    let users = &profile.exec.users;
    if users.is_empty() {
        return Ok(ExecSocket::none());
    }
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut allowed = Vec::new();
    for user in users {
        match number_of(user, &accounts) {
            Some(number) => allowed.push(number),
            None => output::warn(format!(
                "users in [exec] of {} has {user:?}, whom /etc/passwd does not list; write the user's number, which `id -u {user}` \
                 prints, if another directory has the account",
                profile.name
            )),
        }
    }
    ExecSocket::bind(directory.runtime_dir(), profile.name.as_str(), allowed)
}

/// The number of a user according to the lines of passwd(5).
fn number_of(user: &str, accounts: &str) -> Option<u32> {
    let number = |line: &str| line.split(':').nth(2)?.parse().ok();
    let listed = accounts.lines().find(|line| line.split(':').next() == Some(user));
    listed.and_then(number).or_else(|| user.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_known_by_name_or_by_number() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(number_of("alice", accounts), Some(1000));
        assert_eq!(number_of("1234", accounts), Some(1234));
        assert_eq!(number_of("bob", accounts), None);
        assert_eq!(number_of("ali", accounts), None);
    }
}
