//! An exit with two keys proves the one that the client pins. Only the proof in the client's first packet shows which key the
//! client pins.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

#[path = "common/attacker.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod attacker;
mod common;

use attacker::Attacker;
use aws_lc_rs::hmac;
use common::{Drivers, Pair, RESET_KEY, Side, loopback_socket};
use warren_quic::{
    driver::{CloseReason, Endpoint},
    key::{PrivateKey, PublicKey},
    settings::TransportSettings,
    strangers::{Strangers, Turned},
};

test_every_driver!(
    an_exit_with_two_keys_proves_the_one_that_the_client_pins,
    an_exit_proves_the_pinned_key_also_to_who_must_prove_its_address_first,
    keys_that_an_exit_takes_over_count_for_the_next_connection,
);

async fn an_exit_with_two_keys_proves_the_one_that_the_client_pins(drivers: Drivers) {
    for silent in [true, false] {
        let mut exit = TwoKeys::new(drivers, silent);
        let [first, second, other] = exit.public;
        for pinned in [&[first][..], &[second], &[second, first], &[other, second]] {
            exit.connects(pinned).await;
        }
        assert_eq!(exit.strangers.turned_away(Turned::AddressUnproven), 0);
    }
}

async fn an_exit_proves_the_pinned_key_also_to_who_must_prove_its_address_first(drivers: Drivers) {
    for silent in [true, false] {
        let mut exit = TwoKeys::new(drivers, silent);
        let [first, second, other] = exit.public;
        // More handshakes than one network may have in progress without address validation.
        let crowd = loopback_socket();
        for number in 0..70 {
            let attacker = Attacker::new(number);
            for packet in
                attacker.hello_with(&attacker.usual_parameters(), &proof(first, &attacker.destination))
            {
                crowd.send_to(&packet, exit.pair.exit_address).unwrap();
            }
        }
        let strangers = exit.strangers.clone();
        exit.pair
            .until("the exit asks for address validation", |_| {
                strangers.turned_away(Turned::AddressUnproven) > 0
            })
            .await;
        for pinned in [&[first][..], &[second], &[other, second]] {
            let before = strangers.turned_away(Turned::AddressUnproven);
            exit.connects(pinned).await;
            assert!(
                strangers.turned_away(Turned::AddressUnproven) > before,
                "a Retry replaced the token with the proof"
            );
        }
    }
}

async fn keys_that_an_exit_takes_over_count_for_the_next_connection(drivers: Drivers) {
    let mut exit = TwoKeys::new(drivers, false);
    let [first, second, _] = exit.public;
    exit.pair.exit.endpoint.set_identities(&exit.keys[1..2]).unwrap();
    exit.connects(&[second]).await;
    exit.pair.client.endpoint.connect(loopback_socket(), exit.pair.exit_address, &[first]).unwrap();
    exit.pair.until("the client gives up", |pair| !pair.client.closed.is_empty()).await;
    assert_eq!(*exit.pair.client.close_reason(), CloseReason::WrongPeerKey { presented: second });
    exit.pair.client.closed.clear();
    exit.pair.exit.endpoint.set_identities(&exit.keys[..2]).unwrap();
    exit.connects(&[first]).await;
    exit.connects(&[second]).await;
}

/// An exit with the first two of three keys.
struct TwoKeys {
    keys: Vec<PrivateKey>,
    public: [PublicKey; 3],
    strangers: Strangers,
    pair: Pair,
}

impl TwoKeys {
    fn new(drivers: Drivers, silent: bool) -> Self {
        let strangers = Strangers::new(silent);
        let settings = TransportSettings { strangers: strangers.clone(), ..Default::default() };
        let keys: Vec<_> = (0..3).map(|_| PrivateKey::generate().unwrap()).collect();
        let mut pair = Pair::new(drivers, &settings);
        let listen = loopback_socket();
        pair.exit_address = listen.local_addr().unwrap();
        let endpoint = Endpoint::exit(drivers.exit(settings), keys[..2].to_vec(), vec![listen], RESET_KEY);
        pair.exit = Side::new(endpoint.unwrap());
        let public = std::array::from_fn(|place| keys[place].public());
        Self { keys, public, strangers, pair }
    }

    /// A client that pins these keys connects.
    async fn connects(&mut self, pinned: &[PublicKey]) {
        let address = self.pair.exit_address;
        let id = self.pair.client.endpoint.connect(loopback_socket(), address, pinned).unwrap();
        self.pair
            .until("it is connected", |pair| {
                assert_eq!(pair.client.closed, [], "the client's connection was closed");
                pair.client.connected.iter().any(|(connected, _)| *connected == id)
            })
            .await;
        let (_, shown) = self.pair.client.connected.pop().unwrap();
        assert!(pinned.contains(&shown));
    }
}

/// The token that proves knowledge of the exit's key, as documented in `docs/silent-mode.md`.
fn proof(key: PublicKey, first_id: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key.0);
    hmac::sign(&key, &[b"warren/1 initial proof", first_id].concat()).as_ref()[..16].to_vec()
}
