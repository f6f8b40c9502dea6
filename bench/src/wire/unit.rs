//! Shares, times, rates and queue lengths, with their text forms.

use std::{fmt, time::Duration};

/// Bytes of a full Ethernet frame.
pub(super) const FRAME: u64 = 1_514;

/// A share of all frames, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Share(f64);

impl Share {
    pub(crate) const NONE: Self = Self(0.0);

    pub(super) fn value(self) -> f64 {
        self.0
    }

    pub(crate) fn percent(self) -> f64 {
        self.0 * 100.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounding removes floating-point errors: 0.07 * 100 is 7.000000000000001.
        write!(f, "{}%", (self.0 * 1e10).round() / 1e8)
    }
}

/// The length of a queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Length {
    Packets(u64),
    Bytes(u64),
    /// The number of bytes that the rate sends in this time, but at least one full frame.
    Time(Duration),
}

impl Length {
    /// Returns whether `packets` with `bytes` in total exceed the length.
    pub(super) fn is_exceeded(self, packets: u64, bytes: u64, rate: Option<u64>) -> bool {
        match self {
            Self::Packets(limit) => packets > limit,
            Self::Bytes(limit) => bytes > limit,
            Self::Time(time) => rate.is_some_and(|rate| {
                // Converts bits per second times nanoseconds to bytes.
                let limit = u128::from(rate) * time.as_nanos() / 8_000_000_000;
                // The limit is at least one frame, because a shorter queue would drop every frame.
                u128::from(bytes) > limit.max(FRAME.into())
            }),
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(packets) => write!(f, "{packets}p"),
            Self::Bytes(bytes) if bytes.is_multiple_of(1_024) => write!(f, "{}k", bytes / 1_024),
            Self::Bytes(bytes) => write!(f, "{bytes}b"),
            Self::Time(time) => f.write_str(&show_duration(*time)),
        }
    }
}

/// Parses `30ms`, `1.5s` or `250us`. A zero needs no unit.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = if text == "0" { Some(0.0) } else { with_unit(text, &units) };
    // A time of more than an hour must be a mistake. The limit also prevents overflows in later sums.
    seconds
        .filter(|seconds| *seconds <= 3_600.0)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("\"{text}\" is not a time of at most an hour, such as 30ms, 250us or 1.5s"))
}

pub(super) fn show_duration(time: Duration) -> String {
    let (nanoseconds, seconds) = (time.as_nanos(), time.as_secs_f64());
    match nanoseconds {
        0 => "0ms".to_owned(),
        1..1_000_000 if nanoseconds < 100_000 => format!("{}us", seconds * 1e6),
        _ if nanoseconds < 1_000_000_000 => format!("{}ms", (seconds * 1e9).round() / 1e6),
        _ => format!("{seconds}s"),
    }
}

/// Parses `50mbit`, `1gbit` or `300kbit` to bits per second.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];
    let bits = with_unit(text, &units).filter(|bits| (1.0..=1e12).contains(bits)).and_then(whole);
    bits.ok_or_else(|| format!("\"{text}\" is not a rate, such as 50mbit, 1gbit or 300kbit"))
}

pub(super) fn show_rate(bits: u64) -> String {
    match bits {
        _ if bits.is_multiple_of(1_000_000_000) => format!("{}gbit", bits / 1_000_000_000),
        _ if bits.is_multiple_of(1_000_000) => format!("{}mbit", bits / 1_000_000),
        _ if bits.is_multiple_of(1_000) => format!("{}kbit", bits / 1_000),
        _ => format!("{bits}bit"),
    }
}

/// Parses `1%` or `0.25%`. A zero needs no sign.
pub(super) fn parse_share(text: &str) -> Result<Share, String> {
    let per_cent: Option<f64> =
        if text == "0" { Some(0.0) } else { text.strip_suffix('%').and_then(|number| number.parse().ok()) };
    per_cent
        .filter(|per_cent| (0.0..=100.0).contains(per_cent))
        .map(|per_cent| Share(per_cent / 100.0))
        .ok_or_else(|| format!("\"{text}\" is not a share from 0% to 100%, such as 1% or 0.25%"))
}

/// Parses `100p` (packets), `64k` or `65536b` (bytes), or `50ms` (time at the rate).
pub(super) fn parse_length(text: &str) -> Result<Length, String> {
    let number = |suffix: &str| with_unit(text, &[(suffix, 1.0)]).and_then(whole);
    let found = number("p")
        .map(Length::Packets)
        .or_else(|| number("k").and_then(|kib| kib.checked_mul(1_024)).map(Length::Bytes))
        .or_else(|| number("b").map(Length::Bytes))
        .or_else(|| parse_duration(text).ok().map(Length::Time));
    let positive = found.filter(|length| match *length {
        Length::Packets(count) | Length::Bytes(count) => count > 0,
        Length::Time(time) => !time.is_zero(),
    });
    positive.ok_or_else(|| format!("\"{text}\" is not a length, such as 100p (packets), 64k (KiB) or 50ms"))
}

fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let parse = |&(unit, factor): &(&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        // `f64` also parses `inf`, `nan` and negative numbers, which are refused here.
        (number.is_finite() && number >= 0.0).then_some(number * factor)
    };
    units.iter().find_map(parse)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
fn whole(number: f64) -> Option<u64> {
    // The limit is below 2^53, so every whole number is exact.
    (0.0..=1e15).contains(&number).then_some(number.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rates_and_shares_are_read_with_their_units() {
        for (text, nanoseconds) in
            [("30ms", 30_000_000), ("250us", 250_000), ("1.5s", 1_500_000_000), ("0", 0)]
        {
            assert_eq!(parse_duration(text).unwrap().as_nanos(), nanoseconds, "{text}");
        }
        for (text, bits) in
            [("50mbit", 50_000_000), ("1gbit", 1_000_000_000), ("64kbit", 64_000), ("9bit", 9)]
        {
            assert_eq!(parse_rate(text).unwrap(), bits, "{text}");
            assert_eq!(show_rate(bits), text);
        }
        assert_eq!(parse_share("0.25%").unwrap().value(), 0.0025);
        assert_eq!(parse_share("7%").unwrap().to_string(), "7%");
        for wrong in ["", "3", "-1ms", "nanms", "2h", "infs", "99999s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "5", "0mbit", "-1mbit"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "5", "-1%", "100.1%", "nan%"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn length_of_a_queue_is_packets_bytes_or_time_at_the_rate() {
        assert!(!parse_length("2p").unwrap().is_exceeded(2, 9_999, None));
        assert!(parse_length("2p").unwrap().is_exceeded(3, 1, None));
        assert!(parse_length("2k").unwrap().is_exceeded(1, 2_049, None));
        let time = parse_length("10ms").unwrap();
        // 8 Mbit/s is 10,000 bytes in 10 ms.
        assert!(!time.is_exceeded(9, 10_000, Some(8_000_000)));
        assert!(time.is_exceeded(9, 10_001, Some(8_000_000)));
        assert!(!time.is_exceeded(1, 1_514, Some(8_000)));
        assert!(!time.is_exceeded(9, 10_001, None));
        for wrong in ["0p", "0ms", "", "p", "5"] {
            assert!(parse_length(wrong).is_err(), "{wrong}");
        }
    }
}
