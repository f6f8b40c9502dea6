//! Pseudo-random numbers: the same seed gives the same numbers.

/// A generator of pseudo-random numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Makes a generator for one purpose. Each purpose has its own sequence of numbers.
    pub(crate) fn for_purpose(seed: u64, purpose: u64) -> Self {
        Self::new(mix(seed ^ mix(purpose)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Returns true with a probability of `share`. If `share` is 0, the generator's state does not change.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && fraction(self.next()) < share
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // The bias of the modulo is far too small to matter here.
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or(0)
    }
}

/// Returns a number from 0 to below 1 that depends only on the arguments, and not on the numbers drawn before.
pub(crate) fn at(seed: u64, purpose: u64, place: u64) -> f64 {
    fraction(mix(mix(seed ^ mix(purpose)).wrapping_add(place.wrapping_mul(STEP))))
}

// 2^64 divided by the golden ratio: the increment of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

// The output function of SplitMix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Converts the upper 53 bits to a number from 0 to below 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn fraction(bits: u64) -> f64 {
    // 1 / 2^53.
    const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0;
    (bits >> 11) as f64 * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_comes_true_as_often_as_asked_and_the_same_way_again() {
        let hits = |seed| {
            let mut random = Random::for_purpose(seed, 1);
            (0..1_000_000).map(|_| random.chance(0.01)).collect::<Vec<_>>()
        };
        let found = hits(7);
        assert_eq!(found, hits(7));
        assert_ne!(found, hits(8));
        let count = found.iter().filter(|&&hit| hit).count();
        assert!((9_700..10_300).contains(&count), "{count}");
    }

    #[test]
    fn purposes_draw_apart() {
        let (mut one, mut other) = (Random::for_purpose(7, 1), Random::for_purpose(7, 2));
        assert!((0..100).any(|_| one.next() != other.next()));
        assert!(at(7, 1, 0) != at(7, 1, 1) && at(7, 1, 0) == at(7, 1, 0));
    }

    #[test]
    fn certain_things_are_certain() {
        let mut random = Random::new(1);
        assert!((0..1_000).all(|_| random.chance(1.0) && !random.chance(0.0)));
        assert!((0..1_000).all(|_| random.below(3) < 3) && random.below(0) == 0);
    }
}
