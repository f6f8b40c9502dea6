//! Visitors of a forwarded service, and the service, which tells each visitor the visitor's address.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::Namespace;

/// How long a visitor waits for each step.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// A service on TCP and UDP, bound to all addresses of a host. It tells each visitor the visitor's address, and then echoes.
#[derive(Debug)]
pub struct Service {
    visitors: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Service {
    pub fn start(host: &Namespace, tcp: u16, udp: u16) -> Self {
        let (visitors, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let any = Ipv6Addr::UNSPECIFIED;
        let bind = move || (TcpListener::bind((any, tcp)).unwrap(), UdpSocket::bind((any, udp)).unwrap());
        let (listener, socket) = host.enter(bind).join().unwrap();
        let count = visitors.clone();
        listener.set_nonblocking(true).unwrap();
        let stopped = stop.clone();
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((stream, peer)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                count.fetch_add(1, Ordering::Relaxed);
                let stopped = stopped.clone();
                std::thread::spawn(move || serve(stream, peer, &stopped));
            }
        });
        let stopped = stop.clone();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(canonical(peer).to_string().as_bytes(), peer);
                }
            }
        });
        Self { visitors, stop }
    }

    /// How many connections it has accepted.
    pub fn visitors(&self) -> usize {
        self.visitors.load(Ordering::Relaxed)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Serves one visitor until the visitor or the service ends. Also sends data unasked, so that packets of an abandoned connection
/// are visible.
fn serve(mut stream: TcpStream, peer: SocketAddr, stopped: &AtomicBool) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let greeting = format!("{}\n", canonical(peer));
    if stream.write_all(greeting.as_bytes()).is_err() {
        return;
    }
    let mut buffer = [0; 64];
    while !stopped.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        if stream.write_all(b"alive\n").is_err() {
            return;
        }
    }
}

/// The result of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The service answered. `own` is the visitor's own address, and `seen` is the one that the service saw.
    Answered { own: SocketAddr, seen: SocketAddr },
    /// The service did not answer.
    Failed,
}

impl Visit {
    pub fn is_answered(self) -> bool {
        matches!(self, Self::Answered { .. })
    }

    /// Opens a connection and keeps it.
    pub fn hold(host: &Namespace, to: SocketAddr) -> Held {
        let stream = host.enter(move || TcpStream::connect_timeout(&to, PATIENCE).unwrap()).join().unwrap();
        let answers = Arc::new(AtomicUsize::new(0));
        let count = answers.clone();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
                count.fetch_add(1, Ordering::Relaxed);
                line.clear();
            }
        });
        Held { answers, asks: Asks::Tcp(stream) }
    }

    /// Opens a UDP flow and keeps it.
    pub fn hold_udp(host: &Namespace, to: SocketAddr) -> Held {
        let socket = udp(host, to);
        let answers = Arc::new(AtomicUsize::new(0));
        let count = answers.clone();
        let reader = socket.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            loop {
                match reader.recv(&mut buffer) {
                    Ok(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    Err(_) if Arc::strong_count(&count) == 1 => return,
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Held { answers, asks: Asks::Udp(socket) }
    }
}

/// A connection or flow that stays open.
#[derive(Debug)]
pub struct Held {
    answers: Arc<AtomicUsize>,
    asks: Asks,
}

#[derive(Debug)]
enum Asks {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Held {
    /// Answers that have come so far.
    pub fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }

    /// Sends requests for almost a second. Returns whether there was a new answer.
    pub fn is_answered(&self) -> bool {
        let begun = Instant::now();
        let mut before = None;
        while begun.elapsed() < Duration::from_millis(800) {
            let _ = match &self.asks {
                Asks::Tcp(stream) => (&*stream).write(b"?"),
                Asks::Udp(socket) => socket.send(b"?"),
            };
            std::thread::sleep(Duration::from_millis(20));
            // Answers in the first 200 ms are not counted, because they may belong to earlier requests.
            if begun.elapsed() > Duration::from_millis(200) {
                before.get_or_insert_with(|| self.answers());
            }
        }
        before.is_some_and(|before| self.answers() > before)
    }
}

/// Connects to a service, from this address of the host if it is given.
pub fn visit(host: &Namespace, from: Option<IpAddr>, to: SocketAddr) -> Visit {
    let inside = move || -> std::io::Result<Visit> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        socket.connect_timeout(&to.into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        let own = stream.local_addr()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let seen = line.trim().parse().map_err(std::io::Error::other)?;
        Ok(Visit::Answered { own, seen })
    };
    host.enter(inside).join().unwrap().unwrap_or(Visit::Failed)
}

/// Sends several requests to a service over UDP. Returns the visitor's own address, and the one that the service saw.
pub fn visit_udp(host: &Namespace, to: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
    let socket = udp(host, to);
    let mut buffer = [0; 64];
    (0..3).find_map(|_| {
        socket.send(b"who").ok()?;
        let length = socket.recv(&mut buffer).ok()?;
        let seen = std::str::from_utf8(&buffer[..length]).ok()?.parse().ok()?;
        Some((socket.local_addr().ok()?, seen))
    })
}

fn udp(host: &Namespace, to: SocketAddr) -> UdpSocket {
    let open = move || {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    };
    host.enter(open).join().unwrap()
}

/// Converts an IPv4-mapped address, as a dual-stack socket reports it, to IPv4.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
