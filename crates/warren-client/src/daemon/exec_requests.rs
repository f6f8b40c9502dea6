//! Owns the socket on which users other than root ask to put programs inside or outside the tunnel.

use super::host_upkeep::HostUpkeep;
use crate::exec_users::ExecUsers;
use warren_control::RequestRefused;
use warren_control::exec_socket::{ExecAsked, UserWish};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_host::exec_groups::Side;

/// The users' requests for a profile's tunnel.
pub(super) struct ExecRequests {
    users: ExecUsers,
    directory: DaemonDirectory,
    name: String,
}

impl ExecRequests {
    pub(super) fn new(users: ExecUsers, directory: DaemonDirectory, name: String) -> Self {
        Self { users, directory, name }
    }

    /// Waits for the next request.
    pub(super) async fn next(&mut self) -> ExecAsked {
        self.users.next().await
    }

    /// Moves a process of a user whom the profile allows. `is_up`: whether the tunnel carries packets.
    pub(super) async fn answer(&self, asked: ExecAsked, host: &mut HostUpkeep, is_up: bool) {
        let ExecAsked { process, user, wish, answer } = asked;
        let moved = match wish {
            UserWish::Inside => self.move_process(host, process, user, Side::Inside).await,
            UserWish::Outside => self.move_process(host, process, user, Side::Outside).await,
            UserWish::Portal => self.open_portal(host, process, user, is_up).await,
        };
        match &moved {
            Ok(()) => tracing::info!(user, process, ?wish, "a user put a program into or out of the tunnel"),
            Err(refusal) => tracing::info!(user, process, "a user was refused: {refusal}"),
        }
        // Nobody waits for the answer if the command was interrupted meanwhile.
        drop(answer.send(moved));
    }

    /// Lets a user's process reach a login page, if the profile allows this user.
    async fn open_portal(
        &self,
        host: &mut HostUpkeep,
        process: u32,
        user: u32,
        is_up: bool,
    ) -> Result<(), RequestRefused> {
        let name = self.name.as_str();
        if !self.users.allows_portal(user) {
            return Err(RequestRefused::new(format!(
                "user {user} may not open a login page; run `sudo warren portal {name}`, or have root set portal = \"group\" in \
                 [kill_switch], add the user to the group warren, and run `warren down {name}` and `warren up {name}`"
            )));
        }
        if is_up {
            return Err(RequestRefused::new(format!(
                "{name} is connected, so no login page is in the way; see `warren status {name}`"
            )));
        }
        let opened = host.open_portal(&self.directory, name, (process, user)).await;
        opened.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }

    async fn move_process(
        &self,
        host: &mut HostUpkeep,
        process: u32,
        user: u32,
        side: Side,
    ) -> Result<(), RequestRefused> {
        let name = &self.name;
        if !self.users.allows(user) {
            return Err(RequestRefused::new(format!(
                "user {user} may not use `warren exec {name}`; run it as root, or have root name the user under users in [exec] of \
                 the profile and run `warren down {name}` and `warren up {name}`"
            )));
        }
        let moved = host.take_in(process, user, side).await;
        moved.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }
}
