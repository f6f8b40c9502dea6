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

/// A key of Warren or of WireGuard. The other arguments say which.
pub(super) fn any_public_key(text: &str) -> Result<PublicKey, String> {
    // A Warren key has 32 bytes, as a WireGuard key does, so this accepts both. A text that is neither gets
    // the error of a Warren key.
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

/// A time such as `15s`, up to a day. A bare number is in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    time_up_to(text, 24, "24h")
}

/// How long something is valid, such as `24h`, up to a year.
pub(super) fn validity(text: &str) -> Result<Duration, String> {
    // Elsewhere a bare number means seconds, which is hardly ever meant here.
    if let Ok(number) = text.parse::<u64>() {
        return Err(match number {
            0 => "write a time such as 24h".to_owned(),
            _ => format!("add a unit, such as {text}h or {text}min"),
        });
    }
    // A leap year counts as a year too.
    time_up_to(text, 366 * 24, "366 days")
}

/// How long a network's login page stays open. A bare number is in seconds.
pub(super) fn portal_time(text: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    if duration < Duration::from_secs(1) || duration > warren_client::portal::LONGEST {
        return Err("the time must be from 1s to 5min".to_owned());
    }
    Ok(duration)
}

fn time(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text).map_err(|_| "write a time such as 15s or 2min".to_owned()),
    }
}

fn time_up_to(text: &str, hours: u64, limit: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    if duration.is_zero() || duration > Duration::from_secs(hours * 60 * 60) {
        return Err(format!("the time must be more than 0 and at most {limit}"));
    }
    Ok(duration)
}
