//! A continuous flow of an echo request every 20 ms from a client's host to the internet host, by which lost packets are
//! detected.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Namespace, Net, flows, seconds};

const EVERY: Duration = Duration::from_millis(20);

/// How long an answer may take before its request counts as lost.
const LATE: Duration = Duration::from_millis(1_500);

/// A running flow. Dropping this value ends the flow.
#[derive(Debug)]
pub struct Steady {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    /// When each request was sent, and when it was answered.
    requests: Mutex<Vec<(Instant, Option<Instant>)>>,
}

impl Steady {
    /// Starts the flow, and waits for its first answer.
    #[track_caller]
    pub fn start(host: &Namespace) -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let sender = host.enter(move || {
            let socket = flows::bound(("0.0.0.0", 30_002));
            socket.connect((Net::INTERNET_V4, 7)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let (listening, heard) = (socket.try_clone().unwrap(), of_thread.clone());
            let receiver = std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while !heard.is_over.load(SeqCst) {
                    let Ok(length) = listening.recv(&mut buffer) else { continue };
                    let number = u32::from_be_bytes(buffer[..length].try_into().unwrap());
                    heard.requests.lock().unwrap()[number as usize].1.get_or_insert_with(Instant::now);
                }
            });
            while !of_thread.is_over.load(SeqCst) {
                let number = {
                    let mut requests = of_thread.requests.lock().unwrap();
                    requests.push((Instant::now(), None));
                    u32::try_from(requests.len() - 1).unwrap()
                };
                // A request that cannot be sent counts as lost.
                let _ = socket.send(&number.to_be_bytes());
                std::thread::sleep(EVERY);
            }
            receiver.join().unwrap();
        });
        let flow = Self { shared, threads: vec![sender] };
        super::eventually(seconds(10), "the flow is answered", || flow.last_answer().is_some());
        flow
    }

    /// Returns the number of requests sent so far, which marks a position in the flow for the other functions.
    pub fn mark(&self) -> usize {
        self.shared.requests.lock().unwrap().len()
    }

    /// How many requests since `mark` were lost, and how many were sent. Waits for late answers.
    pub fn lost_since(&self, mark: usize) -> (usize, usize) {
        let until = self.mark();
        let is_settled = || {
            let requests = self.shared.requests.lock().unwrap();
            requests[mark..until].iter().all(|(_, answer)| answer.is_some())
        };
        let start = Instant::now();
        while start.elapsed() < LATE && !is_settled() {
            std::thread::sleep(EVERY);
        }
        let requests = self.shared.requests.lock().unwrap();
        let lost = requests[mark..until].iter().filter(|(_, answer)| answer.is_none()).count();
        (lost, until - mark)
    }

    /// The longest time between two answers since `mark`.
    pub fn longest_gap_since(&self, mark: usize) -> Duration {
        let requests = self.shared.requests.lock().unwrap();
        let mut answers: Vec<Instant> = requests[mark..].iter().filter_map(|(_, answer)| *answer).collect();
        answers.extend(requests.get(mark).map(|(sent, _)| *sent));
        drop(requests);
        answers.sort_unstable();
        flows::longest_gap(&answers)
    }

    pub fn last_answer(&self) -> Option<Instant> {
        self.shared.requests.lock().unwrap().iter().filter_map(|(_, answer)| *answer).max()
    }

    /// Whether nothing was answered for this time.
    pub fn is_silent_for(&self, time: Duration) -> bool {
        self.last_answer().is_none_or(|answer| answer.elapsed() >= time)
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
