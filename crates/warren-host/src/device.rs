//! Names of network devices that are safe to put into a sysctl key, a firewall rule or a message.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The name of a network device: 1 to 15 bytes of `A-Z a-z 0-9 . _ - @`, not `.` or `..`.
///
/// The kernel allows more (quotes, for instance), but such names could change the meaning of a firewall rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceName(String);

impl DeviceName {
    /// Accepts `name` if it can be a device's name.
    ///
    /// # Errors
    /// If `name` is not of that form.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidDeviceName> {
        let name = name.into();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        let valid = (1..=LONGEST).contains(&name.len())
            && name.bytes().all(allowed)
            // A command would interpret a name with a leading dash as an option.
            && !name.starts_with('-')
            // The kernel refuses these two names. In a path below /proc/sys, they would refer to another directory.
            && name != "."
            && name != "..";
        if valid { Ok(Self(name)) } else { Err(InvalidDeviceName(name)) }
    }

    /// The name as the kernel knows it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DeviceName {
    type Err = InvalidDeviceName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = InvalidDeviceName;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::new(name)
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.0
    }
}

/// A name that cannot be a device's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be a network device's name: use 1 to 15 of the characters A-Z a-z 0-9 . _ - @")]
pub struct InvalidDeviceName(String);

/// IFNAMSIZ of `linux/if.h` without the terminating zero byte.
const LONGEST: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_taken() {
        for name in ["warren0", "eth0.100", "wlp3s0", "veth-a@if2", "a", "abcdefghijklmno"] {
            assert_eq!(DeviceName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn names_that_could_change_a_rule_or_a_path_are_refused() {
        for name in ["", ".", "..", "a/b", "a b", "a\"b", "a;b", "a\nb", "-a", "abcdefghijklmnop", "ä"] {
            assert!(DeviceName::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn refusal_names_the_value_and_the_remedy() {
        assert_eq!(
            DeviceName::new("a b").unwrap_err().to_string(),
            "\"a b\" cannot be a network device's name: use 1 to 15 of the characters A-Z a-z 0-9 . _ - @"
        );
    }
}
