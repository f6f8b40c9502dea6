//! One turn of the driver: timers, receiving, delivery of events, sending, and waiting.

use std::{
    num::NonZeroUsize,
    task::{Context, Poll},
    time::Instant,
};

use noq_proto::EndpointEvent;

use super::{
    WarrenEndpoint,
    accept::{ATTEMPTS_PER_POLL, Admitted, admit},
    connection::{Left, MAX_EVENTS, WarrenConnection},
    port::Port,
};
use crate::boundary::{Inbox, MAX_DATAGRAMS_PER_POLL, MAX_EVENTS_PER_POLL, MAX_LOST_PER_POLL};

/// Maximum number of closed connections that still answer late packets. Each does so for three probe timeouts, and takes about 50
/// KiB. A peer can lengthen that time by announcing a long acknowledgement delay. Beyond the limit, the oldest are forgotten.
const MAX_OVER: usize = 256;
/// Maximum work of one call of [`WarrenEndpoint::transmit`], so that an exit's turn does not get longer with the number of its
/// clients. Each datagram of a drive counts as one unit.
// A drive of one datagram takes about 12 us, mostly for its system call, and a drive of 90 takes about 60 us. Without a bound, 423
// small drives once made a turn of 6 ms (bench/LOG.md, "The longest turn of a worker with 1,000 clients").
const WORK_PER_CALL: usize = 1024;
/// What a drive costs in addition to its datagrams, in units of one datagram.
const WORK_PER_DRIVE: usize = 10;

impl WarrenEndpoint {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, inbox: &mut Inbox) -> Poll<()> {
        self.know_waker(cx);
        self.remove_retired();
        let now = Instant::now();
        // A caller that does not flush is served by its next poll.
        let owed = !self.sending.flushed && self.has_to_send();
        self.sending.flushed = false;
        self.expire(now);
        // News that did not fit into the last inbox comes before anything new.
        self.deliver(inbox, now);
        let has_room = has_room(inbox);
        if self.intake.is_behind() {
            self.catch_up(now, has_room);
        } else if has_room {
            self.receive(now);
        } else {
            self.leave_unread(now);
        }
        if has_room {
            self.admit(now);
            self.give_way(now);
            self.deliver(inbox, now);
        }
        // If the inbox is not empty, acknowledgements wait for the following flush, where they share packets with the worker's
        // datagrams.
        if owed || inbox.is_empty() {
            self.transmit(now);
            self.deliver(inbox, now);
        }
        if !inbox.is_empty() {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Sends what was queued since the last poll.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        if !self.has_to_send() {
            return;
        }
        self.know_waker(cx);
        self.transmit(Instant::now());
        self.sending.flushed = true;
        self.wait(cx);
    }

    /// Whether a connection has something to send, or a parked transmit may be sent now.
    pub(super) fn has_to_send(&self) -> bool {
        !self.work.to_send.is_empty() || self.ports.iter().flatten().any(Port::is_parked)
    }

