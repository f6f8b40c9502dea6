//! The filter of a silent exit. It decides on each datagram with a long header before the QUIC library sees it. A connection's
//! datagrams have short headers and cost one branch.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use super::{
    ExitSecrets, OWN_ID_LENGTH, Strangers, Turned,
    initial::{LongHeader, is_long},
    proof::{FIRST_ID_LENGTH, ProofKey, has, proofs},
};
use crate::{
    key::PublicKey,
    planted::{Bug, is_planted},
    settings::MINIMUM_MTU,
};

/// The filter of one listening socket.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    strangers: Strangers,
    /// A proof key for each of the exit's keys. Read once per connection attempt.
    proofs: Arc<RwLock<Vec<ProofKey>>>,
    secrets: ExitSecrets,
}

impl Gate {
    pub(crate) fn new(strangers: &Strangers, exit: &[PublicKey], secrets: &ExitSecrets) -> Self {
        let proofs = Arc::new(RwLock::new(exit.iter().map(ProofKey::new).collect()));
        Self { strangers: strangers.clone(), proofs, secrets: secrets.clone() }
    }

    /// Replaces the exit's keys, including those of this gate's clones.
    pub(crate) fn set_keys(&self, exit: &[PublicKey]) {
        let proofs = exit.iter().map(ProofKey::new).collect();
        *self.proofs.write().unwrap_or_else(PoisonError::into_inner) = proofs;
    }

    /// Whether a datagram may be answered. If the exit is not silent, every datagram may be answered. Refused datagrams
    /// are counted. A valid proof is remembered in both modes, because it shows which key the client pins.
    pub(crate) fn lets_in(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        if !is_long(datagram) {
            return true;
        }
        match self.judge(from, datagram) {
            Err(why) if self.strangers.is_silent() => {
                self.strangers.count(why);
                false
            }
            Ok(()) | Err(_) => true,
        }
    }

    /// Whether to buffer a datagram of an unknown connection until the exit handles it. Two kinds are buffered. The first
    /// kind is an Initial that may be answered; a silent exit requires a proof for that. The second kind is a packet whose
    /// ID has the exit's tag, such as a client's packets after its Initials.
    pub(crate) fn lets_wait(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        let id = if is_long(datagram) {
            match LongHeader::read(datagram) {
                Some(LongHeader::Later { destination }) => Some(destination),
                Some(LongHeader::Initial { .. }) => return self.lets_in(from, datagram),
                // The library would answer with the versions that it speaks. No answer is required.
                None => None,
            }
        } else {
            datagram.get(1..=OWN_ID_LENGTH)
        };
        id.is_some_and(|id| self.secrets.ids.has_signed(id))
    }

    /// Returns the index of the exit's key that a client pins, or 0 if the client has shown no proof. The proof is looked up among
    /// the remembered ones, by the address and the connection ID of the client's first Initial. After a Retry, the client's packets
    /// carry no proof, but the Retry token contains this ID.
    pub(crate) fn pinned_by(&self, from: SocketAddr, first_id: &[u8]) -> usize {
        let keys = self.proofs.read().unwrap_or_else(PoisonError::into_inner);
        let Ok(first_id) = first_id.try_into() else { return 0 };
        // With one key there is no choice, so the lock on the proofs is not taken.
        if keys.len() < 2 {
            return 0;
        }
        let replays = self.strangers.replays();
        keys.iter().position(|key| replays.know(&[key.proof(first_id)], from)).unwrap_or(0)
    }

    /// A stranger's packet costs at most one keyed hash per key of the exit.
    fn judge(&self, from: SocketAddr, datagram: &[u8]) -> Result<(), Turned> {
        if is_planted(Bug::StrangersLetIn) {
            return Ok(());
        }
        let (destination, token) = match LongHeader::read(datagram) {
            None => return Err(Turned::NoProof),
            // If the packet belongs to no connection, the library does not answer it, so nothing is revealed.
            Some(LongHeader::Later { .. }) => return Ok(()),
            Some(LongHeader::Initial { destination, token }) => (destination, token),
        };
        if let Ok(first_id) = <&[u8; FIRST_ID_LENGTH]>::try_from(destination) {
            return self.judge_first(from, first_id, token, datagram.len());
        }
        // Once the client knows one of the exit's IDs, its Initials go to that ID, with the first Initial's token or that of a
        // Retry.
        if destination.len() == OWN_ID_LENGTH && self.secrets.ids.has_signed(destination) {
            let known = self.strangers.replays().know(proofs(token), from);
            if known || self.secrets.retry_tokens.are_good(token, from, SystemTime::now()) {
                return Ok(());
            }
        }
        Err(Turned::NoProof)
    }

