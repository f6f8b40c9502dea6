//! Answers users: requests of the command line on the control socket, and signals. When the profile is read again, either all its
//! changes take effect or none.

use std::time::Instant;

use anyhow::bail;

use warren_session::client::SessionGrant;

use super::{Daemon, Settings};
use crate::kill_switch;
use warren_config::{ClientProfile, load_profile};
use warren_control::status::{ClientSessionStatus, ClientStatus, ExitPeer, Observed, State, Status};
use warren_control::{PendingRequest, Reloaded, Request, RequestRefused};
use warren_daemon::notify;
#[cfg(debug_assertions)]
use warren_daemon::panics;

impl Daemon {
    pub(super) async fn answer(&mut self, asked: PendingRequest) {
        let response = match asked.request {
            Request::Status => self.status().await,
            Request::Stop => {
                self.stop().await;
                Ok(serde_json::Value::Null)
            }
            Request::Set { change } => Ok(change.apply(&self.tuning).into()),
            Request::Reload => self.reload().await,
            Request::Exec { side } => {
                let servers = self.host.prepare_exec(side).await;
                servers.map_err(refused).and_then(|servers| serde_json::to_value(servers).map_err(refused))
            }
            Request::Retry => self.retry().await,
            Request::NetworkResolvers => {
                serde_json::to_value(self.host.listed_resolvers().await).map_err(refused)
            }
            #[cfg(debug_assertions)]
            Request::BreakDown { part } => {
                panics::cause(part, &self.sessions.worker).await;
                Ok(serde_json::Value::Null)
            }
            Request::ClientAdd { .. }
            | Request::ClientAddAll { .. }
            | Request::ClientList { .. }
            | Request::ClientShow { .. }
            | Request::ClientInvite { .. }
            | Request::InvitationList { .. }
            | Request::IsInvited { .. }
            | Request::RemovedList { .. }
            | Request::ClientImport { .. }
            | Request::ClientRemove { .. }
            | Request::ClientChange { .. }
            | Request::PublicKeys
            | Request::SetKeys { .. }
            | Request::Drain { .. } => Err(RequestRefused::new("this is a client; run it on the exit")),
        };
        // The command is gone if it was interrupted meanwhile.
        drop(asked.answer.send(response.map(Into::into)));
    }

    /// Samples the traffic counters, from which rates are calculated, and checks for changes that cause no events. Call it once a
    /// second.
    pub(super) async fn measure(&mut self) {
        let snapshot = self.sessions.worker.snapshot().await.unwrap_or_default();
        let now = Instant::now();
        self.meter.take(now, &snapshot);
        self.spare_memory.look(now, &self.sessions.worker).await;
        self.check_next_key().await;
        self.host.close_portal_if_over(self.health.is_up()).await;
        if self.health.is_slow(self.sessions.welcome().is_some()) {
            self.diagnose();
        }
    }

    /// Stops for good. Connections through the tunnel end first, so that their last packets still go through it.
    pub(super) async fn stop(&mut self) {
        self.host.get_ready_to_undo();
        self.sessions.end_flows().await;
        self.make_way();
    }

    /// Stops in favour of another daemon that gets the same addresses. Connections through the tunnel survive.
    pub(super) fn make_way(&mut self) {
        self.health.set_state(State::Stopping);
        self.sessions.pair.stop_for_good(Instant::now());
    }

    /// Answers an `up` for a daemon that the exits have refused. The profile is read again first, because the old profile may
    /// be the reason for the refusal.
    async fn retry(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let answer = self.read_profile().await?;
        self.go_on(true).await.map_err(refused)?;
        if self.health.refusal.is_refused() {
            self.ask_again().await.map_err(refused)?;
            self.health.refusal.forget();
            let had_session = self.sessions.welcome().is_some();
            self.health.set_state(if had_session { State::Reconnecting } else { State::Connecting });
            notify::status(self.health.state().name());
        }
        Ok(answer)
    }

    /// Reads the profile again and applies it. The connections stay, and no packets are lost.
    pub(super) async fn reload(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let answer = self.read_profile().await?;
        if self.health.refusal.follow(self.settings.profile.routes.when_refused) {
            self.ask_again().await.map_err(refused)?;
        }
        Ok(answer)
    }

