//! Two hosts use the same key: only the newest session has the inner address, and the other host is told that it was replaced.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::client::{ClientState, Stop};
use warren_session::goodbye::Goodbye;

use crate::support::library_client::{LibraryClient, runtime, udp};
use crate::support::{Exit, Namespace, Net, seconds};

const PORT: u16 = 5_400;
/// How often the key moves to the other host, and how many packets are sent to the key's inner address after each move.
const MOVES: usize = 10;
const PACKETS: usize = 100;

/// Scorecard A8.
#[test]
fn of_two_hosts_with_one_key_the_newest_alone_gets_what_is_for_its_address() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("laptop", &key.public().to_string());
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let second = net.second_client();
    let hosts: Vec<Host> =
        [&net.client, &second].into_iter().map(|host| Host::start(host, key.clone(), exit_key)).collect();
    let internet = Internet::start(&net);
    let (mut delivered, mut misdelivered, mut address) = (0, 0, None);

    for turn in 0..MOVES {
        let (newest, older) = (&hosts[turn % 2], &hosts[(turn + 1) % 2]);
        let own = newest.ask(Question::Connect);
        assert_eq!(*address.get_or_insert(own), own, "the address belongs to the key");
        if turn == 0 {
            newest.ask(Question::Greet);
        }
        // All of these packets are sent after the newest session began.
        internet.send();
        delivered += newest.ask(Question::Received(PACKETS));
        misdelivered += older.ask(Question::Received(0));
        if turn > 0 {
            assert_eq!(older.ask(Question::WasReplaced), 1, "the older client is told why it ends");
        }
    }

    assert_eq!(exit.status().list("/sessions").len(), 1);
    println!(
        "measured: {MOVES} moves of a key between two hosts; {delivered} packets to the newest, {misdelivered} to the other"
    );
    assert_eq!((delivered, misdelivered), ((MOVES * PACKETS) as u64, 0));
}

/// A thread with the key's client on one of the two hosts.
struct Host {
    questions: Sender<Question>,
    answers: Receiver<u64>,
}

#[derive(Clone, Copy)]
enum Question {
    /// Connect again. The answer is the inner address.
    Connect,
    /// Send a packet to the internet, so that the internet host learns the address.
    Greet,
    /// Wait for this many packets, and a moment longer. The answer is how many arrived.
    Received(usize),
    /// 1 if the session ended because of a newer one.
    WasReplaced,
}

impl Host {
    fn start(host: &Namespace, key: PrivateKey, exit_key: PublicKey) -> Self {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        host.enter(move || {
            runtime().block_on(async {
                let mut client: Option<LibraryClient> = None;
                loop {
                    match asked.try_recv() {
                        Ok(question) => {
                            answer.send(answer_to(question, &mut client, &key, exit_key).await).unwrap()
                        }
                        Err(std::sync::mpsc::TryRecvError::Empty) => {}
                        Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                    }
                    match &mut client {
                        Some(client) => client.run(Duration::from_millis(5)).await,
                        None => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            });
        });
        Self { questions, answers }
    }

    fn ask(&self, question: Question) -> u64 {
        self.questions.send(question).unwrap();
        self.answers.recv_timeout(seconds(40)).unwrap()
    }
}

async fn answer_to(
    question: Question,
    client: &mut Option<LibraryClient>,
    key: &PrivateKey,
    exit_key: PublicKey,
) -> u64 {
    if let Question::Connect = question {
        let mut new = LibraryClient::start(key.clone(), exit_key, 1);
        new.until("the session begins", |client| client.attached() == 1).await;
        let address = u32::from(new.welcome().unwrap().ipv4.unwrap().0);
        *client = Some(new);
        return u64::from(address);
    }
    let Some(client) = client else { return 0 };
    match question {
        Question::Connect => unreachable!("answered above"),
        Question::Greet => {
            let internet: Ipv4Addr = Net::INTERNET_V4.parse().unwrap();
            let own = client.welcome().unwrap().ipv4.unwrap().0;
            client.send_whole(&udp(own, (internet, PORT), 30_000, b"hello")).await;
            0
        }
        Question::Received(expected) => {
            let mut received = 0;
            let count = |client: &mut LibraryClient, received: &mut usize| {
                while client.received().is_some() {
                    *received += 1;
                }
            };
            client
                .until("all packets have arrived", |client| {
                    count(client, &mut received);
                    received >= expected
                })
                .await;
            client.run(Duration::from_millis(50)).await;
            count(client, &mut received);
            received as u64
        }
        Question::WasReplaced => {
            let told = |state: &ClientState| *state == ClientState::Stopped(Stop::Goodbye(Goodbye::Replaced));
            client.until("the session has ended", |client| told(client.state())).await;
            1
        }
    }
}

/// The internet host, which sends to the address from which it has received a packet.
struct Internet {
    orders: Sender<()>,
    done: Receiver<()>,
}

impl Internet {
    fn start(net: &Net) -> Self {
        let (orders, ordered) = channel::<()>();
        let (finished, done) = channel();
        net.internet.host.enter(move || {
            let socket = UdpSocket::bind((Net::INTERNET_V4, PORT)).unwrap();
            let (_, to): (usize, SocketAddr) = socket.recv_from(&mut [0; 64]).unwrap();
            while ordered.recv().is_ok() {
                for number in 0..PACKETS {
                    socket.send_to(&number.to_be_bytes(), to).unwrap();
                    std::thread::sleep(Duration::from_micros(200));
                }
                finished.send(()).unwrap();
            }
        });
        Self { orders, done }
    }

    fn send(&self) {
        self.orders.send(()).unwrap();
        self.done.recv_timeout(seconds(30)).unwrap();
    }
}
