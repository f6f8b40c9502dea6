//! A TCP download from the internet host that lasts as long as a test likes, and of which every byte is compared.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Net, seconds};

/// Random bytes, which the internet host sends one piece after the other until it is told to end.
#[derive(Debug)]
pub struct Download {
    over: Arc<AtomicBool>,
    sending: JoinHandle<Vec<u8>>,
    receiving: JoinHandle<Vec<u8>>,
}

/// A megabyte a second at most: what waits in buffers is soon over, so bytes are under way whenever a test does something.
const PIECE: usize = 10_000;
const PAUSE: Duration = Duration::from_millis(10);
/// Time without a byte after which a side gives up.
const PATIENCE: Duration = seconds(60);
const PORT: u16 = 7_009;

impl Download {
    /// Begins one by the client.
    pub fn start(net: &Net) -> Self {
        let listen = || TcpListener::bind((Net::INTERNET_V4, PORT)).unwrap();
        let listener = net.internet.host.enter(listen).join().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let sending = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            send(stream, &until)
        });
        let receiving = net.client.enter(|| receive(TcpStream::connect((Net::INTERNET_V4, PORT)).unwrap()));
        Self { over, sending, receiving }
    }

    /// Ends it, and fails unless what came is what was sent, whole. Returns how many bytes that were.
    #[track_caller]
    pub fn end(self) -> usize {
        self.over.store(true, SeqCst);
        // It ends when the other side has, or does not answer any more.
        let came = self.receiving.join().unwrap();
        let sent = self.sending.join().unwrap();
        assert!(came == sent, "of {} bytes came {}, or others", sent.len(), came.len());
        assert!(!sent.is_empty(), "nothing was sent");
        sent.len()
    }
}

/// Sends until it is over or nobody takes any more, and returns what it has sent.
fn send(mut stream: TcpStream, over: &AtomicBool) -> Vec<u8> {
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut sent = Vec::new();
    while !over.load(SeqCst) {
        let mut piece = [0; PIECE];
        getrandom::fill(&mut piece).unwrap();
        sent.extend_from_slice(&piece);
        if stream.write_all(&piece).is_err() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    sent
}

/// What comes until the other side has no more, or nothing comes any more.
fn receive(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut came = Vec::new();
    // Whoever compares sees what is missing.
    drop(stream.read_to_end(&mut came));
    came
}
