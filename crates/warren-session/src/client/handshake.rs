//! The client's side of the handshake: the messages that it sends on a new connection, and how it handles the replies.

use std::time::Instant;

use super::link::{Link, Phase};
use super::{ClientAction, ClientSession, Established, Loss, SessionGrant, WelcomeError};
use crate::goodbye::{Goodbye, Violation};
use crate::message::{self, Attach, Hello, Message, Network};
use crate::planted::{Bug, is_planted};
use crate::{HANDSHAKE_TIMEOUT, PROTOCOL_VERSION, PublicKey, ROSTER, UPDATES};

/// Received bytes are decoded in pieces of this size, which keeps the decoder's buffer within its bound.
const PIECE: usize = 16 * 1_024;

impl ClientSession {
    /// Reports that the QUIC handshake is complete and the exit proved the pinned key.
    pub fn connected(&mut self, now: Instant, index: u32) {
        let Some(Phase::Connecting { .. }) = self.link(index).map(|link| link.phase) else { return };
        let deadline = now + HANDSHAKE_TIMEOUT;
        let (message, phase) = match (&self.session, index) {
            (Some(session), _) => {
                let attach_token = session.welcome.attach_token.as_bytes().to_vec();
                let attach = Attach { session: session.welcome.session, attach_token, index };
                (Message::Attach(attach), Phase::Attaching { deadline })
            }
            (None, 0) => (Message::Hello(self.hello()), Phase::Hello { deadline }),
            (None, _) => {
                // The session ended while this connection was being made. Only connection 0 may open another session.
                self.drop_link(index, Some(Goodbye::Superseded));
                return;
            }
        };
        if let Some(link) = self.link_mut(index) {
            link.phase = phase;
        }
        self.actions.push_back(ClientAction::Send { index, bytes: message::encode(&message) });
    }

