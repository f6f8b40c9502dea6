//! WireGuard's part of a turn: its datagrams become packets of sessions, and packets for its peers are encrypted and sent.

use std::net::IpAddr;
use std::task::Context;
use std::time::Instant;

use bytes::BytesMut;
use warren_packet::datagram::Flags;
use warren_packet::ip::IpPacket;
use warren_packet::mss::{clamp_mss, is_syn};
use warren_packet::reason::DropReason;
use warren_packet::receive;
use warren_packet::segment::{Segment, segment};
use warren_packet::virtio::VirtioNetHeader;
use warren_quic::driver::{CloseReason, ConnectionId};
use warren_quic::socket::PlainSocket;
use warren_session::PublicKey;
use warren_session::clients::WireGuardClient;
use warren_session::exit::SessionId;
use warren_wireguard::{Event, Path, Server, Taken};

use super::Worker;
use crate::client_limit::ClientLimit;
use crate::counters::{Drops, Totals};
use crate::forward::Place;
use crate::message::Report;
use crate::wireguard::{Member, Members, WireGuard, drop_reason};

/// The longest message that carries no packet: the first message of a handshake (section 5.4.2 of the WireGuard paper).
const LONGEST_ANSWER: usize = 148;

impl Worker {
    /// Handles datagrams of WireGuard peers, and the peers' timers. Returns whether there may be more.
    pub(super) fn take_wireguard(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // The WireGuard state is taken out because handling it borrows `self`.
        let Some(mut wireguard) = self.wireguard.take() else { return false };
        // Events become reports. If the control plane is behind, the peers wait.
        let mut busy = !self.unsent_reports.is_empty();
        if !busy {
            busy = self.receive_wireguard(&mut wireguard, cx, now);
            let is_due = wireguard.is_due(now);
            let WireGuard { server, sockets, members, .. } = &mut *wireguard;
            if is_due {
                server.tick(now, |path, message| send(sockets, path, message));
            }
            self.take_wireguard_events(server, members);
        }
        wireguard.sockets.iter_mut().for_each(|socket| socket.poll_flush(cx));
        self.wireguard = Some(wireguard);
        if busy {
            self.write_to_device();
        }
        busy
    }

    fn receive_wireguard(&mut self, wireguard: &mut WireGuard, cx: &mut Context<'_>, now: Instant) -> bool {
        let WireGuard { server, sockets, members, mtu, .. } = wireguard;
        let (mut busy, mut answers) = (false, Vec::new());
        for (number, socket) in sockets.iter_mut().enumerate() {
            let received = socket.poll_receive(cx, |remote, local, datagram| {
                let from = Path { socket: number, remote, local };
                let room = datagram.len().max(LONGEST_ANSWER);
                let buffer = self.arena.room(room);
                buffer.resize(room, 0);
                let mut refused = None;
                match server.receive(now, from, datagram, buffer) {
                    Taken::Packet { peer, length } => {
                        // The events come first, because a peer's first packet makes it a member.
                        let mut packet = buffer.split();
                        packet.truncate(length);
                        self.take_wireguard_events(server, members);
                        members.heard(peer, datagram.len());
                        self.take_from_peer(members.get_mut(peer), packet, *mtu, now);
                        return;
                    }
                    Taken::KeepAlive { peer } => {
                        buffer.clear();
                        // The peer's first datagram makes it a member.
                        self.take_wireguard_events(server, members);
                        members.heard(peer, datagram.len());
                        return;
                    }
                    Taken::Answer(answer) => answers.push((from, answer.to_vec())),
                    Taken::Refused(refusal) => refused = Some(drop_reason(refusal)),
                    Taken::Nothing => {}
                }
                buffer.clear();
                refused.into_iter().for_each(|reason| self.refuse(reason));
            });
            busy |= received.is_ready();
        }
        answers.iter().for_each(|(path, answer)| send(sockets, *path, answer));
        busy
    }

    /// Handles a packet of a peer: now, or once the peer's session is open.
    fn take_from_peer(&mut self, member: Option<&mut Member>, packet: BytesMut, mtu: u16, now: Instant) {
        let Some(member) = member else { return self.refuse(DropReason::NotAttached) };
        let Some(session) = member.session else {
            if member.hold(packet).is_err() {
                self.refuse(DropReason::NotAttached);
            }
            return;
        };
        member.traffic.packets_in += 1;
        member.traffic.bytes_in += packet.len() as u64;
        self.totals.carrier_received_packets += 1;
        if let Err(reason) = self.deliver_from_peer(session, packet, mtu, now) {
            self.drops.count_to_tun(reason);
            self.sessions.count_drops_of(session, reason, 1);
        }
    }

