//! Times that people write, such as `90s` or `1h 30min`.

use std::time::Duration;

/// Parses a time from `least` to `most`, which are written in the same form. A number without a unit must be 0. The error
/// continues a sentence that begins with the value's name.
pub fn parse_time(text: &str, least: &str, most: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| match text.parse::<u64>() {
        Ok(_) => format!("needs a unit, such as {text}h or {text}min"),
        Err(_) => "must be a time such as 24h, 30min or 15s".to_owned(),
    })?;
    let bound = |text| humantime::parse_duration(text).expect("the caller's bounds are times");
    if time < bound(least) || time > bound(most) {
        return Err(format!("must be from {least} to {most}"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_bounds() {
        let seconds = |text| parse_time(text, "0s", "365d").map(|time| time.as_secs());
        assert_eq!(["0", "90s", "30m", "1h", "2d"].map(seconds), [0, 90, 1_800, 3_600, 172_800].map(Ok));
        assert_eq!(
            ["30min", "1h 30min", "1.5h", "1 hour"].map(seconds),
            [1_800, 5_400, 5_400, 3_600].map(Ok)
        );
        for wrong in ["", "h", "+1h", "-1h", "99999999999999999999s", "h1", "1\u{e9}"] {
            assert_eq!(seconds(wrong), Err("must be a time such as 24h, 30min or 15s".to_owned()), "{wrong}");
        }
        assert_eq!(seconds("12"), Err("needs a unit, such as 12h or 12min".to_owned()));
        for wrong in ["53w", "366d"] {
            assert_eq!(seconds(wrong), Err("must be from 0s to 365d".to_owned()), "{wrong}");
        }
        assert!(parse_time("59s", "1min", "1h").is_err());
    }
}