    /// Handles bytes from the connection's control stream.
    pub fn received(&mut self, now: Instant, index: u32, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            let Some(link) = self.link_mut(index).filter(|link| link.is_open()) else { return };
            link.decoder.push(piece);
            // This loop ends if a message drops the link: a dropped link has a new, empty decoder.
            while let Some(link) = self.link_mut(index) {
                match link.decoder.next() {
                    Ok(Some(message)) => self.handle(now, index, message),
                    Ok(None) => break,
                    Err(error) => return self.violated(now, index, error.into()),
                }
            }
        }
    }

    fn handle(&mut self, now: Instant, index: u32, message: Message) {
        let Some(phase) = self.link(index).filter(|link| link.is_open()).map(|link| link.phase) else {
            return;
        };
        match (phase, message) {
            (_, Message::Goodbye(goodbye)) => self.told_goodbye(now, index, &goodbye),
            (Phase::Hello { .. }, Message::Welcome(welcome)) => self.welcomed(now, index, &welcome),
            (Phase::Attaching { .. }, Message::Attached(attached)) if attached.index == index => {
                self.attached(now, index);
            }
            (Phase::Attaching { .. }, Message::Attached(_)) => self.violated(now, index, Violation::BadIndex),
            (Phase::Attached { .. }, Message::Update(update)) if self.has_feature(UPDATES) => {
                self.updated(now, index, &update);
            }
            (Phase::Attached { .. }, Message::Roster(roster)) if self.has_feature(ROSTER) => {
                self.told_roster(index, roster);
            }
            (
                _,
                Message::Hello(_)
                | Message::Welcome(_)
                | Message::Attach(_)
                | Message::Attached(_)
                | Message::Enrol(_)
                | Message::Enrolled(_)
                | Message::Update(_)
                | Message::Roster(_)
                | Message::Stay(_),
            ) => {
                self.violated(now, index, Violation::OutOfOrder);
            }
        }
    }

    fn welcomed(&mut self, now: Instant, index: u32, message: &message::Welcome) {
        let parsed = SessionGrant::parse(message, &self.config);
        let welcome = match parsed.and_then(|welcome| self.taken.check(&welcome).map(|()| welcome)) {
            Ok(welcome) => welcome,
            Err(error) => return self.bad_welcome(now, index, &error),
        };
        // The host gets its addresses and routes before the packet path may send from them.
        self.actions.push_back(ClientAction::Welcome(Box::new(welcome.clone())));
        let exit_keys = welcome.exit_keys.clone();
        self.session = Some(Established { welcome, since: now, updates: 0 });
        self.attached(now, index);
        self.say_exit_keys(index, exit_keys);
    }

    /// Whether both sides have a feature in this session.
    fn has_feature(&self, feature: u64) -> bool {
        self.session.as_ref().is_some_and(|session| session.welcome.features & feature != 0)
    }

    fn told_roster(&mut self, index: u32, roster: message::Roster) {
        // Only the latest roster counts. If old ones stayed in the queue, an exit could keep the host busy with rosters alone.
        self.actions.retain(|action| !matches!(action, ClientAction::Roster { .. }));
        self.actions.push_back(ClientAction::Roster { index, roster: Box::new(roster) });
    }

    fn updated(&mut self, now: Instant, index: u32, message: &message::Update) {
        let Some(session) = &mut self.session else { return };
        // Every connection brings each update, so an update on a slow connection may be older than one that has been applied.
        if message.number <= session.updates && !is_planted(Bug::StaleUpdateTaken) {
            return;
        }
        let welcome = match session.welcome.updated(message) {
            Ok(welcome) => welcome,
            Err(error) => {
                let why = format!(
                    "the exit changed the session to one that cannot be used: {error}; have its operator correct exit.toml"
                );
                return self.lost(now, index, Loss::violation(Violation::BadWelcome, why));
            }
        };
        session.updates = message.number;
        let is_news = (&welcome.dns, &welcome.routes) != (&session.welcome.dns, &session.welcome.routes);
        let exit_keys = welcome.exit_keys.clone();
        session.welcome = welcome;
        if is_news {
            // The host skips a change that a newer one has replaced. Otherwise an exit could keep the host busy with changes alone.
            self.actions.retain(|action| !matches!(action, ClientAction::Changed(_)));
            self.actions.push_back(ClientAction::Changed(Box::new(session.welcome.clone())));
        }
        self.say_exit_keys(index, exit_keys);
    }

    fn say_exit_keys(&mut self, index: u32, keys: Vec<PublicKey>) {
        if !keys.is_empty() {
            self.actions.push_back(ClientAction::ExitKeys { index, keys });
        }
    }

    fn told_goodbye(&mut self, now: Instant, index: u32, message: &message::Goodbye) {
        // An unknown reason, from a later version, is not final: the client tries again.
        let Some(reason) = Goodbye::from_message(message) else {
            let code = message.reason;
            let why = format!(
                "the exit closed the connection for a reason that this version does not know (code {code}): update Warren here"
            );
            return self.lost(
                now,
                index,
                Loss { answered: true, ..Loss::broken(why).closing(Goodbye::ClientStopped) },
            );
        };
        // A draining exit closes nothing at first: its clients have time to open a session elsewhere.
        if reason == Goodbye::Draining && self.config.moves_without_gap && self.up_count() > 0 {
            match self.link(index).and_then(Link::attached_since) {
                Some(_) => self.actions.push_back(ClientAction::AskedToLeave),
                // The exit refuses new connections. The session's other connections continue.
                None => self.lost(now, index, Loss { closing: Some(reason), ..Loss::said(reason) }),
            }
            return;
        }
        self.farewell(now, index, reason, Some(reason));
    }

    /// Gives up a connection on which the exit broke the protocol. The client retries it later.
    fn violated(&mut self, now: Instant, index: u32, violation: Violation) {
        let why = Goodbye::Protocol(violation).to_string();
        self.lost(now, index, Loss::violation(violation, why));
    }

    fn bad_welcome(&mut self, now: Instant, index: u32, error: &WelcomeError) {
        let advice = match error {
            WelcomeError::Taken { .. } => "have its operator give another address, or use another network",
            WelcomeError::NoAddress
            | WelcomeError::Address { .. }
            | WelcomeError::Gateway { .. }
            | WelcomeError::OutOfRange { .. } => "have its operator correct exit.toml",
        };
        let why = format!("the exit offered a session that cannot be used: {error}; {advice}");
        self.lost(now, index, Loss::violation(Violation::BadWelcome, why));
    }

    fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            features: self.config.features,
            connections_wanted: self.config.connections,
            name: self.config.name.clone(),
            nonce: self.nonce.to_vec(),
            prefixes: self.config.prefixes.iter().copied().map(Network::from).collect(),
            has_other_exit: Some(self.config.has_other_exit),
            fleet: self
                .config
                .fleet
                .as_ref()
                .map(|(name, serial)| message::Fleet { name: name.to_string(), serial: *serial }),
            claim: self.config.claim,
        }
    }
}
