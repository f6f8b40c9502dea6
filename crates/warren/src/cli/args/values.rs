//! Arguments with a syntax of their own. Their errors are worded like those of configuration files.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ipnet::{Ipv4Net, Ipv6Net};
use warren_quic::key::PublicKey;
use warren_session::invite::Invite;

use warren_config::{self as config, Endpoint};
use warren_control::{AddressChoice, RateChoice};
use warren_daemon::logging::LogFormat;

pub(super) fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    let named = |word: String| {
        let format = LogFormat::ALL.into_iter().find(|format| format.name() == word);
        format.ok_or("no such format")
    };
    PossibleValuesParser::new(LogFormat::ALL.map(LogFormat::name)).try_map(named)
}

pub(super) fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse()
}

pub(super) fn ipv4_pool(text: &str) -> Result<Ipv4Net, String> {
    config::ipv4_pool(text).map_err(|sentence| format!("it {sentence}"))
}

pub(super) fn ipv6_pool(text: &str) -> Result<Ipv6Net, String> {
    config::ipv6_pool(text).map_err(|sentence| format!("it {sentence}"))
}

pub(super) fn public_key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Parses a key of Warren or of WireGuard. Other arguments decide which of the two it is.
pub(super) fn any_public_key(text: &str) -> Result<PublicKey, String> {
    // Warren and WireGuard keys both have 32 bytes, so this accepts both. For an invalid text, the error is the one for a Warren
    // key.
    warren_wireguard::parse_public_key(text).or_else(|_| public_key(text))
}

pub(super) fn invite(text: &str) -> Result<Invite, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// An address of one version of IP, or `auto`.
pub(super) fn address_or_auto<Address: FromStr>(text: &str) -> Result<AddressChoice<Address>, String> {
    if text == "auto" {
        return Ok(AddressChoice::Automatic);
    }
    let address = text.parse().map_err(|_| "write an address of this IP version, or auto".to_owned())?;
    Ok(AddressChoice::Fixed(address))
}

/// A rate, or `off`.
pub(super) fn rate_or_off(text: &str) -> Result<RateChoice, String> {
    if text == "off" {
        return Ok(RateChoice::Off);
    }
    text.parse().map(RateChoice::Limited).map_err(|error| format!("{error}, or off"))
}

/// A time such as `15s`. A bare number is in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    config::parse_time(&in_seconds(text), "1ms", "24h")
}

/// Parses how long something is valid, such as `24h`, up to a leap year. A number without a unit is refused, because it would
/// mean seconds, which are hardly ever intended here.
pub(super) fn validity(text: &str) -> Result<Duration, String> {
    config::parse_time(text, "1s", "366d")
}

/// How long a network's login page stays open, at most [`warren_client::portal::LONGEST`]. A bare number is in seconds.
pub(super) fn portal_time(text: &str) -> Result<Duration, String> {
    config::parse_time(&in_seconds(text), "1s", "5min")
}

/// Adds the unit `s` to a number without a unit.
fn in_seconds(text: &str) -> String {
    text.parse::<u64>().map_or_else(|_| text.to_owned(), |seconds| format!("{seconds}s"))
}
