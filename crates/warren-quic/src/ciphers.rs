//! The packet ciphers, the fastest on this CPU first. Of each cipher's two implementations (ring and aws-lc), the one that is
//! faster on this CPU is used.

use rustls::{
    SupportedCipherSuite, crypto::aws_lc_rs::cipher_suite as aws_lc, crypto::ring::cipher_suite as ring,
};

use crate::settings::Cipher;

/// Returns every cipher, starting with `first` if given. All are offered, because QUIC's Initial packets need AES-128-GCM.
pub(crate) fn in_order(first: Option<Cipher>) -> Vec<SupportedCipherSuite> {
    use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
    let mut order = if cpu_has_aes() {
        [Aes128Gcm, Aes256Gcm, ChaCha20Poly1305]
    } else {
        [ChaCha20Poly1305, Aes128Gcm, Aes256Gcm]
    };
    // The sort is stable, so the preferred cipher moves to the front and the others keep their order.
    order.sort_by_key(|cipher| Some(*cipher) != first);
    order.map(suite).to_vec()
}

pub(crate) fn suite(cipher: Cipher) -> SupportedCipherSuite {
    match cipher {
        Cipher::Aes128Gcm if ring_is_faster() => ring::TLS13_AES_128_GCM_SHA256,
        Cipher::Aes256Gcm if ring_is_faster() => ring::TLS13_AES_256_GCM_SHA384,
        Cipher::Aes128Gcm => aws_lc::TLS13_AES_128_GCM_SHA256,
        Cipher::Aes256Gcm => aws_lc::TLS13_AES_256_GCM_SHA384,
        Cipher::ChaCha20Poly1305 => aws_lc::TLS13_CHACHA20_POLY1305_SHA256,
    }
}

/// Whether the CPU's AES instructions work on two blocks at once but not on four. ring has code for two blocks, aws-lc only for
/// four or one.
#[cfg(target_arch = "x86_64")]
fn ring_is_faster() -> bool {
    use std::arch::is_x86_feature_detected;

    // On such a CPU, ring takes 0.83 to 0.92 of aws-lc's CPU time per gigabyte. With AVX-512, aws-lc is faster: 331 ns
    // to send a packet, and 357 with ring (bench/LOG.md).
    is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2")
        && !is_x86_feature_detected!("avx512f")
}

#[cfg(not(target_arch = "x86_64"))]
fn ring_is_faster() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn cpu_has_aes() -> bool {
    // GCM needs both: AES for the text, and carry-less multiplication for the tag.
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn cpu_has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn cpu_has_aes() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use rustls::{
        CipherSuite, Side,
        quic::{Keys, Version},
    };

    use super::*;

    #[test]
    fn the_shorter_key_comes_first_unless_another_is_asked_for() {
        let aes = [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384];
        let names = |first| in_order(first).iter().map(SupportedCipherSuite::suite).collect::<Vec<_>>();
        let order: Vec<_> = names(None).into_iter().filter(|name| aes.contains(name)).collect();
        assert_eq!(order, aes);
        for cipher in Cipher::ALL {
            assert_eq!(names(Some(cipher))[0], suite(cipher).suite());
            assert_eq!(names(Some(cipher)).len(), 3);
        }
    }

    #[test]
    fn what_one_library_seals_the_other_opens() {
        let keys = |suite: SupportedCipherSuite, side| -> Keys {
            suite.tls13().unwrap().quic_suite().unwrap().keys(&[7; 8], side, Version::V1)
        };
        let suites = [
            (ring::TLS13_AES_128_GCM_SHA256, aws_lc::TLS13_AES_128_GCM_SHA256),
            (ring::TLS13_AES_256_GCM_SHA384, aws_lc::TLS13_AES_256_GCM_SHA384),
        ];
        for (one, other) in suites.into_iter().flat_map(|(ring, aws_lc)| [(ring, aws_lc), (aws_lc, ring)]) {
            let (client, exit) = (keys(one, Side::Client), keys(other, Side::Server));
            let payload: Vec<u8> = (0..=255).cycle().take(1_400).collect();
            let mut packet = payload.clone();
            let tag = client.local.packet.encrypt_in_place(3, b"header", &mut packet).unwrap();
            packet.extend(tag.as_ref());
            assert_eq!(exit.remote.packet.decrypt_in_place(3, b"header", &mut packet).unwrap(), payload);
            let mask = |keys: &Keys| {
                let mut bytes = [0x41, 1, 2];
                let (first, number) = bytes.split_at_mut(1);
                keys.local.header.encrypt_in_place(&[9; 16], &mut first[0], number).unwrap();
                bytes
            };
            assert_eq!(mask(&client), mask(&keys(other, Side::Client)));
        }
    }
}