    fn judge_first(
        &self,
        from: SocketAddr,
        id: &[u8; FIRST_ID_LENGTH],
        token: &[u8],
        length: usize,
    ) -> Result<(), Turned> {
        // Smaller Initials are invalid (RFC 9000 section 14.1). Without a proof, nothing needs to be hashed.
        if length < usize::from(MINIMUM_MTU) || proofs(token).is_empty() {
            return Err(Turned::NoProof);
        }
        let keys = self.proofs.read().unwrap_or_else(PoisonError::into_inner);
        let known = keys.iter().map(|key| key.proof(id)).find(|proof| has(token, proof));
        // The lock on the keys is released before the proofs are locked.
        drop(keys);
        let Some(proof) = known else { return Err(Turned::NoProof) };
        if !self.strangers.replays().admit(proof, from) {
            return Err(Turned::Replayed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::PrivateKey,
        strangers::{proof, retry_tokens},
    };

    const RESET_KEY: [u8; 64] = [7; 64];
    const FIRST_ID: [u8; FIRST_ID_LENGTH] = [3; FIRST_ID_LENGTH];

    struct Exit {
        key: PublicKey,
        strangers: Strangers,
        gate: Gate,
    }

    fn exit(silent: bool) -> Exit {
        let key = PrivateKey::generate().unwrap().public();
        let strangers = Strangers::new(silent);
        let gate = Gate::new(&strangers, &[key], &ExitSecrets::new(&RESET_KEY));
        Exit { key, strangers, gate }
    }

    fn peer(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    fn initial(destination: &[u8], token: &[u8]) -> Vec<u8> {
        let length = |bytes: &[u8]| [u8::try_from(bytes.len()).unwrap()];
        let token_length = u16::try_from(token.len()).unwrap() | 0x4000;
        let mut packet = [
            &[0xc0, 0, 0, 0, 1][..],
            &length(destination),
            destination,
            &[0],
            &token_length.to_be_bytes(),
            token,
        ]
        .concat();
        packet.resize(1_200, 0);
        packet
    }

    fn own_id() -> [u8; OWN_ID_LENGTH] {
        let mut id = [5; OWN_ID_LENGTH];
        ExitSecrets::new(&RESET_KEY).ids.sign(&mut id);
        id
    }

    #[test]
    fn an_initial_needs_the_proof_of_its_own_id() {
        let Exit { key, strangers, gate } = exit(true);
        let token = proof::token(&[key], &FIRST_ID);
        assert!(gate.lets_in(peer(1), &initial(&FIRST_ID, &token)));
        for refused in [
            initial(&FIRST_ID, &[]),
            initial(&FIRST_ID, &[0; 16]),
            initial(&[4; FIRST_ID_LENGTH], &token),
            initial(&FIRST_ID[..19], &token),
            initial(&FIRST_ID, &token)[..1_199].to_vec(),
        ] {
            assert!(!gate.lets_in(peer(1), &refused));
        }
        assert_eq!(strangers.turned_away(Turned::NoProof), 5);
    }

    #[test]
    fn a_proof_of_another_exit_s_key_is_none() {
        let Exit { key, gate, .. } = exit(true);
        let other = exit(true).key;
        assert!(!gate.lets_in(peer(1), &initial(&FIRST_ID, &proof::token(&[other], &FIRST_ID))));
        assert!(gate.lets_in(peer(1), &initial(&FIRST_ID, &proof::token(&[other, key], &FIRST_ID))));
    }

    #[test]
    fn an_exit_with_two_keys_takes_a_proof_of_either() {
        let keys: Vec<_> = (0..3).map(|_| PrivateKey::generate().unwrap().public()).collect();
        let gate = Gate::new(&Strangers::new(true), &keys[..2], &ExitSecrets::new(&RESET_KEY));
        let shows = |key| gate.lets_in(peer(1), &initial(&FIRST_ID, &proof::token(&[key], &FIRST_ID)));
        assert!(shows(keys[0]) && shows(keys[1]) && !shows(keys[2]));
    }

    #[test]
    fn the_key_that_a_client_pins_is_known_by_its_proof_at_an_exit_that_is_silent_and_at_one_that_is_not() {
        let keys: Vec<_> = (0..3).map(|_| PrivateKey::generate().unwrap().public()).collect();
        for silent in [true, false] {
            let gate = Gate::new(&Strangers::new(silent), &keys[..2], &ExitSecrets::new(&RESET_KEY));
            for (number, (pinned, place)) in
                [(&keys[..1], 0), (&keys[1..2], 1), (&keys[1..], 1), (&keys[..2], 0)].into_iter().enumerate()
            {
                let id = [u8::try_from(number).unwrap(); FIRST_ID_LENGTH];
                assert!(gate.lets_in(peer(1), &initial(&id, &proof::token(pinned, &id))));
                assert_eq!(gate.pinned_by(peer(1), &id), place);
                assert_eq!(gate.pinned_by(peer(2), &id), 0, "a client without a proof gets the first key");
            }
        }
    }

    #[test]
    fn a_proof_is_good_for_who_showed_it_first() {
        let Exit { key, strangers, gate } = exit(true);
        let packet = initial(&FIRST_ID, &proof::token(&[key], &FIRST_ID));
        assert!(gate.lets_in(peer(1), &packet) && gate.lets_in(peer(1), &packet));
        assert!(!gate.lets_in(peer(2), &packet));
        assert_eq!(strangers.turned_away(Turned::Replayed), 1);
    }

    #[test]
    fn later_initials_go_to_an_id_of_the_exit_s_with_the_token_of_the_first() {
        let Exit { key, gate, .. } = exit(true);
        let token = proof::token(&[key], &FIRST_ID);
        assert!(!gate.lets_in(peer(1), &initial(&own_id(), &token)), "no client has shown it yet");
        assert!(gate.lets_in(peer(1), &initial(&FIRST_ID, &token)));
        assert!(gate.lets_in(peer(1), &initial(&own_id(), &token)));
        assert!(!gate.lets_in(peer(2), &initial(&own_id(), &token)));
        assert!(!gate.lets_in(peer(1), &initial(&[0; OWN_ID_LENGTH], &token)));
    }

    #[test]
    fn a_retry_token_of_the_exit_s_own_is_let_in_from_its_address_while_it_is_new() {
        let gate = exit(true).gate;
        let now = SystemTime::now();
        let tokens = ExitSecrets::new(&RESET_KEY).retry_tokens;
        let fresh = retry_tokens::tests::token(&tokens, peer(1), now);
        assert!(gate.lets_in(peer(1), &initial(&own_id(), &fresh)));
        assert!(!gate.lets_in(peer(2), &initial(&own_id(), &fresh)));
        assert!(!gate.lets_in(peer(1), &initial(&[0; OWN_ID_LENGTH], &fresh)));
        let old = retry_tokens::tests::token(&tokens, peer(1), now - Duration::from_secs(12));
        assert!(!gate.lets_in(peer(1), &initial(&own_id(), &old)));
    }

    #[test]
    fn other_versions_are_refused_and_packets_of_connections_are_let_in() {
        let Exit { strangers, gate, .. } = exit(true);
        assert!(!gate.lets_in(peer(1), &[&[0xc0, 0xba, 0xba, 0xba, 0xba, 8][..], &[0; 1_200]].concat()));
        assert!(!gate.lets_in(peer(1), &[0xff]));
        assert_eq!(strangers.turned_away(Turned::NoProof), 2);
        for passed in [&[0x40; 64][..], &[0xe0, 0, 0, 0, 1, 0], &[]] {
            assert!(gate.lets_in(peer(1), passed));
        }
        assert_eq!(strangers.turned_away(Turned::NoProof), 2);
    }

    #[test]
    fn what_waits_shows_a_proof_or_goes_to_an_id_of_the_exit_s() {
        for silent in [true, false] {
            let Exit { key, gate, .. } = exit(silent);
            let short = |id: &[u8]| [&[0x40][..], id, &[0x5a; 30]].concat();
            let handshake = |id: &[u8]| [&[0xe0, 0, 0, 0, 1, 12][..], id, &[0x5a; 30]].concat();
            for packet in [short(&own_id()), handshake(&own_id())] {
                assert!(gate.lets_wait(peer(1), &packet));
            }
            for packet in [short(&[5; OWN_ID_LENGTH]), short(&own_id())[..12].to_vec(), Vec::new()] {
                assert!(gate.lets_in(peer(1), &packet) && !gate.lets_wait(peer(1), &packet));
            }
            let packet = handshake(&[5; OWN_ID_LENGTH]);
            assert!(gate.lets_in(peer(1), &packet) && !gate.lets_wait(peer(1), &packet));
            assert!(gate.lets_wait(peer(1), &initial(&FIRST_ID, &proof::token(&[key], &FIRST_ID))));
            assert_eq!(gate.lets_wait(peer(1), &initial(&FIRST_ID, &[])), !silent);
            let mut other_version = initial(&FIRST_ID, &[]);
            other_version[1] = 0xff;
            let cut_short = [&initial(&FIRST_ID, &[])[..26], &[0xff; 1_200]].concat();
            for packet in [other_version, cut_short] {
                assert_eq!(
                    (gate.lets_in(peer(1), &packet), gate.lets_wait(peer(1), &packet)),
                    (!silent, false)
                );
            }
        }
    }

    #[test]
    fn an_exit_that_is_not_silent_lets_everything_in_at_once() {
        let Exit { strangers, gate, .. } = exit(false);
        let packet = initial(&FIRST_ID, &[]);
        assert!(gate.lets_in(peer(1), &packet));
        strangers.set_silent(true);
        assert!(!gate.lets_in(peer(1), &packet));
    }
}