    /// Reads the profile again, and reports the changes.
    async fn read_profile(&mut self) -> Result<serde_json::Value, RequestRefused> {
        let outcome = self.take_over().await;
        match &outcome {
            Ok(reloaded) => tracing::info!("profile read again: {reloaded}"),
            Err(error) => tracing::error!("the profile stays as it was: {error:#}"),
        }
        self.health.reload_error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let reloaded = outcome.map_err(refused)?;
        serde_json::to_value(reloaded).map_err(refused)
    }

    async fn take_over(&mut self) -> anyhow::Result<Reloaded> {
        let mut profile = load_profile(&self.settings.file)?;
        // `up` has told this daemon to try an exit first.
        if let Some(exit) = &self.settings.first_exit {
            // If the new profile lacks that exit, its endpoints differ, and it is refused below.
            let _ = profile.put_first(exit);
        }
        if self.settings.host_outside {
            profile.leave_host_outside();
        }
        // Changes nothing until the whole profile is known to be usable.
        let all = self.settings.profile.changes(&profile);
        let changed = what_takes_a_restart(&self.settings.profile, &profile, &all);
        if !changed.is_empty() {
            bail!(
                "{}: {} changed, which needs `warren down` and `warren up`; nothing was changed",
                self.settings.file.display(),
                changed.join(" and ")
            );
        }
        let is_closed =
            profile.kill_switch.enabled || self.host.lockdown.is_closed() || self.on_demand.has_opened;
        if is_closed {
            // Refuses settings that no kill switch can enforce, before anything is changed.
            kill_switch::rules(&profile).await?;
        }
        self.host.setup.follow(&profile, is_closed, self.sessions.welcome()).await?;
        // The kill switch follows after the routes, so that it never allows packets to a network that the routes still lead into
        // the tunnel.
        let listed = self.host.listed_resolvers().await;
        self.host.exec.allow_outside(profile.kill_switch.allow_exec_outside);
        // While the tunnel rests, on-demand may have opened the kill switch. It is closed again when the tunnel goes on.
        if self.on_demand.resting().is_none() {
            self.host.lockdown.follow(&profile, &self.settings.directory, &listed).await?;
        }
        self.host.follow_exec().await?;
        self.host.put_off_look();
        self.on_demand.follow(&profile.on_demand.trusted, Instant::now());
        self.sessions.connections.exits.take_keys(&profile);
        let had_fleet = self.exit_news.fleet.roster().is_some();
        self.exit_news.fleet.follow_profile(&profile);
        profile.transport.retune(&self.settings.profile.transport, &self.tuning);
        self.settings.profile = profile;
        if had_fleet {
            self.follow_roster().await
        } else {
            self.exit_news.follow(&self.settings.profile, &mut self.sessions);
        }
        Ok(Reloaded::of(&all))
    }

    /// Lists problems that exist even if traffic flows. `opened` describes a problem with the kill switch.
    fn warnings(&self, opened: Option<String>) -> Vec<String> {
        let own = [
            opened,
            self.sessions.unproven(),
            host_outside(&self.settings),
            never_rests(&self.settings, self.host.lockdown.is_closed()),
            self.exit_news.fleet.problem(),
        ];
        self.host.setup.warnings().into_iter().chain(own.into_iter().flatten()).collect()
    }

