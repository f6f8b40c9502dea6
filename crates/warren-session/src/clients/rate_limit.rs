//! The rate limit of a client.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum bits of inner packets per second that a client may send, and the same for receiving: 64 kbit to 1000 gbit.
///
/// Written as `50mbit`, in the decimal units of `tc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RateLimit(u64);

/// The error for a text that is not a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write a rate such as 50mbit: a whole number of kbit, mbit or gbit a second, 64kbit to 1000gbit")]
pub struct InvalidRateLimit;

const UNITS: [(&str, u64); 3] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000)];

impl RateLimit {
    /// Makes a rate from bits per second. `None` if it is out of bounds or not a multiple of 1 kbit.
    pub const fn new(bits_per_second: u64) -> Option<Self> {
        let in_bounds = bits_per_second >= 64_000 && bits_per_second <= 1_000_000_000_000;
        if in_bounds && bits_per_second.is_multiple_of(1_000) { Some(Self(bits_per_second)) } else { None }
    }

    /// The rate in bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for RateLimit {
    type Err = InvalidRateLimit;

    fn from_str(text: &str) -> Result<Self, InvalidRateLimit> {
        let lower = text.to_ascii_lowercase();
        let of_unit = |(unit, factor): &(&str, u64)| {
            let number: u64 = lower.strip_suffix(unit)?.parse().ok()?;
            Self::new(number.checked_mul(*factor)?)
        };
        UNITS.iter().find_map(of_unit).ok_or(InvalidRateLimit)
    }
}

stored_as_text!(RateLimit);

impl fmt::Display for RateLimit {
    /// Writes the rate in the largest unit that makes it a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor));
        // There is always such a unit, because every rate is a multiple of 1 kbit.
        let (unit, factor) = whole.copied().unwrap_or(("kbit", 1_000));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_in_the_largest_unit() {
        for (text, bits, written) in [
            ("50mbit", 50_000_000, "50mbit"),
            ("1500Kbit", 1_500_000, "1500kbit"),
            ("2000mbit", 2_000_000_000, "2gbit"),
            ("64kbit", 64_000, "64kbit"),
            ("1000gbit", 1_000_000_000_000, "1000gbit"),
        ] {
            let rate: RateLimit = text.parse().unwrap();
            assert_eq!((rate.bits_per_second(), rate.to_string().as_str()), (bits, written));
        }
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in
            ["", "50", "mbit", "50 mbit", "-1mbit", "1.5mbit", "63kbit", "0mbit", "1001gbit", "5mbyte"]
        {
            assert_eq!(text.parse::<RateLimit>(), Err(InvalidRateLimit), "{text:?}");
        }
        assert_eq!("99999999999999999999gbit".parse::<RateLimit>(), Err(InvalidRateLimit));
        assert_eq!(RateLimit::new(64_001), None);
    }
}
