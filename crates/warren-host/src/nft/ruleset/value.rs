//! The values that nft accepts in each place. nft treats any other word there as a name, and asks a name server or
//! reads a file for it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};

use super::words::PROTOCOLS;

/// The kind of value of a packet's or connection's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ipv4,
    Ipv6,
    Port,
    /// A colon and the ports that NAT may choose from.
    NatPorts,
    /// A mark, or a device group.
    Number,
    Protocol,
    /// A time such as `180s`.
    Seconds,
}

impl Kind {
    /// Returns the kind of value that follows `word` after the word `before`. `None` if nft does not look up names there.
    pub(super) fn after(word: &str, before: &str) -> Option<Self> {
        match word {
            "daddr" | "saddr" if before == "ip6" => Some(Self::Ipv6),
            "daddr" | "saddr" => Some(Self::Ipv4),
            "dport" | "sport" | "proto-dst" | "proto-src" => Some(Self::Port),
            "to" => Some(Self::NatPorts),
            "mark" | "iifgroup" | "oifgroup" => Some(Self::Number),
            "l4proto" | "nexthdr" | "protocol" => Some(Self::Protocol),
            _ => None,
        }
    }

    /// Whether a word is a value of this kind, or a range or a network of them.
    pub(super) fn has(self, word: &str) -> bool {
        match self {
            Self::Ipv4 => is_one::<Ipv4Addr>(word) || is_one::<Ipv4Net>(word) || is_range::<Ipv4Addr>(word),
            Self::Ipv6 => is_one::<Ipv6Addr>(word) || is_one::<Ipv6Net>(word) || is_range::<Ipv6Addr>(word),
            Self::Port => is_decimal::<u16>(word) || is_port_range(word),
            Self::NatPorts => word.strip_prefix(':').is_some_and(|ports| Self::Port.has(ports)),
            Self::Number => is_number(word),
            Self::Seconds => word.strip_suffix('s').is_some_and(is_decimal::<u16>),
            Self::Protocol => PROTOCOLS.contains(&word) || is_decimal::<u8>(word),
        }
    }
}

/// Whether a word is a number that fits every field of numbers.
pub(super) fn is_number(word: &str) -> bool {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).is_ok() && !digits.starts_with('+'),
        None => is_decimal::<u32>(word),
    }
}

/// Whether a word is a number as this program writes it. nft reads a number with a leading zero as octal, or as a
/// name.
fn is_decimal<T: FromStr + ToString>(word: &str) -> bool {
    word.parse::<T>().is_ok_and(|number| number.to_string() == word)
}

fn is_one<T: FromStr>(word: &str) -> bool {
    word.parse::<T>().is_ok()
}

fn is_range<T: FromStr>(word: &str) -> bool {
    word.split_once('-').is_some_and(|(first, last)| is_one::<T>(first) && is_one::<T>(last))
}

fn is_port_range(word: &str) -> bool {
    word.split_once('-').is_some_and(|(first, last)| is_decimal::<u16>(first) && is_decimal::<u16>(last))
}
