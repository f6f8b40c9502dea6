//! Formats figures in the units that people use.

use std::time::{Duration, SystemTime};

/// Formats a duration. An invalid one prints as zero.
pub(crate) fn time(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    humantime::format_duration(Duration::from_secs(whole)).to_string()
}

/// Formats a time in UTC, without RFC 3339's letters T and Z.
pub(crate) fn moment(rfc3339: &str) -> String {
    format!("{} UTC", rfc3339.trim_end_matches('Z').replace('T', " "))
}

/// Formats how long ago an RFC 3339 time was, such as `5 min ago`. Returns the text itself if it cannot be parsed.
pub(crate) fn ago(rfc3339: &str, now: SystemTime) -> String {
    let Ok(then) = humantime::parse_rfc3339(rfc3339) else { return rfc3339.to_owned() };
    // The time may be in the future, because the clocks of two hosts may differ a little and times are truncated to seconds. It
    // counts as now.
    match now.duration_since(then).unwrap_or_default() {
        passed if passed < Duration::from_secs(2) => "now".to_owned(),
        passed => format!("{} ago", span(passed)),
    }
}

/// Formats how long it is until an RFC 3339 time, such as `23 h`.
pub(crate) fn until(rfc3339: &str, now: SystemTime) -> String {
    let Ok(then) = humantime::parse_rfc3339(rfc3339) else { return rfc3339.to_owned() };
    span(then.duration_since(now).unwrap_or_default())
}

/// Formats a span of time in the largest unit in which it is at least 2.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let fitting = units.into_iter().find(|(_, length)| seconds >= 2 * length);
    let (unit, length) = fitting.unwrap_or(("s", 1));
    format!("{} {unit}", seconds / length)
}

/// Formats a number of bytes with a decimal unit, as is usual for link speeds.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// Formats a bit rate.
pub(crate) fn bit_rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// Formats a packet rate.
pub(super) fn packet_rate(packets_per_second: f64) -> String {
    format!("{packets_per_second:.0} packets/s")
}

/// Formats a percentage. A value above zero never prints as 0 %.
pub(crate) fn percent(percent: f64) -> String {
    if percent == 0.0 {
        "0 %".to_owned()
    } else if percent < 0.05 {
        "<0.1 %".to_owned()
    } else {
        format!("{percent:.1} %")
    }
}

/// Formats a round-trip time in at most nine characters. Without a measurement, it is a dash.
pub(crate) fn round_trip(milliseconds: f64) -> String {
    if milliseconds == 0.0 {
        "-".to_owned()
    // From 9,999.95 ms on, the text would have ten characters.
    } else if milliseconds < 9_999.95 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.0} s", milliseconds / 1_000.0)
    }
}

fn scaled(mut value: f64, units: &[&str]) -> String {
    let (Some(first), Some(last)) = (units.first(), units.last()) else { return value.to_string() };
    for unit in units {
        // A value that would round up to a thousand takes the next unit.
        if value < 999.95 || unit == last {
            return if unit == first { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    // Never reached, because the loop returns at the last unit.
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_decimal_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(2_340_000_000), "2.3 GB");
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
    }

    #[test]
    fn rates_have_the_units_of_links() {
        assert_eq!(bit_rate(0.0), "0 bit/s");
        assert_eq!(bit_rate(1_840_000_000.0), "1.8 Gbit/s");
        assert_eq!(packet_rate(12.4), "12 packets/s");
    }

    #[test]
    fn round_trips_fit_their_column() {
        assert_eq!(round_trip(0.0), "-");
        assert_eq!(round_trip(9_999.9), "9999.9 ms");
        assert_eq!(round_trip(12_345.6), "12 s");
    }

    #[test]
    fn little_loss_is_not_none() {
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.01), "<0.1 %");
        assert_eq!(percent(12.34), "12.3 %");
    }

    #[test]
    fn past_times_have_one_unit_and_are_never_in_the_future() {
        let now = humantime::parse_rfc3339("2026-11-21T16:20:03Z").unwrap();
        for (then, text) in [
            ("2026-11-21T16:20:03Z", "now"),
            ("2026-11-21T16:20:05Z", "now"),
            ("2026-11-21T16:19:51Z", "12 s ago"),
            ("2026-11-21T16:18:04Z", "119 s ago"),
            ("2026-11-21T16:18:03Z", "2 min ago"),
            ("2026-11-21T14:20:03Z", "2 h ago"),
            ("2026-11-20T16:20:03Z", "24 h ago"),
            ("2026-11-01T16:20:03Z", "20 days ago"),
            ("yesterday", "yesterday"),
        ] {
            assert_eq!(ago(then, now), text, "{then}");
        }
        assert_eq!(until("2026-11-22T15:30:00Z", now), "23 h");
        assert_eq!(until("2026-11-20T15:30:00Z", now), "0 s");
    }

    #[test]
    fn moments_read_as_date_and_time() {
        assert_eq!(moment("2026-11-21T16:20:03Z"), "2026-11-21 16:20:03 UTC");
        assert_eq!(time(61.9), "1m 1s");
        assert_eq!(time(f64::NAN), "0s");
    }
}
