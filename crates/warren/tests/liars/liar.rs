//! An enrolled client without a TUN device, which sends the messages that a test specifies.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use warren_quic::key::{PrivateKey, PublicKey};

use crate::support::Namespace;
use crate::support::library_client::{LibraryClient, runtime};

/// How long the client receives before it checks for new datagrams to send.
const MOMENT: Duration = Duration::from_millis(5);

/// A lying client that stays connected until [`Self::end`].
pub(super) struct Liar {
    pub(super) ipv4: Ipv4Addr,
    pub(super) ipv6: Ipv6Addr,
    say: Sender<Vec<Vec<u8>>>,
    said: Receiver<()>,
    heard: Receiver<Bytes>,
    thread: JoinHandle<()>,
}

impl Liar {
    /// Opens one connection to the net's exit.
    pub(super) fn start(host: &Namespace, key: PrivateKey, exit_key: PublicKey) -> Self {
        let ((say, to_say), (done, said)) = (channel::<Vec<Vec<u8>>>(), channel());
        let ((hear, heard), (tell, granted)) = (channel(), channel());
        let live = async move {
            let mut client = LibraryClient::start(key, exit_key, 1);
            client.until("it is up", |client| client.attached() == 1).await;
            let welcome = client.welcome().unwrap();
            tell.send((welcome.ipv4.unwrap().0, welcome.ipv6.unwrap().0)).unwrap();
            loop {
                match to_say.try_recv() {
                    Ok(datagrams) => {
                        for datagram in &datagrams {
                            client.say_whole(datagram).await;
                        }
                        done.send(()).unwrap();
                    }
                    Err(TryRecvError::Empty) => client.run(MOMENT).await,
                    Err(TryRecvError::Disconnected) => return client.leave().await,
                }
                while let Some(packet) = client.received() {
                    // The test may have stopped listening.
                    drop(hear.send(packet));
                }
            }
        };
        let thread = host.enter(move || runtime().block_on(live));
        let (ipv4, ipv6) = granted.recv().unwrap();
        Self { ipv4, ipv6, say, said, heard, thread }
    }

    /// Sends all datagrams, and returns once QUIC has accepted the last one.
    pub(super) fn say(&self, datagrams: &[Vec<u8>]) {
        self.say.send(datagrams.to_vec()).unwrap();
        self.said.recv().unwrap();
    }

    /// Whether one of the packets received from the exit since the last call matches.
    pub(super) fn has_heard(&self, mut what: impl FnMut(&[u8]) -> bool) -> bool {
        self.heard.try_iter().any(|packet| what(&packet))
    }

    pub(super) fn end(self) {
        drop(self.say);
        self.thread.join().unwrap();
    }
}
