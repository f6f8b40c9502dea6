//! The mark in a connection ID, which names the issuing process and its listening socket. Only that process can read it.

use aws_lc_rs::hmac;

use super::secrets::{MARK, OWN_ID_LENGTH};

/// A random key that a process draws at its start and never stores. All endpoints of an exit share it.
#[derive(Clone, Debug)]
pub(crate) struct ProcessKey(hmac::Key);

impl ProcessKey {
    fn new() -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .expect("the operating system's random source, once initialized, does not fail");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// Writes the mark of a listener into an ID.
    pub(crate) fn mark(&self, id: &mut [u8; OWN_ID_LENGTH], listener: u16) {
        // The mark is masked by a hash of the ID's random bytes, so that an observer cannot read the listener from it.
        let mark = self.mask(id).wrapping_add(listener);
        let [_, _, _, _, _, high, low, ..] = id;
        [*high, *low] = mark.to_be_bytes();
    }

    /// Returns the number of the listener that issued the ID in this process. An ID of another process yields a random number.
    pub(crate) fn listener(&self, id: &[u8; OWN_ID_LENGTH]) -> u16 {
        let [_, _, _, _, _, high, low, ..] = id;
        u16::from_be_bytes([*high, *low]).wrapping_sub(self.mask(id))
    }

    fn mask(&self, id: &[u8; OWN_ID_LENGTH]) -> u16 {
        let (random, _) = id.split_at(MARK);
        hmac::sign(&self.0, random).as_ref().first_chunk().copied().map_or(0, u16::from_be_bytes)
    }
}

impl Default for ProcessKey {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_the_listener_of_each_of_its_own_ids() {
        let process = ProcessKey::default();
        for number in 0..1_000_u16 {
            let mut id = [0; OWN_ID_LENGTH];
            getrandom::fill(&mut id).unwrap();
            process.mark(&mut id, number);
            assert_eq!(process.listener(&id), number);
        }
    }

    #[test]
    fn ids_of_another_process_seem_to_be_of_any_listener() {
        const IDS: usize = 10_000;
        let (process, other) = (ProcessKey::default(), ProcessKey::default());
        let taken_for_own = (0..IDS).filter(|_| {
            let mut id = [0; OWN_ID_LENGTH];
            getrandom::fill(&mut id).unwrap();
            other.mark(&mut id, 0);
            process.listener(&id) < 2
        });
        // Two of 65,536 are expected.
        assert!(taken_for_own.count() < 10);
    }
}
