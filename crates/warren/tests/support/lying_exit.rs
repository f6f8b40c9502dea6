//! An exit with the key that a client pins, which sends the messages that a test specifies.

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use warren_quic::driver::{ConnectionId, Endpoint, Event, Inbox};
use warren_quic::key::PrivateKey;
use warren_quic::settings::TransportSettings;
use warren_session::message::{Attached, Enrolled, Message, MessageDecoder, Network, Welcome, encode};

use super::library_client::runtime;
use super::{Net, flows};

/// The inner addresses: `LEASE` is assigned to the client, and the other one is the lying exit's own.
pub const LEASE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// How long the lying exit receives before it checks for other work.
const MOMENT: Duration = Duration::from_millis(5);

/// A lying exit that listens on the exit's host until this is dropped.
pub struct LyingExit {
    /// `None` once the lying exit must end.
    lie: Option<Sender<()>>,
    done: Receiver<()>,
}

impl LyingExit {
    /// Listens, welcomes every client and answers echoes. [`Self::lie`] sends the datagrams and the control stream's bytes.
    pub fn start(net: &Net, key: PrivateKey, datagrams: Vec<Vec<u8>>, control: Vec<u8>) -> Self {
        Self::say_from_the_start(net, key, Answers::default(), (datagrams, control))
    }

    /// Listens and gives every client these answers, without lies.
    pub fn answering(net: &Net, key: PrivateKey, answers: Answers) -> Self {
        Self::say_from_the_start(net, key, answers, Default::default())
    }

    /// Gives every client these answers. [`Self::lie`] sends the control stream's bytes.
    pub fn lying(net: &Net, key: PrivateKey, answers: Answers, control: Vec<u8>) -> Self {
        Self::say_from_the_start(net, key, answers, (Vec::new(), control))
    }

    fn say_from_the_start(
        net: &Net,
        key: PrivateKey,
        answers: Answers,
        (datagrams, control): (Vec<Vec<u8>>, Vec<u8>),
    ) -> Self {
        let ((lie, lies), (told, done), (bound, ready)) = (channel(), channel(), channel());
        net.exit.enter(move || {
            runtime().block_on(async move {
                let socket = flows::bound((Net::EXIT_V4, 443));
                socket.set_nonblocking(true).unwrap();
                let settings = TransportSettings::default();
                let endpoint = Endpoint::exit(settings, vec![key], vec![socket], [7; 64]).unwrap();
                bound.send(()).unwrap();
                let (decoder, inbox) = (MessageDecoder::new(), Inbox::new());
                let mut mouth = Mouth { endpoint, decoder, inbox, first: None, answers };
                loop {
                    mouth.hear().await;
                    match (lies.try_recv(), mouth.first) {
                        (Ok(()), Some(connection)) => {
                            mouth.say(connection, &datagrams).await;
                            mouth.endpoint.send_control(connection, &control).unwrap();
                            told.send(()).unwrap();
                        }
                        (Err(std::sync::mpsc::TryRecvError::Disconnected), _) => return,
                        _ => {}
                    }
                }
            });
        });
        ready.recv().unwrap();
        Self { lie: Some(lie), done }
    }

    /// Sends all lies to the connected client.
    pub fn lie(&self, within: Duration) {
        self.lie.as_ref().unwrap().send(()).unwrap();
        self.done.recv_timeout(within).unwrap();
    }
}

/// The exit's answers.
#[derive(Clone)]
pub struct Answers {
    /// The answer to a Hello.
    pub welcome: Welcome,
    /// The client's name in the answer to an invitation.
    pub name: String,
}

impl Default for Answers {
    fn default() -> Self {
        Self { welcome: welcome(), name: "laptop".to_owned() }
    }
}

impl Answers {
    /// Answers with other inner addresses, in one /24 network.
    pub fn with_lease(lease: Ipv4Addr, gateway: Ipv4Addr) -> Self {
        let network = Network { address: lease.octets().to_vec(), prefix_length: 24 };
        let (ipv4, gateway_ipv4) = (Some(network), gateway.octets().to_vec());
        Self { welcome: Welcome { ipv4, gateway_ipv4, ..welcome() }, ..Self::default() }
    }
}

