//! The messages of the control stream: Protocol Buffers, each after a length prefix.
//!
//! Each message is a big-endian `u16` length and one `Message` envelope of `docs/warren-v1.proto`. Unknown fields and messages
//! are ignored, so that later versions can add and drop them.

mod address;
mod decoder;
mod envelope;
mod error;
pub(crate) mod wire;

pub use self::decoder::{MAX_MESSAGE_LENGTH, MessageDecoder};
pub use self::envelope::{Message, encode};
pub use self::error::MessageError;
pub use self::wire::{
    Attach, Attached, Enrol, Enrolled, ExitLoad, Fleet, Goodbye, Hello, Network, Roster, Stay, Update,
    Welcome,
};

pub(crate) use self::address::{ip_from_wire, ip_to_wire, is_unicast};

#[cfg(test)]
mod tests {
    use super::*;

    mod schema;

    /// The encoding of version 1 is fixed, because a second implementation reads it.
    #[test]
    fn the_bytes_on_the_wire_are_those_of_version_1() {
        let hello = Hello {
            version: 1,
            features: 0x05,
            connections_wanted: 4,
            name: "ab".into(),
            nonce: vec![0xaa; 2],
            prefixes: vec![Network { address: vec![10, 0, 0, 0], prefix_length: 8 }],
            has_other_exit: Some(true),
            fleet: None,
            claim: 0,
        };
        #[rustfmt::skip]
        let expected = [
            0x00, 0x1c, 0x0a, 0x1a, 0x08, 0x01, 0x10, 0x05, 0x18, 0x04, 0x22, 0x02, b'a', b'b', 0x2a, 0x02, 0xaa, 0xaa,
            0x32, 0x08, 0x0a, 0x04, 10, 0, 0, 0, 0x10, 0x08, 0x38, 0x01,
        ];
        assert_eq!(encode(&Message::Hello(hello)), expected);
        assert_eq!(
            encode(&Message::Attach(Attach { session: 300, attach_token: vec![1], index: 2 })),
            [0x00, 0x0a, 0x1a, 0x08, 0x08, 0xac, 0x02, 0x12, 0x01, 0x01, 0x18, 0x02]
        );
        assert_eq!(encode(&Message::Attached(Attached { index: 0 })), [0x00, 0x02, 0x22, 0x00]);
    }

    #[test]
    fn the_bytes_of_what_a_fleet_adds_are_fixed_too() {
        let fleet = Fleet { name: "acme".into(), serial: 300 };
        let hello = Hello { version: 1, fleet: Some(fleet), ..Hello::default() };
        #[rustfmt::skip]
        let expected = [
            0x00, 0x0f, 0x0a, 0x0d, 0x08, 0x01, 0x42, 0x09, 0x0a, 0x04, b'a', b'c', b'm', b'e', 0x10, 0xac, 0x02,
        ];
        assert_eq!(encode(&Message::Hello(hello)), expected);
        let hello = Hello { version: 1, claim: 300, ..Hello::default() };
        assert_eq!(encode(&Message::Hello(hello)), [0x00, 0x07, 0x0a, 0x05, 0x08, 0x01, 0x48, 0xac, 0x02]);
        assert_eq!(encode(&Message::Stay(Stay { claim: 2 })), [0x00, 0x04, 0x52, 0x02, 0x08, 0x02]);
        let loads = vec![ExitLoad { exit: "x".into(), permille: 5 }];
        let roster = Message::Roster(Roster { signed: vec![7], loads });
        let expected = [0x00, 0x0c, 0x4a, 0x0a, 0x0a, 0x01, 7, 0x12, 0x05, 0x0a, 0x01, b'x', 0x10, 0x05];
        assert_eq!(encode(&roster), expected);
    }

