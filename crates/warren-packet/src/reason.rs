//! The closed set of reasons why a packet is dropped, and a counter of each.

/// Declares each reason once: variant, name in JSON and metrics, description for people.
macro_rules! drop_reasons {
    ($($variant:ident $name:literal $description:literal;)*) => {
        /// Why a packet or datagram was dropped. Every drop has exactly one reason and is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $(#[doc = $description] $variant,)*
        }

        impl DropReason {
            /// Every reason, in the order of display.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The reason's stable name in JSON and metrics, in snake case.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// A sentence for people that says what happened.
            pub fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $description,)*
                }
            }
        }
    };
}

drop_reasons! {
    BadDatagram "bad_datagram" "The peer sent a datagram with invalid framing.";
    BadPacket "bad_packet" "The bytes were not one whole IPv4 or IPv6 packet.";
    BadChecksumFlag "bad_checksum_flag" "A packet that cannot have a partial checksum was flagged as having one.";
    BadFragment "bad_fragment" "Fragments of a packet overlapped, disagreed or were too small.";
    FragmentTimeout "fragment_timeout" "Some fragments of a packet did not arrive in time.";
    Repeated "repeated" "A numbered datagram or a WireGuard message had arrived before, or was too old to tell whether it had.";
    Unauthenticated "unauthenticated" "The sender of a WireGuard datagram did not prove that it has a client's key.";
    HandshakeLimit "handshake_limit" "Too many WireGuard handshakes were begun at the same time.";
    SpoofedSource "spoofed_source" "The source address is not one that the client holds.";
    LinkLocal "link_local" "A WireGuard client sent a packet that is only for its own link: its source is link-local or unspecified.";
    WrongDestination "wrong_destination" "The destination address is not one that this side holds.";
    NoRoute "no_route" "No session holds the destination address.";
    NoConnection "no_connection" "The session has no live connection.";
    NotAttached "not_attached" "The connection does not belong to a session yet.";
    Isolated "isolated" "Clients of this exit may not reach each other.";
    RateLimit "rate_limit" "The client exceeded the rate limit that the exit's operator set.";
    HandOverFull "hand_over_full" "The hand-over queue to the worker of the packet's connection was full.";
    QueueFull "queue_full" "The connection's queue was full, or it was two thirds full and dropped one packet per round trip.";
    QueueDelay "queue_delay" "The packet had waited too long for its connection.";
    TooLarge "too_large" "The packet was too large to carry.";
    ConnectionLost "connection_lost" "The connection ended while the packet waited.";
    TransportFull "transport_full" "The QUIC library's send buffer was full.";
    TransportTooLarge "transport_too_large" "The datagram no longer fitted the path MTU when it was sent.";
    TransportStale "transport_stale" "The datagram had waited too long on a connection whose peer did not answer.";
    ReceiveBufferFull "receive_buffer_full" "The QUIC library's receive buffer was full.";
    SocketBufferFull "socket_buffer_full" "The UDP socket's receive buffer was full.";
    IntakeFull "intake_full" "The client's datagrams arrived faster than they could be processed.";
    TunWrite "tun_write" "The TUN device did not accept the packet.";
    TunRead "tun_read" "A read from the TUN device was not a usable packet.";
}

/// The number of drops for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounters {
    counts: [u64; DropReason::ALL.len()],
}

impl DropCounters {
    /// Counts one drop.
    pub fn add(&mut self, reason: DropReason) {
        self.add_many(reason, 1);
    }

    /// Counts `count` drops of one reason.
    pub fn add_many(&mut self, reason: DropReason, count: u64) {
        // Variants are numbered from 0 in the order of `ALL`, so each is a valid index.
        self.counts[reason as usize] += count;
    }

    /// The number of drops for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize]
    }

    /// Every reason with its count, including zero counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().zip(self.counts)
    }

    /// The total of all drops.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another counter's counts.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_the_variants_in_snake_case_and_unique() {
        let names: HashSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
        for reason in DropReason::ALL {
            let mut snake = String::new();
            for letter in format!("{reason:?}").chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            assert_eq!(reason.name(), snake);
        }
    }

    #[test]
    fn descriptions_are_sentences() {
        for reason in DropReason::ALL {
            assert!(reason.description().ends_with('.'), "{reason:?}");
        }
    }

    #[test]
    fn counters_keep_reasons_apart_and_merge() {
        let mut one = DropCounters::default();
        one.add(DropReason::BadDatagram);
        one.add_many(DropReason::TunRead, 3);
        let mut other = DropCounters::default();
        other.add(DropReason::TunRead);
        one.merge(&other);
        assert_eq!(one.get(DropReason::BadDatagram), 1);
        assert_eq!(one.get(DropReason::TunRead), 4);
        assert_eq!(one.get(DropReason::QueueFull), 0);
        assert_eq!(one.total(), 5);
        assert_eq!(one.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert_eq!(one.iter().count(), DropReason::ALL.len());
    }
}