impl Drop for LyingExit {
    /// Waits until the socket is closed, so that another exit can bind the port.
    fn drop(&mut self) {
        self.lie = None;
        while self.done.recv().is_ok() {}
    }
}

struct Mouth {
    endpoint: Endpoint,
    decoder: MessageDecoder,
    inbox: Inbox,
    /// The connection that opened the session.
    first: Option<ConnectionId>,
    answers: Answers,
}

impl Mouth {
    async fn hear(&mut self) {
        let Self { endpoint, inbox, .. } = self;
        // The wait has a timeout, because a client that sends nothing causes no event.
        let _ = tokio::time::timeout(MOMENT, poll_fn(|context| endpoint.poll(context, inbox))).await;
        for (connection, datagram) in std::mem::take(&mut self.inbox.datagrams) {
            if let Some(answer) = echo(&datagram) {
                // If the answer cannot be sent, the client asks again.
                let _ = self.endpoint.send_datagram(connection, answer.into());
            }
        }
        for event in std::mem::take(&mut self.inbox.events) {
            if let Event::Control { connection, data } = event {
                self.answer(connection, &data);
            }
        }
    }

    /// Answers what a client sends on the control stream. Clients send one complete message at a time on each connection.
    fn answer(&mut self, connection: ConnectionId, data: &[u8]) {
        self.decoder.push(data);
        while let Ok(Some(message)) = self.decoder.next() {
            let answer = match message {
                Message::Hello(_) => {
                    self.first = Some(connection);
                    Message::Welcome(self.answers.welcome.clone())
                }
                Message::Attach(attach) => Message::Attached(Attached { index: attach.index }),
                Message::Welcome(_)
                | Message::Attached(_)
                | Message::Goodbye(_)
                | Message::Enrolled(_)
                | Message::Update(_)
                | Message::Stay(_)
                | Message::Roster(_) => {
                    continue;
                }
                Message::Enrol(_) => Message::Enrolled(Enrolled { name: self.answers.name.clone() }),
            };
            self.endpoint.send_control(connection, &encode(&answer)).unwrap();
        }
    }

    async fn say(&mut self, connection: ConnectionId, datagrams: &[Vec<u8>]) {
        for datagram in datagrams {
            while self.endpoint.send_datagram(connection, Bytes::copy_from_slice(datagram)).is_err() {
                self.hear().await;
            }
        }
    }
}

fn welcome() -> Welcome {
    let network = Network { address: LEASE.octets().to_vec(), prefix_length: 24 };
    Welcome {
        session: 1,
        attach_token: vec![7; 16],
        ipv4: Some(network),
        mtu: 1_380,
        routes: vec![Network { address: vec![0; 4], prefix_length: 0 }],
        connections: 1,
        keep_alive_milliseconds: 5_000,
        gateway_ipv4: GATEWAY.octets().to_vec(),
        ..Welcome::default()
    }
}

/// The answer to an ICMP echo request, if the datagram holds one in a complete packet.
fn echo(datagram: &[u8]) -> Option<Vec<u8>> {
    let mut answer = datagram.to_vec();
    let packet = answer.get_mut(1..).filter(|packet| packet.len() >= 28 && packet[0] == 0x45)?;
    if packet[9] != 1 || packet[20] != 8 {
        return None;
    }
    let (source, destination) = (packet[12..16].to_vec(), packet[16..20].to_vec());
    packet[12..16].copy_from_slice(&destination);
    packet[16..20].copy_from_slice(&source);
    packet[20] = 0;
    // Changing the type has reduced the message's first word by 0x0800, so the checksum is updated accordingly (RFC 1624).
    let sum = u32::from(u16::from_be_bytes([packet[22], packet[23]])) + 0x0800;
    let checksum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[22..24].copy_from_slice(&checksum.to_be_bytes());
    Some(answer)
}
