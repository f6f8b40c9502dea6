//! Wishes for programs inside or outside of the tunnel, by root on the control socket and by other users on theirs.

use std::net::IpAddr;

use super::Daemon;
use warren_control::RequestRefused;
use warren_control::exec_socket::ExecAsked;
use warren_host::exec_groups::Side;

impl Daemon {
    /// Makes this host ready for programs on a side. Returns the resolvers that they use.
    pub(super) async fn prepare_exec(&mut self, side: Side) -> Result<Vec<IpAddr>, RequestRefused> {
        let ready = self.host.prepare_exec(side).await;
        ready.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }

    /// Moves a process of a user whom the profile allows.
    pub(super) async fn answer_user(&mut self, asked: ExecAsked) {
        let ExecAsked { process, user, side, answer } = asked;
        let moved = self.move_process(process, user, side).await;
        match &moved {
            Ok(()) => tracing::info!(user, process, ?side, "a user has put a program on a side of its own"),
            Err(refusal) => tracing::info!(user, process, "`warren exec` was refused: {refusal}"),
        }
        // The command may have been interrupted meanwhile.
        drop(answer.send(moved));
    }

    async fn move_process(&mut self, process: u32, user: u32, side: Side) -> Result<(), RequestRefused> {
        drop(self.prepare_exec(side).await?);
        let moved = self.start.helper.take_in(process, user, side).await;
        moved.map_err(|error| RequestRefused::new(format!("{error:#}")))
    }
}
