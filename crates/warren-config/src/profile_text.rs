//! The profile that an exit's operator gives to a client.

use warren_quic::key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use super::Endpoint;

/// Who has the private key of a new profile.
pub enum ClientKey {
    /// This machine made it. Only the profile has it.
    Ours(PrivateKey),
    /// The client made it and keeps the private half.
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

/// The settings that a new profile has besides its exit and its key.
///
/// A profile without this line is of an earlier version, for which the LAN is closed.
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

/// A complete profile with these sections besides those of its exit and its key.
pub fn profile_text_with(
    name: &str,
    endpoint: &Endpoint,
    exit: &[PublicKey],
    key: &ClientKey,
    settings: &str,
) -> Zeroizing<String> {
    let key_line = match key {
        ClientKey::Ours(private) => {
            Zeroizing::new(format!("private_key = \"{}\"", private.to_base64().as_str()))
        }
        ClientKey::Theirs(public) => {
            let line = format!(
                "private_key_file = \"{name}.key\"   # the private key of {public}, beside this file"
            );
            Zeroizing::new(line)
        }
    };
    let exit = match exit {
        [only] => format!("\"{only}\""),
        // The exit's key is being rotated.
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