    fn deliver_from_peer(
        &mut self,
        session: SessionId,
        mut packet: BytesMut,
        mtu: u16,
        now: Instant,
    ) -> Result<(), DropReason> {
        let view = self.admit(session, &packet, now).map_err(|reason| of_own_link(reason, &packet))?;
        if is_syn(&view) {
            // The flow's packets to the peer must fit through the TUN, and the client's own MTU may be larger than the TUN's.
            clamp_mss(&mut packet, false, mtu.into());
        }
        let Some(device) = &mut self.device else { return Err(DropReason::NotAttached) };
        device.coalescer.push(Flags::NONE, packet.freeze())
    }

    /// Handles the events of peers: adds and removes members, and reports this to the control plane.
    fn take_wireguard_events(&mut self, server: &mut Server, members: &mut Members) {
        while let Some(event) = server.poll_event() {
            match event {
                Event::Up { peer, key, remote } => {
                    // The peer may be up again after its session was ended.
                    let connection = match members.get_mut(peer) {
                        Some(member) => member.connection,
                        None => members.add(peer),
                    };
                    self.report(Report::WireGuardUp { connection, peer: key, remote });
                }
                Event::Down { peer } => {
                    let Some(mut member) = members.remove(peer) else { continue };
                    self.leave_session_of(peer, &mut member);
                    self.report(Report::Closed {
                        connection: member.connection,
                        reason: CloseReason::TimedOut,
                    });
                }
            }
        }
    }

    /// Removes a member from its session, and drops the packets that the member holds for its next session.
    fn leave_session_of(&mut self, peer: usize, member: &mut Member) {
        for _ in member.take_held() {
            self.refuse(DropReason::NotAttached);
        }
        if let Some(session) = member.session.take() {
            self.sessions.detach(session, Place::Peer(peer));
            let traffic = std::mem::take(&mut member.traffic);
            self.keep_traffic(session, &traffic);
        }
    }

    /// Admits a client, or refuses it from now on.
    pub(super) fn set_wireguard(&mut self, key: PublicKey, client: Option<WireGuardClient>) {
        let Some(mut wireguard) = self.wireguard.take() else { return };
        let WireGuard { server, members, .. } = &mut *wireguard;
        server.set_client(key, client);
        self.take_wireguard_events(server, members);
        self.wireguard = Some(wireguard);
    }

    /// Attaches a peer to a session.
    pub(super) fn attach_peer(&mut self, session: SessionId, connection: ConnectionId, index: u32) {
        let Some(mut wireguard) = self.wireguard.take() else { return };
        let WireGuard { server, members, mtu, .. } = &mut *wireguard;
        let peer = members.of(connection);
        if let Some((peer, member)) = peer.and_then(|peer| Some((peer, members.get_mut(peer)?)))
            && self.sessions.attach(session, index, Place::Peer(peer))
        {
            member.session = Some(session);
            // A command that detached or closed the peer may have come after the packet that asked for this session.
            server.attached(peer);
            let now = Instant::now();
            for packet in member.take_held() {
                self.take_from_peer(Some(member), packet, *mtu, now);
            }
        }
        self.wireguard = Some(wireguard);
        self.write_to_device();
    }

    /// Removes a peer from its session. The next packet that the peer sends asks for another session.
    pub(super) fn detach_peer(&mut self, connection: ConnectionId) {
        let Some(mut wireguard) = self.wireguard.take() else { return };
        let WireGuard { server, members, .. } = &mut *wireguard;
        if let Some(peer) = members.of(connection) {
            server.end_session(peer);
            if let Some(member) = members.get_mut(peer) {
                self.leave_session_of(peer, member);
            }
        }
        self.wireguard = Some(wireguard);
    }

    /// Removes a peer from a session that has ended.
    pub(super) fn leave_ended(&mut self, peer: usize, session: SessionId) {
        let Some(mut wireguard) = self.wireguard.take() else { return };
        if let Some(member) = wireguard.members.get_mut(peer).filter(|member| member.session == Some(session))
        {
            self.leave_session_of(peer, member);
        }
        self.wireguard = Some(wireguard);
    }

