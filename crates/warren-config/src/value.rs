//! Parsers for single values. Each takes a TOML value and returns a typed one, or an error that says what the value must be.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::DeValue;

use super::endpoint::{Endpoint, parse_server_name};
use super::network;
use super::wording::{alternatives, clipped, quoted};

/// Why a value is refused. The sentence continues after the key's name.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) offset: usize,
    pub(super) sentence: String,
}

/// A TOML value and its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a>(&'a Spanned<DeValue<'a>>);

impl<'a> Value<'a> {
    pub(super) fn new(value: &'a Spanned<DeValue<'a>>) -> Self {
        Self(value)
    }

    /// Returns an error about this value. `sentence` follows the key's name in the message.
    pub(super) fn problem(self, sentence: impl Into<String>) -> Problem {
        Problem { offset: self.0.span().start, sentence: sentence.into() }
    }

    fn is_instead_of(self, expected: &str) -> Problem {
        self.problem(format!("is {}, but must be {expected}", self.kind()))
    }

    fn kind(self) -> &'static str {
        match self.0.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a section",
        }
    }

    /// Returns the text of a string. `expected` describes a correct value, e.g. `a string such as "home.key"`.
    pub(super) fn text(self, expected: &str) -> Result<&'a str, Problem> {
        self.0.get_ref().as_str().ok_or_else(|| self.is_instead_of(expected))
    }

    /// The elements of a list.
    pub(super) fn items(self, expected: &str) -> Result<Vec<Self>, Problem> {
        let items = self.0.get_ref().as_array().ok_or_else(|| self.is_instead_of(expected))?;
        Ok(items.iter().map(Value).collect())
    }

    pub(super) fn is_list(self) -> bool {
        self.0.get_ref().is_array()
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: Value<'_>) -> Result<bool, Problem> {
    value.0.get_ref().as_bool().ok_or_else(|| value.is_instead_of("true or false"))
}

/// `true`, `false`, or `"auto"` as `None`.
pub(super) fn boolean_or_auto(value: Value<'_>) -> Result<Option<bool>, Problem> {
    const EXPECTED: &str = "true, false or \"auto\"";
    match (value.0.get_ref().as_str(), value.0.get_ref().as_bool()) {
        (Some("auto"), _) => Ok(None),
        (Some(other), _) => Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(other)))),
        (None, Some(boolean)) => Ok(Some(boolean)),
        (None, None) => Err(value.is_instead_of(EXPECTED)),
    }
}

/// A whole number within a range.
pub(super) fn number<T>(range: RangeInclusive<T>) -> impl Fn(Value<'_>) -> Result<T, Problem>
where
    T: Copy + PartialOrd + std::fmt::Display + TryFrom<i64>,
{
    move |value| {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let Some(integer) = value.0.get_ref().as_integer() else {
            return Err(value.is_instead_of(&expected));
        };
        let number =
            i64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|n| T::try_from(n).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            value.problem(format!("is {}, but must be {expected}", clipped(&integer.to_string())))
        })
    }
}

/// `"auto"` as `None`, or a value that `parse` accepts.
pub(super) fn auto_or<T>(
    parse: impl Fn(Value<'_>) -> Result<T, Problem>,
) -> impl Fn(Value<'_>) -> Result<Option<T>, Problem> {
    move |value| match value.0.get_ref().as_str() {
        Some("auto") => Ok(None),
        // If `parse` refuses a string, the error must name "auto" among the alternatives.
        Some(other) => match parse(value) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(value.problem(format!("is {}, but must be \"auto\" or a number", quoted(other)))),
        },
        None => parse(value).map(Some),
    }
}

/// `"auto"` (use it if the host can) as true, or `false`.
pub(super) fn auto_or_false(value: Value<'_>) -> Result<bool, Problem> {
    match (value.0.get_ref().as_str(), value.0.get_ref().as_bool()) {
        (Some("auto"), _) => Ok(true),
        (_, Some(false)) => Ok(false),
        (Some(text), _) => Err(value.problem(format!("is {}, but must be \"auto\" or false", quoted(text)))),
        (_, Some(true)) => {
            Err(value.problem("is true, but must be \"auto\" (used where the host can) or false"))
        }
        (None, None) => Err(value.is_instead_of("\"auto\" or false")),
    }
}

