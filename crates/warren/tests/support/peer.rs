//! Peers other than Warren's binary, which use another protocol or version, or send messages at the wrong time.

use std::future::poll_fn;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use warren_quic::driver::{Endpoint, Event, Inbox};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::TransportSettings;
use warren_quic::tls::{self, PresentedKey};
use warren_session::message::{Goodbye, Hello, Message, MessageDecoder, encode};

use super::{Namespace, Net};

/// Answers at the exit's address with its key, but with another application protocol. It lives as long as the test.
pub fn exit_of_another_protocol(net: &Net, key: PrivateKey) {
    listen(&net.exit, move |socket| async move {
        let mut tls = tls::exit(&key).unwrap();
        tls.alpn_protocols = vec![b"other/1".to_vec()];
        let config = noq::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let runtime = Arc::new(noq::TokioRuntime);
        let endpoint =
            noq::Endpoint::new(noq::EndpointConfig::default(), Some(config), socket, runtime).unwrap();
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move { incoming.await.is_ok() });
        }
    });
}

/// Answers at the exit's address with its key, but answers every Hello with protocol version 2.
pub fn exit_of_version_2(net: &Net, key: PrivateKey) {
    listen(&net.exit, move |socket| async move {
        let settings = TransportSettings::default();
        let mut endpoint = Endpoint::exit(settings, vec![key], vec![socket], [7; 64]).unwrap();
        let mut inbox = Inbox::new();
        loop {
            poll_fn(|context| endpoint.poll(context, &mut inbox)).await;
            for event in inbox.events.drain(..) {
                if let Event::Control { connection, .. } = event {
                    let goodbye = Goodbye { reason: 0x04, exit_version: 2, client_version: 1 };
                    let _ = endpoint.send_control(connection, &encode(&Message::Goodbye(goodbye)));
                    endpoint.close(connection, 0x04, "version");
                }
            }
            inbox.clear();
        }
    });
}

/// Sends a Hello of `version` to the exit with an enrolled key. Returns the first answer within five seconds.
pub fn hello(host: &Namespace, key: PrivateKey, exit_key: PublicKey, version: u32) -> Option<Message> {
    let talk = async move {
        let mut endpoint = Endpoint::client(TransportSettings::default(), key).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let remote: SocketAddr = format!("{}:443", Net::EXIT_V4).parse().unwrap();
        endpoint.connect(socket, remote, &[exit_key]).unwrap();
        let mut inbox = Inbox::new();
        let mut decoder = MessageDecoder::new();
        loop {
            poll_fn(|context| endpoint.poll(context, &mut inbox)).await;
            for event in inbox.events.drain(..) {
                match event {
                    Event::Connected { connection, .. } => {
                        let hello =
                            Hello { version, connections_wanted: 1, nonce: vec![1; 16], ..Hello::default() };
                        endpoint.send_control(connection, &encode(&Message::Hello(hello))).unwrap();
                    }
                    Event::Control { data, .. } => {
                        decoder.push(&data);
                        if let Some(message) = decoder.next().unwrap() {
                            return message;
                        }
                    }
                    Event::Writable { .. } | Event::Answers { .. } => {}
                    Event::Closed { reason, .. } => panic!("closed without an answer: {reason}"),
                }
            }
        }
    };
    let inside =
        move || runtime().block_on(async { tokio::time::timeout(Duration::from_secs(5), talk).await.ok() });
    host.enter(inside).join().unwrap()
}

/// The first flight of a Warren client that pins this key.
pub fn first_flight_of_a_client(exit_key: PublicKey) -> Vec<Vec<u8>> {
    let (listener, remote) = listener();
    runtime().block_on(async move {
        let mut endpoint = Endpoint::client(TransportSettings::default(), new_key()).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        endpoint.connect(socket, remote, &[exit_key]).unwrap();
        let mut inbox = Inbox::new();
        tokio::select! {
            () = poll_fn(|context| endpoint.poll(context, &mut inbox)) => panic!("the listener never answers"),
            flight = first_flight(listener) => flight,
        }
    })
}

/// The first flight of any other QUIC client.
pub fn first_flight_of_plain_quic() -> Vec<Vec<u8>> {
    first_flights_of_plain_quic(1).remove(0)
}

/// The first flights of `count` other QUIC clients.
pub fn first_flights_of_plain_quic(count: usize) -> Vec<Vec<Vec<u8>>> {
    runtime().block_on(async move {
        let tls = tls::client(&new_key(), &[new_key().public()], PresentedKey::default(), None).unwrap();
        let config = noq::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let mut flights = Vec::new();
        for _ in 0..count {
            let (listener, remote) = listener();
            let endpoint = noq::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
            let connecting = endpoint.connect_with(config.clone(), remote, "exit.invalid").unwrap();
            flights.push(tokio::select! {
                _ = connecting => panic!("the listener never answers"),
                flight = first_flight(listener) => flight,
            });
        }
        flights
    })
}

fn listener() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A ClientHello with a post-quantum key share takes two datagrams.
async fn first_flight(listener: UdpSocket) -> Vec<Vec<u8>> {
    let listener = tokio::net::UdpSocket::from_std(listener).unwrap();
    let mut flight = Vec::new();
    let mut buffer = [0; 2_048];
    while flight.len() < 2 {
        let length = listener.recv(&mut buffer).await.unwrap();
        flight.push(buffer[..length].to_vec());
    }
    flight
}

fn new_key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

/// Binds the exit's port on `host`, and leaves `serve` running with the socket.
fn listen<Serve: Future<Output = ()>>(
    host: &Namespace,
    serve: impl FnOnce(UdpSocket) -> Serve + Send + 'static,
) -> JoinHandle<()> {
    let (bound, ready) = std::sync::mpsc::channel();
    let thread = host.enter(move || {
        runtime().block_on(async move {
            let socket = UdpSocket::bind((Net::EXIT_V4, 443)).unwrap();
            socket.set_nonblocking(true).unwrap();
            bound.send(()).unwrap();
            serve(socket).await;
        });
    });
    ready.recv().unwrap();
    thread
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