    /// Encrypts the packets of a super-packet for a peer. They are sent at the end of the turn or earlier.
    ///
    /// # Errors
    /// The reason under which to count each packet. None of them was counted yet.
    pub(super) fn queue_for_peer(
        wireguard: Option<&mut WireGuard>,
        peer: usize,
        (header, super_packet): (VirtioNetHeader, &[u8]),
        sealing: Sealing<'_>,
    ) -> Result<(), DropReason> {
        let wireguard = wireguard.filter(|wireguard| wireguard.server.can_send(peer));
        let wireguard = wireguard.ok_or(DropReason::NoConnection)?;
        let Sealing { totals, drops, limit, now } = sealing;
        let mut plain = Vec::new();
        let cut = segment(header, super_packet, &mut |packet: Segment<'_>| {
            totals.tun_read_packets += 1;
            totals.tun_read_bytes += packet.len() as u64;
            if limit.is_some_and(|limit| !limit.to_client.admits(packet.len(), now)) {
                drops.count_to_carrier(DropReason::RateLimit);
                return;
            }
            plain.clear();
            packet.parts().into_iter().for_each(|part| plain.extend_from_slice(part));
            // The checksum must be completed here, because WireGuard clients expect packets with complete checksums.
            if packet.flags().partial_checksum()
                && let Err(reason) = receive::complete(&mut plain)
            {
                drops.count_to_carrier(reason);
                limit.into_iter().for_each(|limit| limit.count_drops(reason, 1));
                return;
            }
            let (totals, drops) = (&mut *totals, &mut *drops);
            let lost = &mut |reason, packets| count_lost(totals, drops, reason, packets);
            if wireguard.seal(peer, &plain, lost) {
                totals.carrier_sent_packets += 1;
            } else {
                drops.count_to_carrier(DropReason::NoConnection);
                limit.into_iter().for_each(|limit| limit.count_drops(DropReason::NoConnection, 1));
            }
        });
        cut.map_err(|_| DropReason::BadPacket)
    }

    /// Sends the datagrams that were encrypted in this turn and not sent yet.
    pub(super) fn send_wireguard(&mut self) {
        let Some(wireguard) = &mut self.wireguard else { return };
        let (totals, drops) = (&mut self.totals, &mut self.drops);
        wireguard.send_run(&mut |reason, packets| count_lost(totals, drops, reason, packets));
    }
}

/// The reason to count for a packet whose source is not the client's address. The client's system sends link-local traffic on every
/// link, so also into the tunnel. The source of this traffic is a link-local address, or the unspecified address until the system
/// has another one. The exit drops these packets. Warren's own clients send none.
fn of_own_link(reason: DropReason, packet: &[u8]) -> DropReason {
    let is_of_link = |source| match source {
        IpAddr::V4(source) => source.is_link_local() || source.is_unspecified(),
        IpAddr::V6(source) => source.is_unicast_link_local() || source.is_unspecified(),
    };
    match IpPacket::parse(packet) {
        Ok(view) if reason == DropReason::SpoofedSource && is_of_link(view.source()) => DropReason::LinkLocal,
        Ok(_) | Err(_) => reason,
    }
}

/// The parts of the worker that encrypting a super-packet needs.
pub(super) struct Sealing<'a> {
    pub(super) totals: &'a mut Totals,
    pub(super) drops: &'a mut Drops,
    pub(super) limit: Option<&'a ClientLimit>,
    pub(super) now: Instant,
}

/// Counts packets as lost that were counted as sent before.
fn count_lost(totals: &mut Totals, drops: &mut Drops, reason: DropReason, packets: u64) {
    totals.carrier_sent_packets -= packets;
    drops.to_carrier.add_many(reason, packets);
}

