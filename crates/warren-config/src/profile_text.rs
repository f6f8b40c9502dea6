//! The profile that an exit's operator gives to a client.

use std::ops::Range;

use toml::de::DeTable;
use warren_quic::key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use super::Endpoint;

/// The key of a new profile, depending on who has the private half.
pub enum ClientKey {
    /// This machine made the key. The profile contains the only copy of it.
    Ours(PrivateKey),
    /// The client made the key and keeps the private half.
    Theirs(PublicKey),
}

impl ClientKey {
    /// The public half.
    pub fn public(&self) -> PublicKey {
        match self {
            Self::Ours(private) => private.public(),
            Self::Theirs(public) => *public,
        }
    }
}

/// The settings of a new profile, apart from its exit and its key.
///
/// A new profile must set `lan`. A profile without `lan` is treated as written for an earlier version, in which the LAN was not
/// reachable.
pub const NEW_SETTINGS: &str = "[routes]\nlan = \"auto\"   # private networks on this machine's links stay reachable while there is no kill \
                                switch\n";

/// A complete profile for `warren up`. Settings that it leaves out have their defaults.
pub fn profile_text(
    name: &str,
    endpoint: &Endpoint,
    exit: &[PublicKey],
    key: &ClientKey,
) -> Zeroizing<String> {
    profile_text_with(name, endpoint, exit, key, NEW_SETTINGS)
}

/// Returns a complete profile with these sections in addition to those of its exit and its key.
pub fn profile_text_with(
    name: &str,
    endpoint: &Endpoint,
    exit: &[PublicKey],
    key: &ClientKey,
    settings: &str,
) -> Zeroizing<String> {
    let key_line = match key {
        ClientKey::Ours(private) => private_key_line(private),
        ClientKey::Theirs(public) => {
            let line = format!(
                "private_key_file = \"{name}.key\"   # the private key of {public}, beside this file"
            );
            Zeroizing::new(line)
        }
    };
    let exit = match exit {
        [only] => format!("\"{only}\""),
        // There are two keys while the exit's key is being rotated.
        several => {
            let keys: Vec<String> = several.iter().map(|key| format!("\"{key}\"")).collect();
            format!("[{}]", keys.join(", "))
        }
    };
    Zeroizing::new(format!(
        "# {name}, a client of {endpoint}. Keep this file to yourself (chmod 600), and connect with: warren up FILE\n\n\
         [client]\n{}\n\n[[exit]]\nendpoint = \"{endpoint}\"\npublic_key = {exit}\n\n{settings}",
        key_line.as_str()
    ))
}

/// The text of a profile with another private key in `[client]`. All other settings and comments stay.
///
/// `None` if the text is not TOML or names no private key.
pub fn with_private_key(text: &str, key: &PrivateKey) -> Option<Zeroizing<String>> {
    let Range { start, end } = private_key_span(text)?;
    let line = private_key_line(key);
    Some(Zeroizing::new([text.get(..start)?, line.as_str(), text.get(end..)?].concat()))
}

/// Finds `private_key = "..."` or `private_key_file = "..."` in the text. Returns its range in bytes.
fn private_key_span(text: &str) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let client = root.get_ref().get("client")?.get_ref().as_table()?;
    let is_key = |key: &str| key == "private_key" || key == "private_key_file";
    let (key, value) = client.iter().find(|(key, _)| is_key(key.get_ref()))?;
    Some(key.span().start..value.span().end)
}

fn private_key_line(key: &PrivateKey) -> Zeroizing<String> {
    Zeroizing::new(format!("private_key = \"{}\"", key.to_base64().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_key_leaves_all_other_settings_and_comments() {
        let key = PrivateKey::generate().unwrap();
        for (written, rest) in [
            ("private_key = \"old\"", "   # mine\n\n[kill_switch]\nenabled = true\n"),
            ("private_key_file=\"home.key\"", "\n[[exit]]\nendpoint = \"a:443\"\n"),
            ("\"private_key\" = 'old'", ""),
        ] {
            let text = format!("# private_key = \"a comment\"\n[client]\n{written}{rest}");
            let new =
                format!("# private_key = \"a comment\"\n[client]\n{}{rest}", private_key_line(&key).as_str());

            assert_eq!(with_private_key(&text, &key).unwrap().as_str(), new);
        }
        for text in ["[client]\n", "[[client]]\nprivate_key = 1\n", "private_key = \"outside\"\n", "["] {
            assert!(with_private_key(text, &key).is_none(), "{text}");
        }
    }
}