    /// Remembers the worker's waker. A registration lasts until it has woken the worker. A different waker needs new registrations.
    fn know_waker(&mut self, cx: &Context<'_>) {
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return;
        }
        self.waker = Some(cx.waker().clone());
        self.displaced.wake(cx.waker());
        self.timers.forget_waker();
        self.ports.iter_mut().flatten().for_each(Port::forget_waker);
    }

    fn expire(&mut self, now: Instant) {
        while let Some((slot, timer)) = self.timers.due(now) {
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            // The timer is outdated: the deadline has moved, or the slot belongs to another connection by now.
            if connection.place.timer != Some(timer) {
                continue;
            }
            connection.place.timer = None;
            if connection.deadline().is_some_and(|deadline| deadline <= now) {
                connection.expire(now);
                self.list(slot);
            } else {
                self.set_timer(slot);
            }
        }
    }

    fn admit(&mut self, now: Instant) {
        for _ in 0..ATTEMPTS_PER_POLL {
            let Some((index, incoming)) = self.attempts.pop_front() else { return };
            let Some(port) = self.ports.get_mut(index).and_then(Option::as_mut) else { continue };
            let remote = incoming.remote_address();
            let crowd = (&self.settings.strangers, &self.displaced);
            if let Some(Admitted { connection, seat, proven }) = admit(port, incoming, crowd, now) {
                let handle = connection.0;
                let (slot, _) = self.connections.insert(|id| {
                    WarrenConnection::new(id, index, connection, remote, None, now).seated(seat, proven)
                });
                port.add_route(handle, slot);
                // The slot is known only now. The crowd needs it to tell this worker which handshake to end.
                if let Some(connection) = self.connections.get(slot) {
                    connection.settle(slot);
                }
                self.list(slot);
            }
        }
    }

    /// Ends the handshakes that lost their seats.
    fn give_way(&mut self, now: Instant) {
        for (place, number) in self.displaced.take() {
            let Ok(slot) = usize::try_from(place) else { continue };
            if let Some(connection) = self.connections.get_mut(slot)
                && connection.give_way(number, now)
            {
                self.list(slot);
            }
        }
    }

    /// Delivers pending events and datagrams of connections as far as the inbox has room.
    fn deliver(&mut self, inbox: &mut Inbox, now: Instant) {
        // Serves only the connections that are listed now. One that has more news is listed again, after the others.
        for _ in 0..self.work.with_news.len() {
            if !has_room(inbox) {
                return;
            }
            let Some(slot) = self.work.with_news.pop_front() else { return };
            self.absorb(slot, now);
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            connection.place.listed.with_news = false;
            match connection.deliver(inbox) {
                Left::Nothing => {}
                Left::More => self.list_news(slot),
                Left::Over => self.retired.push(slot),
            }
            // Reading the control stream gives the peer flow control credit, which must be sent.
            self.list_to_send(slot);
        }
    }

    /// Sends for each listed connection until it has nothing more to send or reaches the cap of a drive. Connections beyond
    /// [`WORK_PER_CALL`] stay listed.
    fn transmit(&mut self, now: Instant) {
        self.unpark();
        let mut work = 0;
        // Each connection gets one drive. A connection with more to send goes to the end of the list.
        for _ in 0..self.work.to_send.len() {
            if work >= WORK_PER_CALL {
                return;
            }
            let Some(slot) = self.work.to_send.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            connection.place.listed.to_send = false;
            let Some(port) = self.ports.get_mut(connection.place.port).and_then(Option::as_mut) else {
                continue;
            };
            self.sending.drives += 1;
            let (end, sent) = drive(connection, port, &mut self.sending.buffer, now);
            work += WORK_PER_DRIVE + sent;
            match end {
                Drive::Done => {}
                Drive::Full => self.list_to_send(slot),
                Drive::Stalled => {
                    // The connection waits at the port. It counts as listed, so that it is not listed twice. `unpark` moves it
                    // to the list.
                    connection.place.listed.to_send = true;
                    port.stalled.push(slot);
                }
            }
            // Sending may free space for datagrams, which the connection then reports.
            self.absorb(slot, now);
            if self.connections.get(slot).is_some_and(WarrenConnection::has_news) {
                self.list_news(slot);
            }
        }
    }

    fn unpark(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            if port.is_parked() && port.unpark() {
                self.work.to_send.extend(port.stalled.drain(..));
            }
        }
    }

    /// Processes a connection's events for the driver and the endpoint, and sets its timer.
    fn absorb(&mut self, slot: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(port) = self.ports.get_mut(connection.place.port).and_then(Option::as_mut) else { return };
        if connection.absorb(&mut port.endpoint, now) {
            self.list_to_send(slot);
        }
        self.set_timer(slot);
    }

    fn set_timer(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot) {
            let deadline = connection.deadline();
            self.timers.set(slot, &mut connection.place.timer, deadline);
        }
    }

    /// Registers `cx` to be woken when there is work, or wakes it at once if work is left.
    fn wait(&mut self, cx: &mut Context<'_>) {
        let undone =
            !self.work.to_send.is_empty() || !self.work.with_news.is_empty() || !self.attempts.is_empty();
        if undone || !self.intake.is_empty() {
            cx.waker().wake_by_ref();
        }
        for port in self.ports.iter_mut().flatten() {
            port.wait(cx);
        }
        let connections = &self.connections;
        self.timers.sweep(connections.len(), |slot, timer| {
            connections.get(slot).is_some_and(|connection| connection.place.timer == Some(timer))
        });
        self.timers.wait(cx);
    }

    pub(super) fn list(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot) {
            self.work.list(slot, &mut connection.place.listed);
        }
    }

    pub(super) fn list_to_send(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot) {
            self.work.list_to_send(slot, &mut connection.place.listed);
        }
    }

    fn list_news(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot) {
            self.work.list_news(slot, &mut connection.place.listed);
        }
    }

    /// Forgets the counters of connections whose end was delivered in the previous poll. Removes connections that need no more
    /// answers, displaced handshakes, and the oldest closed connections beyond the limit.
    fn remove_retired(&mut self) {
        let mut retired = std::mem::take(&mut self.retired);
        let mut excess = retired.len().saturating_sub(MAX_OVER);
        retired.retain(|&slot| {
            let Some(connection) = self.connections.get_mut(slot) else { return false };
            connection.forget_stats();
            let is_gone = connection.is_gone();
            if !is_gone && excess == 0 && !connection.is_to_be_forgotten() {
                return true;
            }
            excess = excess.saturating_sub(1);
            let (index, handle) = (connection.place.port, connection.place.handle);
            self.connections.remove(slot);
            if let Some(place) = self.ports.get_mut(index)
                && let Some(port) = place
            {
                if !is_gone {
                    // The time for late packets is not over, so the endpoint must be told to forget the connection too.
                    port.endpoint.handle_event(handle, EndpointEvent::drained());
                }
                port.remove_route(handle, slot);
                if self.identity.is_some() {
                    // A client's port serves one connection, so it closes with the connection.
                    *place = None;
                }
            }
            false
        });
        retired.append(&mut self.retired);
        self.retired = retired;
    }
}