/// Sends a message of the WireGuard protocol itself. If the socket has no room, the message is lost. Then the peer repeats its own
/// message, or the timers for this peer repeat this one.
fn send(sockets: &mut [PlainSocket], path: Path, message: &[u8]) {
    if let Some(socket) = sockets.get_mut(path.socket) {
        socket.send(path.remote, path.local, message, message.len());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use boringtun::noise::{Tunn, TunnResult};
    use boringtun::x25519;
    use tokio::sync::mpsc;
    use warren_quic::driver::Endpoint;
    use warren_quic::key::PrivateKey as QuicKey;
    use warren_quic::settings::TransportSettings;
    use warren_wireguard::PrivateKey;

    use super::*;
    use crate::forward::SessionRoute;
    use crate::hand_over;
    use crate::message::SharedCommand;
    use crate::tuning::Tuning;
    use crate::wireguard::WireGuardCarrier;

    fn packet(source: &str) -> Vec<u8> {
        match source.parse::<IpAddr>().unwrap() {
            IpAddr::V4(source) => {
                let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0];
                packet.extend(source.octets());
                packet.extend([203, 0, 113, 7]);
                packet
            }
            IpAddr::V6(source) => {
                // An IPv6 header without a payload and without a next header.
                let mut packet = vec![0x60, 0, 0, 0, 0, 0, 59, 64];
                packet.extend(source.octets());
                packet.extend([0x20; 16]);
                packet
            }
        }
    }

    const SESSION: SessionId = SessionId(7);

    /// A worker that serves WireGuard, a client, and the worker's reports.
    struct World {
        worker: Worker,
        reports: mpsc::Receiver<Report>,
        client: Tunn,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let (own, theirs) = (PrivateKey::new([7; 32]), x25519::StaticSecret::from([8; 32]));
            let key = PublicKey(x25519::PublicKey::from(&theirs).to_bytes());
            let client = Tunn::new(theirs, x25519::PublicKey::from(own.public().0), None, None, 5, None);
            let settings = TransportSettings::default();
            let endpoint = Endpoint::client(settings.clone(), QuicKey::generate().unwrap()).unwrap();
            let hand_over = hand_over::between(1).pop().unwrap();
            let (report_queue, reports) = mpsc::channel(8);
            let commands = mpsc::channel(1).1;
            let mut worker =
                Worker::new(endpoint, None, Tuning::default(), hand_over, commands, report_queue);
            let carrier = WireGuardCarrier { key: own, sockets: Vec::new(), mtu: 1_380 };
            worker.wireguard = Some(Box::new(WireGuard::new(carrier, &settings).unwrap()));
            worker.set_wireguard(key, Some(WireGuardClient::default()));
            Self { worker, reports, client, now: Instant::now() }
        }

        /// Gives the worker a datagram of the client. Returns the answer.
        fn give(&mut self, datagram: &[u8]) -> Vec<u8> {
            let from = Path { socket: 0, remote: "192.0.2.2:1000".parse().unwrap(), local: None };
            let mut wireguard = self.worker.wireguard.take().unwrap();
            let (mut buffer, mut answer) = ([0; 2_048], Vec::new());
            match wireguard.server.receive(self.now, from, datagram, &mut buffer) {
                Taken::Answer(bytes) => answer = bytes.to_vec(),
                Taken::Refused(refusal) => panic!("{refusal:?}"),
                Taken::Nothing | Taken::KeepAlive { .. } | Taken::Packet { .. } => {}
            }
            self.worker.take_wireguard_events(&mut wireguard.server, &mut wireguard.members);
            self.worker.wireguard = Some(wireguard);
            answer
        }

        /// The client sends a packet.
        fn packet(&mut self) {
            let bytes = written(self.client.encapsulate(&packet("10.66.0.2"), &mut [0; 2_048]));
            self.give(&bytes);
        }

        /// The connection that asks for a session, if one does.
        fn asks(&mut self) -> Option<ConnectionId> {
            let report = self.reports.try_recv().ok()?;
            let Report::WireGuardUp { connection, .. } = report else { panic!("{report:?}") };
            Some(connection)
        }

        fn begin_session(&mut self, connection: ConnectionId) {
            let route = SessionRoute {
                ipv4: Some("10.66.0.2".parse().unwrap()),
                ipv6: None,
                prefixes: Vec::new(),
                connections: 1,
                limit: None,
                repair: false,
            };
            self.shared(SharedCommand::OpenSession { session: SESSION, client: None, route });
            self.shared(SharedCommand::Attach { session: SESSION, connection, index: 0 });
        }

        fn shared(&mut self, command: SharedCommand) {
            self.worker.carry_out_shared(command);
        }
    }

    fn written(result: TunnResult<'_>) -> Vec<u8> {
        let TunnResult::WriteToNetwork(bytes) = result else { panic!("{result:?}") };
        bytes.to_vec()
    }

    #[tokio::test]
    async fn a_peer_that_sends_while_its_session_ends_gets_one_other_session_and_keeps_it() {
        let mut world = World::new();
        let first = written(world.client.format_handshake_initiation(&mut [0; 2_048], true));
        let answer = world.give(&first);
        let keep_alive = written(world.client.decapsulate(None, &answer, &mut [0; 2_048]));
        world.give(&keep_alive);
        let connection = world.asks().unwrap();
        world.begin_session(connection);

        // The exit ends the session. The client sends between the commands that detach and close its connection.
        world.now += Duration::from_secs(60);
        world.shared(SharedCommand::Detach { connection });
        world.packet();
        assert_eq!(world.asks(), Some(connection));
        world.shared(SharedCommand::EndSession { session: SESSION });
        // How a worker closes a WireGuard connection.
        world.worker.detach_peer(connection);
        world.begin_session(connection);

        for _ in 0..10 {
            world.now += Duration::from_secs(2);
            world.packet();
            assert_eq!(world.asks(), None, "the peer has a session");
        }
    }

    #[test]
    fn what_a_system_says_on_its_own_link_is_told_from_a_forged_source() {
        let reason = |source| of_own_link(DropReason::SpoofedSource, &packet(source));
        for own in ["fe80::1", "febf::1", "::", "169.254.1.1", "0.0.0.0"] {
            assert_eq!(reason(own), DropReason::LinkLocal, "{own}");
        }
        for forged in ["fec0::1", "ff02::1", "2001:db8::1", "192.0.2.1"] {
            assert_eq!(reason(forged), DropReason::SpoofedSource, "{forged}");
        }
        assert_eq!(of_own_link(DropReason::RateLimit, &packet("fe80::1")), DropReason::RateLimit);
    }
}
