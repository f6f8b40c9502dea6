//! Times in `clients.toml`: RFC 3339 in UTC with seconds, such as `2026-11-21T09:10:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// 9999-12-31T23:59:59Z, the last second that RFC 3339 can express.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    // A time outside these bounds comes from a broken clock, and `humantime` cannot format it.
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(LAST_SECOND);
    serializer.collect_str(&humantime::format_rfc3339_seconds(UNIX_EPOCH + since_epoch))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    // Accepts a space in place of the T, and a time without the Z, because operators edit these by hand.
    humantime::parse_rfc3339_weak(&text).map_err(|_| {
        D::Error::custom(format_args!("{text:?} is not a time: write it as \"2026-01-31T12:00:00Z\""))
    })
}

pub(super) mod option {
    use super::*;

    pub(in crate::clients) fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(in crate::clients) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}
