//! The users besides root who may put their own programs inside or outside of the tunnel.

use warren_config::{ClientProfile, PortalOpener};
use warren_control::exec_socket::{ExecAsked, ExecSocket};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::members;
use warren_daemon::output;

/// The users that the profile names, and the socket for their requests.
pub(crate) struct ExecUsers {
    socket: ExecSocket,
    allowed: Vec<u32>,
    /// The users who may open a login page.
    portal: Vec<u32>,
}

impl ExecUsers {
    /// Binds the socket if the profile allows any user. This must come before the sandbox, which forbids it.
    ///
    /// # Errors
    /// When the socket cannot be bound.
    pub(crate) fn of(profile: &ClientProfile, directory: &DaemonDirectory) -> anyhow::Result<Self> {
        let users = &profile.exec.users;
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mut allowed = Vec::new();
        for user in users {
            match number_of(user, &accounts) {
                Some(number) => allowed.push(number),
                None => output::warn(format!(
                    "users in [exec] of {} has {user:?}, but /etc/passwd has no such user; if another directory has the \
                     account, write the user's number, which `id -u {user}` prints",
                    profile.name
                )),
            }
        }
        let mut portal = match profile.kill_switch.portal {
            PortalOpener::Group => members::all(),
            PortalOpener::Root | PortalOpener::Nobody => Vec::new(),
        };
        if profile.kill_switch.portal != PortalOpener::Nobody && profile.kill_switch.allow_exec_outside {
            // Users who may put any program outside of the tunnel may also open a login page.
            portal.extend(&allowed);
        }
        if users.is_empty() && portal.is_empty() {
            return Ok(Self { socket: ExecSocket::none(), allowed, portal });
        }
        let served = [allowed.as_slice(), portal.as_slice()].concat();
        let socket = ExecSocket::bind(directory.runtime_dir(), profile.name.as_str(), served)?;
        Ok(Self { socket, allowed, portal })
    }

    /// Waits for the next request.
    pub(crate) async fn next(&mut self) -> ExecAsked {
        self.socket.next().await
    }

    /// Whether a user may open a login page.
    pub(crate) fn allows_portal(&self, user: u32) -> bool {
        user == 0 || self.portal.contains(&user)
    }

    /// Whether a user may put programs inside or outside.
    pub(crate) fn allows(&self, user: u32) -> bool {
        user == 0 || self.allowed.contains(&user)
    }
}

/// Returns the user ID of `user`, read from the lines of passwd(5) in `accounts`.
fn number_of(user: &str, accounts: &str) -> Option<u32> {
    members::number_in(accounts, user).or_else(|| user.parse().ok())
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