    async fn status(&self) -> Result<serde_json::Value, RequestRefused> {
        let connections = &self.sessions.connections;
        let mut snapshot = self.sessions.worker.snapshot().await.unwrap_or_default();
        // Connection indices refer to the session in use.
        for each in &mut snapshot.connections {
            each.index = each.index.filter(|_| !connections.is_beside(each.connection));
        }
        let (exit, key) = (connections.exit(), connections.exit_key());
        let member = connections.exits.member(connections.exits.current()).map(str::to_owned);
        let next = self.exit_news.next_key(&self.settings.profile, &self.sessions, key);
        // A kill switch whose table is gone counts as open, even if the journal says that it is closed.
        let opened = self.host.lockdown.trouble().await;
        let client = ClientStatus {
            profile: self.settings.name.clone(),
            exit: ExitPeer {
                endpoint: exit.endpoint.to_string(),
                address: connections.way().map(|way| way.remote),
                public_key: key.map(|key| key.to_string()).unwrap_or_default(),
                next_public_key: next.map(|key| key.to_string()),
            },
            session: self
                .sessions
                .welcome()
                .filter(|_| !self.health.refusal.is_refused())
                .map(|welcome| session_status(welcome, self.host.setup.takes_ipv6())),
            refused: self.health.refusal.status(),
            roster: self.exit_news.fleet.status(member),
            moving: self.sessions.moves.status(Instant::now()),
            error: self.health.host_trouble().map(str::to_owned),
            kill_switch: self.host.lockdown.is_closed() && opened.is_none(),
            host_outside: self.settings.host_outside,
            warnings: self.warnings(opened),
            last_error: self.health.last_error.clone(),
            resting: self.on_demand.resting().map(str::to_owned),
            reconnects: self.health.reconnects,
            dropped_queries: self.host.setup.dropped_queries(),
        };
        let (state, since) = self.health.shown_state();
        let observed = Observed {
            state,
            since,
            device: self.host.setup.device(),
            host_changes: [self.host.lockdown.changes(), self.host.exec.changes(), self.host.setup.changes()]
                .concat(),
            reload_error: self.health.reload_error.clone(),
            tuning: &self.tuning,
            snapshot,
            meter: &self.meter,
            sandbox: warren_daemon::sandbox::in_force(),
        };
        let status = Status::client(client, observed);
        serde_json::to_value(status).map_err(refused)
    }
}

/// Turns an error into the refusal of a request. The text contains the error's whole chain of causes.
fn refused(error: impl Into<anyhow::Error>) -> RequestRefused {
    RequestRefused::new(format!("{:#}", error.into()))
}

/// The session in use, as the status shows it. `takes_ipv6`: whether this host has IPv6.
fn session_status(welcome: &SessionGrant, takes_ipv6: bool) -> ClientSessionStatus {
    ClientSessionStatus {
        id: welcome.session,
        ipv4: welcome.ipv4.map(|(address, prefix)| format!("{address}/{prefix}")),
        ipv6: welcome.ipv6.filter(|_| takes_ipv6).map(|(address, prefix)| format!("{address}/{prefix}")),
        gateway_ipv4: welcome.gateway_ipv4,
        gateway_ipv6: welcome.gateway_ipv6.filter(|_| takes_ipv6),
        mtu: welcome.mtu,
        connections: welcome.connections,
        prefixes: welcome.prefixes.iter().map(ToString::to_string).collect(),
    }
}

/// Returns a warning if the host's own traffic stays outside, because a user may expect the whole host in the tunnel.
fn host_outside(settings: &Settings) -> Option<String> {
    let name = &settings.name;
    settings.host_outside.then(|| {
        format!(
            "{name} is up only for `warren exec {name}`, and this host's own traffic stays outside; run `warren down {name}` \
             and `warren up {name}` to put the host inside"
        )
    })
}

/// Returns a warning if the tunnel cannot rest on trusted networks because its kill switch is closed.
fn never_rests(settings: &Settings, is_closed: bool) -> Option<String> {
    let on_demand = &settings.profile.on_demand;
    let is_kept = !on_demand.trusted.is_empty() && is_closed && !on_demand.opens_kill_switch;
    is_kept.then(|| {
        "the tunnel stays up on trusted networks too, because the kill switch is closed; set trusted_opens_kill_switch = true \
         in [on_demand] to open it there"
            .to_owned()
    })
}

/// The changed settings that a running client cannot follow.
fn what_takes_a_restart<'a>(
    before: &ClientProfile,
    after: &ClientProfile,
    changed: &[&'a str],
) -> Vec<&'a str> {
    const FIXED: [&str; 6] = [
        "the private key",
        "endpoint in [[exit]]",
        "name in [tun]",
        "mtu in [tun]",
        "prefixes in [routes]",
        "users in [exec]",
    ];
    let fixed = before.transport.fixed_changes(&after.transport);
    // Only a command opens the kill switch, so removing the setting has no effect by itself.
    let opens = before.kill_switch.enabled && !after.kill_switch.enabled;
    // The stub resolver's port can be bound only before the daemon enters its sandbox.
    let starts = before.dns.domains.is_empty() != after.dns.domains.is_empty();
    let takes_restart = |name: &&&str| {
        FIXED.contains(*name)
            || fixed.contains(*name)
            || (opens && **name == "enabled in [kill_switch]")
            || (starts && **name == "domains in [dns]")
    };
    changed.iter().filter(takes_restart).copied().collect()
}