fn has_room(inbox: &Inbox) -> bool {
    // Each delivery may add `MAX_EVENTS` events. Datagrams that do not fit wait in their connection.
    inbox.datagrams.len() < MAX_DATAGRAMS_PER_POLL
        && inbox.lost.len() < MAX_LOST_PER_POLL
        && inbox.events.len() + MAX_EVENTS <= MAX_EVENTS_PER_POLL
}

/// How a drive ended.
enum Drive {
    /// The connection has nothing more to send.
    Done,
    /// The cap of a drive was reached.
    Full,
    /// The socket is full.
    Stalled,
}

/// Runs one drive: sends until there is nothing more to send or the cap is reached. Also returns the number of datagrams sent.
fn drive(
    connection: &mut WarrenConnection,
    port: &mut Port,
    buffer: &mut Vec<u8>,
    now: Instant,
) -> (Drive, usize) {
    if port.is_parked() {
        return (Drive::Stalled, 0);
    }
    let quic = connection.quic();
    let mut sent = 0;
    loop {
        // The cap is read before each send, because another thread may have changed it (`warren set`).
        let segments = port.segments(quic.transmit_caps().segments(), quic.current_mtu());
        buffer.clear();
        let Some(transmit) = quic.poll_transmit(now, segments, buffer) else { return (Drive::Done, sent) };
        sent += transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size.max(1)));
        quic.record_drive(sent);
        if !port.send(transmit, buffer) {
            return (Drive::Stalled, sent);
        }
        if NonZeroUsize::new(sent).is_some_and(|sent| sent >= quic.transmit_caps().datagrams()) {
            return (Drive::Full, sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::task::{Context, Waker};

    use super::*;
    use crate::key::PrivateKey;
    use crate::settings::TransportSettings;

    #[tokio::test]
    async fn a_call_does_not_send_for_every_connection_and_the_next_goes_on() {
        const CONNECTIONS: usize = 2 * WORK_PER_CALL / WORK_PER_DRIVE;
        let settings = TransportSettings::default();
        let mut endpoint = WarrenEndpoint::client(settings, PrivateKey::generate().unwrap()).unwrap();
        let exit = UdpSocket::bind("127.0.0.1:0").unwrap();
        let keys = [PrivateKey::generate().unwrap().public()];
        for _ in 0..CONNECTIONS {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            endpoint.connect(socket, exit.local_addr().unwrap(), &keys, None).unwrap();
        }

        let mut cx = Context::from_waker(Waker::noop());
        endpoint.flush(&mut cx);
        let first = usize::try_from(endpoint.drives()).unwrap();
        assert!(0 < first && first <= WORK_PER_CALL / WORK_PER_DRIVE + 1, "{first} drives");
        assert!(endpoint.has_to_send());
        while endpoint.has_to_send() {
            endpoint.flush(&mut cx);
        }
        assert_eq!(endpoint.drives(), CONNECTIONS as u64);
    }
}
