//! The path from one link to the store. It can be slow, and it can be cut, even in only one direction.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Proxies for all members of a store. Dropping this value ends the proxies.
#[derive(Debug)]
pub(crate) struct Ways {
    pub(crate) urls: Vec<String>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    is_over: AtomicBool,
    cut: AtomicU8,
    /// The delay of each direction in milliseconds.
    delay: AtomicU64,
}

pub(crate) const OPEN: u8 = 0;
pub(crate) const CUT_TO_STORE: u8 = 1;
pub(crate) const CUT_TO_EXIT: u8 = 2;
pub(crate) const CUT: u8 = 3;

impl Ways {
    /// Proxies for members at `http://` URLs.
    pub(crate) fn to(urls: &[String]) -> Self {
        let state = Arc::new(State {
            is_over: AtomicBool::new(false),
            cut: AtomicU8::new(OPEN),
            delay: AtomicU64::new(0),
        });
        let urls = urls.iter().map(|url| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let (target, state) = (url.trim_start_matches("http://").to_owned(), Arc::clone(&state));
            std::thread::spawn(move || accept(&listener, &target, &state));
            format!("http://127.0.0.1:{port}")
        });
        Self { urls: urls.collect(), state }
    }

    pub(crate) fn set(&self, cut: u8) {
        self.state.cut.store(cut, Ordering::SeqCst);
    }

    /// Makes an operation take this much longer, with half of the delay in each direction.
    pub(crate) fn slow(&self, operation: Duration) {
        let half = u64::try_from(operation.as_millis()).unwrap() / 2;
        self.state.delay.store(half, Ordering::SeqCst);
    }
}

impl Drop for Ways {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
    }
}

fn accept(listener: &TcpListener, target: &str, state: &Arc<State>) {
    while !state.is_over.load(Ordering::SeqCst) {
        let Ok((link, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let Ok(store) = TcpStream::connect(target) else { continue };
        link.set_nonblocking(false).unwrap();
        let (link_too, store_too) = (link.try_clone().unwrap(), store.try_clone().unwrap());
        let (one, other) = (Arc::clone(state), Arc::clone(state));
        std::thread::spawn(move || carry(link, store, &one, CUT_TO_STORE));
        std::thread::spawn(move || carry(store_too, link_too, &other, CUT_TO_EXIT));
    }
}

/// Carries bytes in one direction. While that direction is cut, the bytes wait, as on a path that loses all packets.
fn carry(mut from: TcpStream, mut to: TcpStream, state: &State, direction: u8) {
    let mut bytes = [0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        std::thread::sleep(Duration::from_millis(state.delay.load(Ordering::SeqCst)));
        while state.cut.load(Ordering::SeqCst) & direction != 0 && !state.is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}
