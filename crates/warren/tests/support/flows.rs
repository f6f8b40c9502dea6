//! Traffic that tests make themselves: UDP flows to the internet host's echo, and TCP flows that stay open.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use super::{Namespace, Net, seconds};

const ECHO: u16 = 7;

/// Sends one datagram from each of `ports` on this host. Returns how many came back.
///
/// Lost datagrams are sent again, as programs usually do, for at most ten seconds.
pub fn echo_from_each(host: &Namespace, ports: std::ops::Range<u16>) -> usize {
    let inside = move || {
        let answered = |port: &u16| {
            let socket = echo_socket(Net::INTERNET_V4, *port);
            (0..20).any(|_| echo(&socket, b"hello", Duration::from_millis(500)).as_deref() == Some(b"hello"))
        };
        ports.filter(|port| answered(port)).count()
    };
    host.enter(inside).join().unwrap()
}

/// Sends `count` numbered datagrams in one flow, with at most 32 unanswered. Returns the numbers in the order in which they came
/// back, and waits at most one second for each. One extra datagram is sent first, because a kernel with several TUN queues may
/// move a new flow to another queue, which may reorder its first packets.
pub fn echo_numbered(host: &Namespace, count: u32) -> Vec<u32> {
    let inside = move || {
        let socket = echo_socket(Net::INTERNET_V4, 30_000);
        assert!((0..20).any(|_| echo(&socket, b"first", Duration::from_millis(500)).is_some()));
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut returned = Vec::new();
        let mut sent = 0;
        let mut buffer = [0; 64];
        while returned.len() < usize::try_from(count).unwrap() {
            while sent < count && usize::try_from(sent).unwrap() < returned.len() + 32 {
                socket.send(&sent.to_be_bytes()).unwrap();
                sent += 1;
            }
            let Ok(length) = socket.recv(&mut buffer) else { break };
            // Ignores a late answer to the first datagram.
            if let Ok(number) = buffer[..length].try_into() {
                returned.push(u32::from_be_bytes(number));
            }
        }
        returned
    };
    host.enter(inside).join().unwrap()
}

/// Sends to the internet host's echo over and over from one port, until `lasting` has passed. Returns the time of each answer.
pub fn answers(host: &Namespace, lasting: Duration) -> std::thread::JoinHandle<Vec<Instant>> {
    host.enter(move || {
        let socket = echo_socket(Net::INTERNET_V4, 30_001);
        let start = Instant::now();
        let mut answers = Vec::new();
        while start.elapsed() < lasting {
            if echo(&socket, b"hello", Duration::from_millis(100)).is_some() {
                answers.push(Instant::now());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        answers
    })
}

/// Sends one datagram from each of `ports` at the same time. Returns how many were not answered within a second.
pub fn unanswered(host: &Namespace, ports: std::ops::Range<u16>) -> usize {
    let ask = |port| {
        host.enter(move || {
            let socket = echo_socket(Net::INTERNET_V4, port);
            echo(&socket, b"hello", Duration::from_secs(1)).is_none()
        })
    };
    let asked: Vec<_> = ports.map(ask).collect();
    asked.into_iter().map(|asked| usize::from(asked.join().unwrap())).sum()
}

/// The longest time between two consecutive answers, or from the last answer until now.
pub fn longest_gap(answers: &[Instant]) -> Duration {
    let mut times = answers.to_vec();
    times.push(Instant::now());
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
}

/// The address and port that the internet host sees for a datagram sent from `port`.
pub fn seen_from(host: &Namespace, internet: &'static str, port: u16) -> Option<SocketAddr> {
    let inside = move || {
        let socket = echo_socket(internet, port);
        let answer = (0..5).find_map(|_| echo(&socket, b"who", Duration::from_secs(1)))?;
        let (address, port) = std::str::from_utf8(&answer).unwrap().split_once(' ').unwrap().to_owned();
        Some(SocketAddr::new(address.parse().unwrap(), port.parse().unwrap()))
    };
    host.enter(inside).join().unwrap()
}

/// Binds a UDP socket. Tries several times, because a child process of another test that has not yet executed its program may
/// still have a copy of a socket that was just closed.
pub fn bound(address: impl ToSocketAddrs + Copy) -> UdpSocket {
    let start = Instant::now();
    loop {
        match UdpSocket::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && start.elapsed() < seconds(5) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            socket => return socket.unwrap(),
        }
    }
}

fn echo_socket(internet: &str, port: u16) -> UdpSocket {
    let internet: IpAddr = internet.parse().unwrap();
    let any: IpAddr = if internet.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = bound((any, port));
    socket.connect((internet, ECHO)).unwrap();
    socket
}

fn echo(socket: &UdpSocket, data: &[u8], within: Duration) -> Option<Vec<u8>> {
    socket.set_read_timeout(Some(within)).unwrap();
    socket.send(data).ok()?;
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}

/// TCP connections from the client to an echo on the internet host.
#[derive(Debug)]
pub struct TcpFlows(Vec<TcpStream>);

impl TcpFlows {
    /// Opens `count` connections.
    pub fn open(net: &Net, count: usize) -> Self {
        const PORT: u16 = 7_007;
        let listen = || TcpListener::bind((Net::INTERNET_V4, PORT)).unwrap();
        let listener = net.internet.host.enter(listen).join().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(count).map(Result::unwrap) {
                std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        let connect = move || TcpStream::connect((Net::INTERNET_V4, PORT)).unwrap();
        Self(net.client.enter(move || (0..count).map(|_| connect()).collect()).join().unwrap())
    }

    /// How many connections return a byte within ten seconds each.
    pub fn alive(&self) -> usize {
        let answers = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream.write_all(b"?").is_ok() && stream.read_exact(&mut [0]).is_ok()
        };
        self.0.iter().filter(|stream| answers(stream)).count()
    }
}

/// The datagrams that a one-way flow sent, and those that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    pub sent: u64,
    pub received: u64,
}

