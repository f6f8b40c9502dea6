//! Enrols a key at an exit with an invitation, over a connection that carries only one request and its answer.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use warren_quic::driver::{CloseReason, Endpoint as QuicEndpoint, Event, Inbox};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::TransportSettings;
use warren_session::clients::is_valid_name;
use warren_session::goodbye::Goodbye;
use warren_session::message::{Enrol, Message, MessageDecoder, encode};

use super::exits;
use super::lookup::{NameServers, lookup};
use warren_config::Endpoint;

/// The parameters of an enrolment.
pub struct Enrolment<'a> {
    /// The address at which the exit listens.
    pub endpoint: &'a Endpoint,
    /// The public key that the exit must prove.
    pub exit_key: PublicKey,
    /// The key to enrol.
    pub identity: &'a PrivateKey,
    /// The invitation's token in the form that is sent to the exit.
    pub token: String,
    /// The name that this machine proposes for itself.
    pub name: &'a str,
}

/// Why the enrolment failed, as a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnrolError {
    /// The exit was not reached, so it has not enrolled the key.
    NotReached(String),
    /// The exit was asked and did not answer. It may or may not have enrolled the key.
    NotAnswered(String),
    /// The exit refused, or another exit answered than the one that the invitation names.
    Refused(String),
}

impl Enrolment<'_> {
    /// Asks each address of the exit in turn, for at most `timeout`. Returns the name that the operator gave.
    pub async fn run(&self, timeout: Duration) -> Result<String, EnrolError> {
        let mut asked = false;
        let tried = tokio::time::timeout(timeout, self.try_each_address(&mut asked)).await;
        match tried {
            Ok(answer) => answer,
            Err(_) => Err(self.silent(asked, "no answer in time")),
        }
    }

    async fn try_each_address(&self, asked: &mut bool) -> Result<String, EnrolError> {
        let addresses =
            lookup(self.endpoint, &NameServers::find(None).await).await.map_err(EnrolError::NotReached)?;
        let mut last = EnrolError::NotReached(format!("{} has no address", self.endpoint.host()));
        for address in addresses {
            match tokio::time::timeout(warren_session::HANDSHAKE_TIMEOUT, self.ask(address, asked)).await {
                Ok(Ok(name)) => return Ok(name),
                // A refusal counts only once the exit has proven its key and was asked. Before that, anybody on the path can forge
                // a refusal, so the other addresses are tried.
                Ok(Err(error @ EnrolError::Refused(_))) if *asked => return Err(error),
                Ok(Err(error)) => last = error,
                Err(_) => last = self.silent(*asked, "no answer within 5 s"),
            }
        }
        Err(last)
    }

    async fn ask(&self, remote: SocketAddr, asked: &mut bool) -> Result<String, EnrolError> {
        let not_reached = |error: String| EnrolError::NotReached(error);
        let socket = exits::bind(remote).map_err(|error| not_reached(unusable_socket(&error)))?;
        let mut endpoint = QuicEndpoint::client(TransportSettings::default(), self.identity.clone())
            .map_err(|error| not_reached(error.to_string()))?;
        endpoint.connect(socket, remote, &[self.exit_key]).map_err(|error| {
            not_reached(format!("cannot connect to {remote}: {error}; check this host's network"))
        })?;
        let answer = self.converse(&mut endpoint, asked).await;
        // Tells the exit at once that the connection is closed, so that it need not wait for the idle timeout.
        endpoint.shutdown().await;
        answer
    }

    async fn converse(&self, endpoint: &mut QuicEndpoint, asked: &mut bool) -> Result<String, EnrolError> {
        let mut inbox = Inbox::new();
        let mut decoder = MessageDecoder::new();
        loop {
            poll_fn(|context| endpoint.poll(context, &mut inbox)).await;
            // There is no session, so datagrams mean nothing here.
            inbox.datagrams.clear();
            for event in inbox.events.drain(..) {
                match event {
                    Event::Connected { connection, .. } => {
                        let enrol = Enrol { token: self.token.clone(), name: self.name.to_owned() };
                        // Once the request is sent, the exit may enrol the key even if its answer is lost.
                        *asked = endpoint.send_control(connection, &encode(&Message::Enrol(enrol))).is_ok();
                    }
                    Event::Control { data, .. } => {
                        decoder.push(&data);
                        match decoder.next() {
                            Ok(Some(Message::Enrolled(enrolled))) => return self.enrolled(enrolled.name),
                            Ok(Some(Message::Goodbye(goodbye))) => {
                                return Err(self.told(u64::from(goodbye.reason), *asked));
                            }
                            Ok(_) => {}
                            Err(error) => return Err(self.silent(*asked, &error.to_string())),
                        }
                    }
                    Event::Closed { reason, .. } => return Err(self.closed(reason, *asked)),
                    Event::Writable { .. } | Event::Answers { .. } => {}
                }
            }
        }
    }

    /// Checks the name that the exit gave. It is printed on the user's terminal, where control characters could do harm.
    fn enrolled(&self, name: String) -> Result<String, EnrolError> {
        if is_valid_name(&name) {
            return Ok(name);
        }
        Err(EnrolError::Refused(format!(
            "{} broke the protocol: it gave this client a name that no client can have; ask its operator",
            self.endpoint
        )))
    }

    fn closed(&self, reason: CloseReason, asked: bool) -> EnrolError {
        let endpoint = self.endpoint;
        match reason {
            CloseReason::Peer { code, .. } => self.told(code, asked),
            // The request may have reached the exit at an earlier address, and the exit may have enrolled the key. So this is not
            // a definite refusal.
            unproven @ (CloseReason::WrongPeerKey { .. } | CloseReason::NoCommonProtocol) if asked => {
                self.silent(asked, &unproven.to_string())
            }
            CloseReason::WrongPeerKey { presented } => EnrolError::Refused(format!(
                "{endpoint} showed the key {presented}, which is not the key in the invitation; ask its operator for a new \
                 invitation"
            )),
            CloseReason::NoCommonProtocol => EnrolError::Refused(format!(
                "{endpoint} does not speak Warren's protocol; ask its operator for a new invitation"
            )),
            other @ (CloseReason::Local
            | CloseReason::TimedOut
            | CloseReason::Reset
            | CloseReason::Transport(_)) => self.silent(asked, &other.to_string()),
        }
    }

    fn told(&self, code: u64, asked: bool) -> EnrolError {
        let goodbye = u32::try_from(code).ok().and_then(Goodbye::from_code);
        match goodbye {
            Some(goodbye) if goodbye.is_final() => {
                EnrolError::Refused(format!("the exit {} refused: {goodbye}", self.endpoint))
            }
            Some(goodbye) => self.silent(asked, &goodbye.to_string()),
            None => self.silent(asked, &format!("it closed the connection with code {code}")),
        }
    }

    fn silent(&self, asked: bool, why: &str) -> EnrolError {
        let endpoint = self.endpoint;
        if asked {
            EnrolError::NotAnswered(format!("{endpoint} did not answer ({why})"))
        } else {
            EnrolError::NotReached(format!(
                "{endpoint} was not reached ({why}); check that the exit runs and that UDP to it is not blocked; or ask for a new \
                 invitation, because an exit does not answer an invitation that contains its previous key"
            ))
        }
    }
}

fn unusable_socket(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return "cannot mark the UDP socket: not permitted; run it as root".to_owned();
    }
    format!("cannot open a UDP socket: {error}; check the limit on descriptors")
}
