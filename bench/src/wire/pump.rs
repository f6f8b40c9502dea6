//! The thread that moves frames between the devices through the links, and answers requests.

use std::{
    num::NonZeroU64,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    thread::set_current_timer_slack,
};

use super::{
    link::Link,
    request::{DirectionState, Request, State},
    tap::Tap,
};
use crate::{usage::Mark, way::Way};

/// Maximum number of frames that are read from one device before the other device is read.
const TURN: usize = 32;

/// The sleep ends this time before a deadline, because an idle core of a virtual machine takes that long to wake up.
const EARLY: Duration = Duration::from_micros(50);

/// Both devices and the links between them.
#[derive(Debug)]
pub(super) struct Pump {
    pub(super) taps: [Tap; 2],
    /// The link from the first device to the second one, and the link back.
    pub(super) links: [Link; 2],
    pub(super) requests: mpsc::Receiver<Request>,
    /// An eventfd to which the sender of a request writes, in order to wake the thread.
    pub(super) wake: Arc<OwnedFd>,
    pub(super) start: Instant,
}

impl Pump {
    /// Moves frames until a stop request, or until all senders of requests are gone.
    pub(super) fn run(mut self) -> anyhow::Result<State> {
        // By default, the kernel may wake a sleeping thread up to 50 us late. If the slack cannot be changed, delays are less
        // exact.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mark = Mark::of_thread()?;
        loop {
            let mut is_idle = true;
            for from in [0, 1] {
                is_idle &= !self.read(from)?;
                // Frames are written after each read, so that frames of one direction do not wait for reads of the other
                // direction.
                self.write();
            }
            if is_idle {
                self.wait()?;
            }
            // Each iteration handles at most one request, so that many requests cannot delay frames.
            match self.requests.try_recv() {
                Ok(Request::Change(changes, answer)) => {
                    let now = Instant::now();
                    for (way, change) in &changes {
                        let [up, down] = &mut self.links;
                        match way {
                            Way::Up => up.change(change, now),
                            Way::Down => down.change(change, now),
                        }
                    }
                    // Sending fails if the requester no longer waits for the answer, which does no harm.
                    let _ = answer.send(self.state(&mark)?);
                }
                Ok(Request::State(answer)) => {
                    let _ = answer.send(self.state(&mark)?);
                }
                Ok(Request::Stop) | Err(mpsc::TryRecvError::Disconnected) => return self.state(&mark),
                Err(mpsc::TryRecvError::Empty) => {}
            }
        }
    }

    /// Reads up to [`TURN`] frames from one device, and returns whether it had any frames.
    fn read(&mut self, from: usize) -> anyhow::Result<bool> {
        let (Some(tap), Some(link)) = (self.taps.get_mut(from), self.links.get_mut(from)) else {
            return Ok(false);
        };
        for count in 0..TURN {
            let Some(frame) = tap.read()? else { return Ok(count > 0) };
            if let Some(reply) = link.offer(frame, Instant::now()) {
                // The ICMP message is written to the sender's device. If this fails because the device is down, the message is
                // not needed.
                let _ = tap.write(&reply);
            }
        }
        Ok(true)
    }

    /// Writes the frames that are due to the devices at both ends.
    fn write(&mut self) {
        // The first link leads to the second device, and the second link to the first device.
        for (link, tap) in self.links.iter_mut().zip(self.taps.iter().rev()) {
            let now = Instant::now();
            while let Some(frame) = link.take(now) {
                if !tap.write(&frame) {
                    link.refused(&frame);
                }
            }
        }
    }

    /// Waits for a frame, a deadline or a request.
    fn wait(&self) -> anyhow::Result<()> {
        let deadline = self.links.iter().filter_map(Link::deadline).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Less than EARLY before a deadline, the loop does not sleep but checks the clock repeatedly.
        if left.is_some_and(|left| left <= EARLY) {
            return Ok(());
        }
        let left = left
            .map(|left| left.saturating_sub(EARLY))
            .map(Timespec::try_from)
            .transpose()
            .context("a deadline is out of reach")?;
        let [first, second] = &self.taps;
        let mut descriptors = [first.as_fd(), second.as_fd(), self.wake.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut descriptors, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for frames"),
        }
        // Reading resets the eventfd. The value is not needed, because the requests are in the channel.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        Ok(())
    }

    fn state(&self, mark: &Mark) -> anyhow::Result<State> {
        let [up, down] = &self.links;
        let [first, second] = &self.taps;
        let state = |link: &Link, tap: &Tap| -> anyhow::Result<_> {
            Ok(DirectionState {
                settings: link.settings().to_string(),
                account: link.account(),
                missed: tap.missed()?,
            })
        };
        let (up, down) = (state(up, first)?, state(down, second)?);
        let cpu_seconds = mark.until(&Mark::of_thread()?).cpu_seconds();
        Ok(State { seconds: self.start.elapsed().as_secs_f64(), cpu_seconds, up, down })
    }
}
