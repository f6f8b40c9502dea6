//! The deadlines of all connections, and the one sleep that waits for the earliest.

use std::{cmp::Reverse, collections::BinaryHeap, pin::Pin, task::Context, time::Instant};

use tokio::time::{Sleep, sleep_until};

/// Outdated entries are removed once there are more entries than `SLACK_AT_LEAST` plus `SLACK` for each connection.
const SLACK: usize = 4;
const SLACK_AT_LEAST: usize = 64;

/// When to check each connection. Moving a deadline to a later time costs nothing: the connection is checked too early once,
/// and entered again.
#[derive(Debug)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, usize)>>,
    sleep: Pin<Box<Sleep>>,
    /// When the sleep ends, if it is registered.
    set: Option<Instant>,
}

impl Timers {
    /// Makes timers. Must be called inside a tokio runtime.
    pub(super) fn new() -> Self {
        let sleep = Box::pin(sleep_until(tokio::time::Instant::now()));
        Self { heap: BinaryHeap::new(), sleep, set: None }
    }

    /// Sets a connection's timer to its `deadline`. `timer` is the time that it is currently set to.
    pub(super) fn set(&mut self, slot: usize, timer: &mut Option<Instant>, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if timer.is_none_or(|timer| deadline < timer) {
            *timer = Some(deadline);
            self.heap.push(Reverse((deadline, slot)));
        }
    }

    /// Removes and returns a connection whose timer may be due, and the time for which the timer was set.
    pub(super) fn due(&mut self, now: Instant) -> Option<(usize, Instant)> {
        let Reverse((deadline, _)) = self.heap.peek()?;
        if *deadline > now {
            return None;
        }
        self.heap.pop().map(|Reverse((deadline, slot))| (slot, deadline))
    }

    /// Removes outdated entries if there are many. `is_current` identifies the valid ones.
    pub(super) fn sweep(&mut self, connections: usize, is_current: impl Fn(usize, Instant) -> bool) {
        if self.heap.len() > SLACK_AT_LEAST + SLACK * connections {
            self.heap.retain(|Reverse((deadline, slot))| is_current(*slot, *deadline));
        }
    }

    /// Registers `cx` to be woken at the earliest deadline.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) {
        let Some(&Reverse((deadline, _))) = self.heap.peek() else { return };
        if self.set.is_some_and(|set| set <= deadline && !self.sleep.is_elapsed()) {
            return;
        }
        self.sleep.as_mut().reset(tokio::time::Instant::from_std(deadline));
        self.set = Some(deadline);
        // A task without budget gets Pending without its waker being registered (`tokio::task::coop`).
        if self.sleep.as_mut().poll(cx).is_ready() || !tokio::task::coop::has_budget_remaining() {
            self.set = None;
            cx.waker().wake_by_ref();
        }
    }

    /// Forgets the registered waker.
    pub(super) fn forget_waker(&mut self) {
        self.set = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn deadlines_come_in_order_and_a_later_one_leaves_the_timer_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = Timers::new();
        let (mut first, mut second) = (None, None);
        timers.set(1, &mut first, Some(at(5)));
        timers.set(1, &mut first, Some(at(9)));
        timers.set(2, &mut second, Some(at(3)));
        timers.set(2, &mut second, Some(at(1)));
        timers.set(2, &mut second, None);
        assert_eq!((first, second), (Some(at(5)), Some(at(1))));
        assert_eq!(timers.due(start), None);
        assert_eq!(timers.due(at(10)), Some((2, at(1))));
        // Connection 2's first entry, for second 3, is out of date.
        assert_eq!(timers.due(at(10)), Some((2, at(3))));
        assert_eq!(timers.due(at(10)), Some((1, at(5))));
        assert_eq!(timers.due(at(10)), None);
    }

    #[tokio::test]
    async fn the_earliest_deadline_wakes_even_if_it_comes_after_a_later_one() {
        let start = Instant::now();
        let mut timers = Timers::new();
        timers.set(1, &mut None, Some(start + Duration::from_secs(60)));
        let mut polls = 0;
        std::future::poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                timers.wait(cx);
                timers.set(2, &mut None, Some(start + Duration::from_millis(20)));
            }
            if timers.due(Instant::now()).is_some() {
                return std::task::Poll::Ready(());
            }
            timers.wait(cx);
            std::task::Poll::Pending
        })
        .await;
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
