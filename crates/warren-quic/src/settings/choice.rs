//! Settings that are chosen by name: driver, congestion controller, cipher.

use std::{fmt, str::FromStr};

/// The driver of an endpoint's connections.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Driver {
    /// noq's tasks on the worker's runtime.
    #[default]
    Noq,
    /// Warren's own loop, directly on noq-proto.
    Warren,
}

impl Driver {
    /// Every driver.
    pub const ALL: [Self; 2] = [Self::Noq, Self::Warren];

    /// Returns the name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noq => "noq",
            Self::Warren => "warren",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Driver {
    type Err = UnknownDriver;

    fn from_str(name: &str) -> Result<Self, UnknownDriver> {
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| UnknownDriver(name.to_owned()))
    }
}

/// An unknown driver name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no driver {0:?}; choose warren or noq")]
pub struct UnknownDriver(String);

/// The congestion controller that a connection runs.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Congestion {
    /// Made for tunnels, and the default. It reacts to queues, not to random loss.
    #[default]
    Adaptive,
    /// CUBIC (RFC 9438).
    Cubic,
    /// BBR version 3, experimental in noq.
    Bbr3,
    /// NewReno (RFC 9002 section 7).
    NewReno,
    /// No congestion control and no pacing. Only for private paths, because nothing but the inner flows then limits the
    /// tunnel.
    Off,
}

impl Congestion {
    /// Every controller.
    pub const ALL: [Self; 5] = [Self::Adaptive, Self::Cubic, Self::Bbr3, Self::NewReno, Self::Off];

    /// Returns the name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Cubic => "cubic",
            Self::Bbr3 => "bbr3",
            Self::NewReno => "newreno",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Congestion {
    type Err = UnknownCongestion;

    fn from_str(name: &str) -> Result<Self, UnknownCongestion> {
        Self::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .ok_or_else(|| UnknownCongestion(name.to_owned()))
    }
}

/// An unknown congestion controller name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no congestion controller {0:?}; choose adaptive, cubic, bbr3, newreno or off")]
pub struct UnknownCongestion(String);

/// A cipher of TLS 1.3, which protects QUIC's packets.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode.
    Aes256Gcm,
    /// ChaCha20 with Poly1305, for CPUs without AES instructions.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Every cipher.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the name that users give it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Cipher {
    type Err = UnknownCipher;

    fn from_str(name: &str) -> Result<Self, UnknownCipher> {
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| UnknownCipher(name.to_owned()))
    }
}

/// An unknown cipher name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no cipher {0:?}; choose aes-128-gcm, aes-256-gcm or chacha20-poly1305")]
pub struct UnknownCipher(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_known_by_name() {
        for driver in Driver::ALL {
            assert_eq!(driver.to_string().parse::<Driver>().unwrap(), driver);
        }
        assert!("quinn".parse::<Driver>().unwrap_err().to_string().contains("\"quinn\""));
    }

    #[test]
    fn congestion_controllers_are_known_by_name() {
        for congestion in Congestion::ALL {
            assert_eq!(congestion.name().parse::<Congestion>().unwrap(), congestion);
        }
        assert!("reno".parse::<Congestion>().unwrap_err().to_string().contains("\"reno\""));
    }

    #[test]
    fn ciphers_are_known_by_name() {
        for cipher in Cipher::ALL {
            assert_eq!(cipher.to_string().parse::<Cipher>().unwrap(), cipher);
        }
        assert!("rc4".parse::<Cipher>().unwrap_err().to_string().contains("\"rc4\""));
    }
}
