//! Retry tokens. The QUIC library seals the tokens with this key. Warren checks a token before the library sees it, because the
//! library answers even a token that is too old or belongs to another address (`noq-proto/src/token.rs`, RFC 9000 section 8.1.3).

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use noq_proto::crypto::{CryptoError, HandshakeTokenKey};

/// Lifetime of a token. A client sends it back at once.
const LIFETIME: Duration = Duration::from_secs(10);

/// Lifetime of a token in the library. It is longer than [`LIFETIME`], so that no token expires between the check here and the
/// library's check.
pub(crate) const RETRY_TOKEN_LIFETIME_IN_LIBRARY: Duration = Duration::from_secs(20);

/// The first byte of an opened token, and the bytes that name the IP version of its address.
const RETRY: u8 = 0;
const IPV4: u8 = 0;
const IPV6: u8 = 1;

/// Seals Retry tokens. Each token has a derived key of its own, because the library's random nonce is longer than
/// AES-GCM's.
#[derive(Clone, Debug)]
pub(crate) struct RetryTokens(pub(super) hmac::Key);

impl RetryTokens {
    /// Whether this exit made the token for this address, at most [`LIFETIME`] before `now`.
    pub(super) fn are_good(&self, token: &[u8], from: SocketAddr, now: SystemTime) -> bool {
        // The library appends the nonce to the sealed data.
        let Some((sealed, nonce)) = token.split_last_chunk() else { return false };
        let mut sealed = sealed.to_vec();
        let Ok(opened) = self.open(u128::from_le_bytes(*nonce), &mut sealed) else { return false };
        let Some((address, issued)) = read(opened) else { return false };
        // A token from the future was made before the clock was set back. The difference counts as its age.
        let age = now.duration_since(issued).unwrap_or_else(|ahead| ahead.duration());
        address == from && age <= LIFETIME
    }

    fn key(&self, nonce: u128) -> LessSafeKey {
        let key = hmac::sign(&self.0, &nonce.to_le_bytes());
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("an HMAC-SHA256 has AES-256's 32 bytes");
        LessSafeKey::new(key)
    }

    fn once() -> Nonce {
        // Each key seals only one token, so no key is used twice with this constant nonce.
        Nonce::assume_unique_for_key([0; NONCE_LEN])
    }
}

impl HandshakeTokenKey for RetryTokens {
    fn seal(&self, token_nonce: u128, data: &mut Vec<u8>) -> Result<(), CryptoError> {
        let sealed = self.key(token_nonce).seal_in_place_append_tag(Self::once(), Aad::empty(), data);
        sealed.map_err(|_| CryptoError)
    }

    fn open<'a>(&self, token_nonce: u128, data: &'a mut [u8]) -> Result<&'a [u8], CryptoError> {
        let opened = self.key(token_nonce).open_in_place(Self::once(), Aad::empty(), data);
        opened.map(|opened| &*opened).map_err(|_| CryptoError)
    }
}

/// Reads a token's address and time. Its fields are type, IP version, address, port, the client's first connection ID with its
/// length, and seconds since 1970.
fn read(opened: &[u8]) -> Option<(SocketAddr, SystemTime)> {
    let ([RETRY, version], rest) = opened.split_first_chunk()? else { return None };
    let (ip, rest) = match *version {
        IPV4 => rest.split_first_chunk::<4>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
        IPV6 => rest.split_first_chunk::<16>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first()?;
    let (_first_id, seconds) = rest.split_at_checked((*length).into())?;
    let seconds = Duration::from_secs(u64::from_be_bytes(seconds.try_into().ok()?));
    Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), UNIX_EPOCH.checked_add(seconds)?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::strangers::ExitSecrets;

    fn tokens(reset_key: u8) -> RetryTokens {
        ExitSecrets::new(&[reset_key; 64]).retry_tokens
    }

    /// A token as the library makes it.
    pub(in crate::strangers) fn token(
        tokens: &RetryTokens,
        address: SocketAddr,
        issued: SystemTime,
    ) -> Vec<u8> {
        let ip: &[&[u8]] = match address.ip() {
            IpAddr::V4(ip) => &[&[RETRY, IPV4], &ip.octets()],
            IpAddr::V6(ip) => &[&[RETRY, IPV6], &ip.octets()],
        };
        let seconds = issued.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let said = [&ip.concat()[..], &address.port().to_be_bytes(), &[20], &[9; 20], &seconds.to_be_bytes()];
        let (nonce, mut token) = (u128::MAX / 3, said.concat());
        tokens.seal(nonce, &mut token).unwrap();
        token.extend(nonce.to_le_bytes());
        token
    }

    #[test]
    fn a_token_is_good_for_its_address_for_ten_seconds() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for address in ["192.0.2.1:4433", "[2001:db8::1]:4433"] {
            let address: SocketAddr = address.parse().unwrap();
            let (neighbour, port) = (address.ip(), address.port());
            let token = token(&tokens(7), address, now);
            let is_good = |from, now| tokens(7).are_good(&token, from, now);
            assert!(is_good(address, now) && is_good(address, now + LIFETIME));
            assert!(!is_good(address, now + LIFETIME + Duration::from_secs(1)));
            assert!(!is_good(address, now - LIFETIME - Duration::from_secs(1)));
            assert!(!is_good(SocketAddr::new(neighbour, port + 1), now));
            assert!(!is_good(SocketAddr::new("192.0.2.2".parse().unwrap(), port), now));
        }
    }

    #[test]
    fn a_token_opens_with_its_own_nonce_and_key_alone() {
        let (address, now) = (([192, 0, 2, 1], 4433).into(), SystemTime::now());
        let token = token(&tokens(7), address, now);
        assert!(tokens(7).are_good(&token, address, now));
        assert!(!tokens(8).are_good(&token, address, now));
        for index in 0..token.len() {
            let mut other = token.clone();
            other[index] ^= 1;
            assert!(!tokens(7).are_good(&other, address, now), "byte {index}");
            assert!(!tokens(7).are_good(&token[..index], address, now));
        }
    }

    #[test]
    fn what_a_token_does_not_say_whole_is_not_taken() {
        let whole = [&[RETRY, IPV4, 192, 0, 2, 1, 17, 81, 2, 5, 5][..], &7_u64.to_be_bytes()].concat();
        let read_address = |token: &[u8]| read(token).map(|(address, _)| address);
        assert_eq!(read_address(&whole), Some(([192, 0, 2, 1], 4433).into()));
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), None);
        }
        assert_eq!(read(&[&whole[..], &[0]].concat()), None);
        // A token for a later connection, and an unknown IP version.
        for (at, value) in [(0, 1), (1, 2)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(read(&other), None);
        }
    }
}
