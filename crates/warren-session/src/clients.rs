//! The client registry, which is the content of `clients.toml`: the clients that may connect, and their addresses.

/// Implements serde for a type that is stored as its text.
macro_rules! stored_as_text {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

mod change;
mod client;
mod forward;
mod forwards;
mod invitation;
mod invitations;
mod key_maker;
mod rate_limit;
mod registry;
mod registry_error;
mod removed;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod timestamp;
mod wireguard;

pub use self::change::{AddressChoice, ClientChange, ClientSettings, RateChoice};
pub use self::client::{Client, MAX_CLIENTS, MAX_NAME_LENGTH, is_valid_name};
pub use self::forward::{
    Forward, ForwardProtocol, InvalidForward, InvalidPortRange, MAX_FORWARDS, MAX_MOVED_PORTS, PortRange,
};
pub use self::invitation::Invitation;
pub use self::key_maker::KeyMaker;
pub use self::rate_limit::{InvalidRateLimit, RateLimit};
pub use self::registry::ClientRegistry;
pub use self::registry_error::RegistryError;
pub use self::removed::RemovedKey;
pub use self::row::{RowChange, RowId};
pub use self::table::overlap;
pub use self::wireguard::{PresharedKey, WireGuardClient};

pub(crate) use self::row::Before;