/// Parses one of a closed set of words.
pub(super) fn word<T: Copy>(words: &[(&'static str, T)]) -> impl Fn(Value<'_>) -> Result<T, Problem> {
    move |value| {
        let names = words.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>();
        let expected = alternatives(&names);
        let text = value.text(&expected)?;
        let found = words.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, word)| *word)
            .ok_or_else(|| value.problem(format!("is {}, but must be {expected}", quoted(text))))
    }
}

/// A list whose elements `parse` accepts.
pub(super) fn list<T: PartialEq>(
    expected: &str,
    parse: impl Fn(Value<'_>) -> Result<T, Problem>,
) -> impl Fn(Value<'_>) -> Result<Vec<T>, Problem> {
    move |value| {
        let mut list = Vec::new();
        for item in value.items(expected)? {
            let parsed = parse(item)?;
            // A repeated value is an error, because one of the two is probably a typo.
            if list.contains(&parsed) {
                return Err(item.problem("names the same value twice; remove one of the two"));
            }
            list.push(parsed);
        }
        Ok(list)
    }
}

/// A network in CIDR notation without host bits.
pub(super) fn network(value: Value<'_>) -> Result<IpNet, Problem> {
    let text = value.text("a network such as \"10.0.0.0/8\"")?;
    network::parse(text).map_err(|sentence| value.problem(sentence))
}

/// An IP address without a port.
pub(super) fn address(value: Value<'_>) -> Result<IpAddr, Problem> {
    let text = value.text("an address such as \"9.9.9.9\"")?;
    text.parse().map_err(|_| {
        value.problem(format!(
            "is {}, but must be an address such as \"9.9.9.9\" or \"2620:fe::fe\"",
            quoted(text)
        ))
    })
}

/// An IP address with a port.
pub(super) fn socket_address(value: Value<'_>) -> Result<SocketAddr, Problem> {
    let text = value.text("an address such as \"0.0.0.0:443\"")?;
    match text.parse::<SocketAddr>() {
        // Port 0 would make the kernel choose one, which no client could know.
        Ok(address) if address.port() == 0 => {
            Err(value.problem(format!("is {}, but must have a port from 1 to 65535", quoted(text))))
        }
        Ok(address) => Ok(address),
        Err(_) => Err(value.problem(format!(
            "is {}, but must be an IP address with a port such as \"0.0.0.0:443\" or \"[::]:443\"",
            quoted(text)
        ))),
    }
}

/// Host and port.
pub(super) fn endpoint(value: Value<'_>) -> Result<Endpoint, Problem> {
    let text = value.text("a host and a port such as \"exit.example.net:443\"")?;
    text.parse::<Endpoint>().map_err(|error| value.problem(format!("is {}, but {error}", quoted(text))))
}

/// A DNS name for the SNI extension of the TLS ClientHello.
pub(super) fn server_name(value: Value<'_>) -> Result<String, Problem> {
    let text = value.text("a DNS name such as \"www.example.org\"")?;
    parse_server_name(text).map_err(|error| value.problem(format!("is {}, but {error}", quoted(text))))
}

/// `"auto"` as `None`, or a device's name.
pub(super) fn auto_or_device_name(value: Value<'_>) -> Result<Option<String>, Problem> {
    if value.0.get_ref().as_str() == Some("auto") { Ok(None) } else { device_name(value).map(Some) }
}

/// A name that the kernel accepts for a network device.
pub(super) fn device_name(value: Value<'_>) -> Result<String, Problem> {
    let text = value.text("a device name such as \"warren0\"")?;
    let refusal = if text.is_empty() {
        "must not be empty"
    } else if text.len() > 15 {
        "must have at most 15 bytes"
    } else if text == "." || text == ".." {
        "must be a name such as \"warren0\""
    } else if text.chars().any(|c| c.is_control() || c.is_whitespace() || "/:%\"\\".contains(c)) {
        "must not have spaces or any of / : % \" \\"
    } else {
        return Ok(text.to_owned());
    };
    Err(value.problem(format!("is {}, but {refusal}", quoted(text))))
}
