//! Requests to put programs inside or outside the tunnel: from root on the control socket, from other users on a socket of their own.

use std::net::IpAddr;

use super::Daemon;
use super::host_upkeep::HostUpkeep;
use warren_control::RequestRefused;
use warren_control::exec_socket::{ExecAsked, UserWish};
use warren_control::status::State;
use warren_host::exec_groups::Side;

impl Daemon {
    /// Makes this host ready for programs on a side. Returns the resolvers that they use.
    pub(super) async fn prepare_exec(&mut self, side: Side) -> Result<Vec<IpAddr>, RequestRefused> {
        let ready = self.host.prepare_exec(side).await;
        ready.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }

    /// Moves a process of a user whom the profile allows.
    pub(super) async fn answer_user(&mut self, asked: ExecAsked) {
        let ExecAsked { process, user, wish, answer } = asked;
        let moved = match wish {
            UserWish::Inside => self.move_process(process, user, Side::Inside).await,
            UserWish::Outside => self.move_process(process, user, Side::Outside).await,
            UserWish::Portal => self.open_portal(process, user).await,
        };
        match &moved {
            Ok(()) => tracing::info!(user, process, ?wish, "a user has let a program in or out"),
            Err(refusal) => tracing::info!(user, process, "a user was refused: {refusal}"),
        }
        // The command may have been interrupted meanwhile.
        drop(answer.send(moved));
    }

    /// Lets a user's process out to a login page, if the profile allows the user.
    async fn open_portal(&mut self, process: u32, user: u32) -> Result<(), RequestRefused> {
        let name = self.start.name.as_str();
        if !self.exec_users.allows_portal(user) {
            return Err(RequestRefused::new(format!(
                "user {user} may not open a login page; run `sudo warren portal {name}`, or have root set portal = \"group\" in \
                 [kill_switch], add the user to the group warren, and run `warren down {name}` and `warren up {name}`"
            )));
        }
        if self.health.state() == State::Up {
            return Err(RequestRefused::new(format!(
                "{name} is connected, so no login page is in the way; see `warren status {name}`"
            )));
        }
        let HostUpkeep { portal, helper, .. } = &mut self.host;
        let opened = portal.admit(helper, (&self.start.directory, name), (process, user)).await;
        self.host.put_off_look();
        opened.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }

    async fn move_process(&mut self, process: u32, user: u32, side: Side) -> Result<(), RequestRefused> {
        let name = &self.start.name;
        if !self.exec_users.allows(user) {
            return Err(RequestRefused::new(format!(
                "user {user} may not use `warren exec {name}`; run it as root, or have root name the user under users in [exec] of \
                 the profile and run `warren down {name}` and `warren up {name}`"
            )));
        }
        drop(self.prepare_exec(side).await?);
        let moved = self.start.helper.take_in(process, user, side).await;
        moved.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }
}
