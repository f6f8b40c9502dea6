//! The answer to a reload.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The changes of a reload. Daemons of earlier versions answer null instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The settings that have other values now, such as `servers in [dns]`.
    #[serde(default)]
    pub changed: Vec<String>,
}

impl Reloaded {
    /// Makes the result of a reload that has changed these settings.
    pub fn of(changed: &[&str]) -> Self {
        Self { changed: changed.iter().map(|name| (*name).to_owned()).collect() }
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.changed.as_slice() {
            [] => f.write_str("no setting has changed"),
            [one] => write!(f, "{one} has changed"),
            several => write!(f, "{} have changed", several.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_each_setting() {
        assert_eq!(Reloaded::default().to_string(), "no setting has changed");
        assert_eq!(Reloaded::of(&["mtu in [tun]"]).to_string(), "mtu in [tun] has changed");
        let two = Reloaded::of(&["servers in [dns]", "lan in [routes]"]);
        assert_eq!(two.to_string(), "servers in [dns], lan in [routes] have changed");
    }
}