/// Sends datagrams of `length` bytes to the internet host at `megabits` Mbit/s, and counts the arrivals there.
pub fn flood(net: &Net, megabits: u64, length: usize, lasting: Duration) -> Flood {
    const PORT: u16 = 5_300;
    let counting = net.internet.host.enter(move || {
        let socket = UdpSocket::bind((Net::INTERNET_V4, PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut buffer = [0; 2048];
        let mut received = 0;
        let mut quiet = 0;
        // The first datagram may take a while. After the last, two seconds are enough.
        while quiet < if received == 0 { 5 } else { 1 } {
            match socket.recv(&mut buffer) {
                Ok(_) => received += 1,
                Err(_) => quiet += 1,
            }
        }
        received
    });
    let sending = net.client.enter(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((Net::INTERNET_V4, PORT)).unwrap();
        let packet = vec![0; length];
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < lasting {
            let due = start.elapsed().as_micros() * u128::from(megabits) / 8 / length as u128;
            // The number is limited, because after a pause of the machine all overdue datagrams would otherwise be one large
            // burst.
            for _ in 0..due.saturating_sub(u128::from(sent)).min(200) {
                sent += u64::from(socket.send(&packet).is_ok());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        sent
    });
    Flood { sent: sending.join().unwrap(), received: counting.join().unwrap() }
}

/// Sends one datagram of `length` bytes, and waits briefly for its echo.
pub fn echo_sized(host: &Namespace, internet: &'static str, length: usize) -> bool {
    let inside = move || {
        let socket = echo_socket(internet, 0);
        echo(&socket, &vec![7; length], Duration::from_millis(300))
            .is_some_and(|answer| answer.len() == length)
    };
    host.enter(inside).join().unwrap()
}

/// Sends from the client, and makes the internet host answer with an unfragmentable packet of `length` bytes.
pub fn answer_with_more(net: &Net, internet: &'static str, length: usize) {
    const PORT: u16 = 5_301;
    let answering = net.internet.host.enter(move || {
        let socket = UdpSocket::bind((internet, PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (_, from) = socket.recv_from(&mut [0; 16]).unwrap();
        // Linux sets DF on UDP by default while path MTU discovery is on.
        socket.send_to(&vec![0; length - 48], from).unwrap();
    });
    let asking = net.client.enter(move || {
        let any = if internet.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).unwrap();
        for _ in 0..10 {
            socket.send_to(b"more", (internet, PORT)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    answering.join().unwrap();
    asking.join().unwrap();
}
