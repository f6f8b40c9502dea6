//! A TCP download from the internet host of any duration. Every byte is compared.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Net, seconds};

/// The internet host sends random bytes piece by piece until the download is told to end.
#[derive(Debug)]
pub struct Download {
    over: Arc<AtomicBool>,
    sending: JoinHandle<Vec<u8>>,
    receiving: JoinHandle<Vec<u8>>,
}

/// The size of one piece, which limits the rate to a megabyte per second. At this rate, buffers drain quickly, so bytes are
/// always in flight during a test.
const PIECE: usize = 10_000;
const PAUSE: Duration = Duration::from_millis(10);
/// How long a side waits for the next byte.
const PATIENCE: Duration = seconds(60);
const PORT: u16 = 7_009;

impl Download {
    /// Starts a download to the client.
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

    /// Ends the download. Fails unless the received bytes equal the sent bytes. Returns their number.
    #[track_caller]
    pub fn end(self) -> usize {
        self.over.store(true, SeqCst);
        // The receiver ends when the sender has ended or no longer answers.
        let came = self.receiving.join().unwrap();
        let sent = self.sending.join().unwrap();
        assert!(came == sent, "of {} bytes {} arrived, or bytes have changed", sent.len(), came.len());
        assert!(!sent.is_empty(), "nothing was sent");
        sent.len()
    }
}

/// Sends until the download is over or the receiver has gone. Returns the sent bytes.
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

/// Receives until the sender closes the stream or falls silent.
fn receive(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut came = Vec::new();
    // An error is ignored, because the comparison shows missing bytes.
    drop(stream.read_to_end(&mut came));
    came
}