    /// A peer that is older than fleets skips fields that it does not know, and this version does the same with fields of later
    /// versions.
    #[test]
    fn older_peers_see_nothing_of_a_fleet() {
        /// The fields of `Hello` that the last version without a fleet had.
        #[derive(Clone, PartialEq, prost::Message)]
        struct OldHello {
            #[prost(uint32, tag = "1")]
            version: u32,
            #[prost(uint64, tag = "2")]
            features: u64,
            #[prost(bool, optional, tag = "7")]
            has_other_exit: Option<bool>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        struct OldEnvelope {
            #[prost(message, optional, tag = "1")]
            hello: Option<OldHello>,
        }
        use prost::Message as _;
        let fleet = Some(Fleet { name: "acme".into(), serial: 1 });
        let hello = Hello { version: 1, features: 4, has_other_exit: Some(false), fleet, ..Hello::default() };
        let bytes = encode(&Message::Hello(hello));
        let old = OldEnvelope::decode(bytes.get(2..).unwrap()).unwrap();
        let expected = OldHello { version: 1, features: 4, has_other_exit: Some(false) };
        assert_eq!(old.hello, Some(expected));
        let roster = encode(&Message::Roster(Roster { signed: vec![1], loads: Vec::new() }));
        assert_eq!(OldEnvelope::decode(roster.get(2..).unwrap()).unwrap(), OldEnvelope { hello: None });
    }

    #[test]
    fn the_largest_roster_fits_into_a_message() {
        let load = ExitLoad { exit: "x".repeat(crate::clients::MAX_NAME_LENGTH), permille: u32::MAX };
        let roster = Roster {
            signed: vec![0xff; crate::roster::MAX_ROSTER_LENGTH],
            loads: vec![load; crate::roster::MAX_ROSTER_EXITS],
        };
        assert!(encode(&Message::Roster(roster)).len() < usize::from(u16::MAX) / 2);
    }

    #[test]
    fn messages_are_those_of_the_document() {
        let network = |address: &[u8], prefix_length| Network { address: address.to_vec(), prefix_length };
        let hello = Hello {
            version: 1,
            connections_wanted: 2,
            name: "laptop".into(),
            nonce: vec![0xaa; 16],
            prefixes: vec![network(&[192, 168, 7, 0], 24)],
            ..Hello::default()
        };
        let welcome = Welcome {
            session: 300,
            attach_token: vec![0xbb; 16],
            ipv4: Some(network(&[10, 66, 0, 2], 16)),
            mtu: 1_380,
            dns: vec![vec![9, 9, 9, 9]],
            connections: 2,
            keep_alive_milliseconds: 5_000,
            gateway_ipv4: vec![10, 66, 0, 1],
            ..Welcome::default()
        };
        let update = Update {
            number: 1,
            dns: vec![vec![9, 9, 9, 9]],
            routes: vec![network(&[10, 0, 0, 0], 8)],
            exit_keys: vec![vec![0x11; 32]],
        };
        let goodbye = |reason, exit_version, client_version| {
            Message::Goodbye(Goodbye { reason, exit_version, client_version })
        };
        let enrol = Enrol { token: "qqqqqqqqqqqqqqqqqqqqqg".into(), name: "laptop".into() };
        let document = include_str!("../../../docs/wire-protocol.md");
        for (kind, message) in [
            ("hello", Message::Hello(hello)),
            ("welcome", Message::Welcome(welcome)),
            ("attach", Message::Attach(Attach { session: 300, attach_token: vec![0xbb; 16], index: 1 })),
            ("update", Message::Update(update)),
            ("attached", Message::Attached(Attached { index: 1 })),
            ("attached", Message::Attached(Attached { index: 0 })),
            ("goodbye", goodbye(18, 0, 0)),
            ("goodbye", goodbye(4, 1, 2)),
            ("enrol", Message::Enrol(enrol)),
        ] {
            let hex: String = encode(&message).iter().map(|byte| format!("{byte:02x}")).collect();
            let shown =
                |line: &str| line.starts_with(&format!("{kind} ")) && line.ends_with(&format!("-> {hex}"));
            assert!(document.lines().any(shown), "docs/wire-protocol.md lacks {kind} {hex}");
        }
    }

    #[test]
    fn the_largest_welcome_fits_into_a_message() {
        let network = Network { address: vec![0xff; 16], prefix_length: 128 };
        let welcome = Welcome {
            session: u64::MAX,
            attach_token: vec![0xff; 16],
            ipv4: Some(Network { address: vec![0xff; 4], prefix_length: 32 }),
            ipv6: Some(network.clone()),
            mtu: u32::MAX,
            dns: vec![vec![0xff; 16]; crate::MAX_DNS_SERVERS],
            routes: vec![network.clone(); crate::MAX_ROUTES],
            connections: u32::MAX,
            keep_alive_milliseconds: u32::MAX,
            features: u64::MAX,
            gateway_ipv4: vec![0xff; 4],
            gateway_ipv6: vec![0xff; 16],
            prefixes: vec![network; crate::MAX_PREFIXES],
            exit_keys: vec![vec![0xff; 32]; crate::MAX_EXIT_KEYS],
        };
        assert!(encode(&Message::Welcome(welcome)).len() < usize::from(u16::MAX) / 2);
    }
}
