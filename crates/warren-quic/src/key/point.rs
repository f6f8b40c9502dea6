//! Whether 32 bytes are a point of edwards25519 (RFC 8032 section 5.1.3), which every second text is not, and one that only a private
//! key signs for. Public keys are no secret, so nothing here takes care of how long it takes.
#![allow(
    clippy::indexing_slicing,
    clippy::needless_range_loop,
    clippy::cast_possible_truncation,
    reason = "limbs are counted by the arrays' lengths, and the low half of a product is what is meant"
)]

use super::KEY_LENGTH;

/// Whether there is an x for the y that the key gives: x² = (y² - 1) / (d y² + 1) has a root.
pub(super) fn is_on_curve(key: &[u8; KEY_LENGTH]) -> bool {
    let Some(y) = Field::of_bytes(key) else { return false };
    let y_squared = y.times(y);
    let (numerator, denominator) = (y_squared.plus(MINUS_ONE), D.times(y_squared).plus(ONE));
    // A quotient is a square where the product is one.
    let product = numerator.times(denominator);
    let is_square = product.to_the((&MINUS_ONE.0, 1));
    is_square == ONE || product == Field([0; 4])
}

/// Whether it is one of the few points for which signatures can be made without any private key.
pub(super) fn is_of_small_order(key: &[u8; KEY_LENGTH]) -> bool {
    let mut y = *key;
    // The sign of x.
    y[KEY_LENGTH - 1] &= 0x7f;
    SMALL_ORDER.contains(&y)
}

/// A number below p = 2^255 - 19, its lowest 64 bits first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field([u64; 4]);

impl Field {
    /// The key's y without the sign of x; none if it is p or more.
    fn of_bytes(bytes: &[u8; KEY_LENGTH]) -> Option<Self> {
        let mut limbs = [0; 4];
        for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks().0) {
            *limb = u64::from_le_bytes(*bytes);
        }
        limbs[3] &= u64::MAX >> 1;
        less_p(limbs).is_none().then_some(Self(limbs))
    }

    fn plus(self, other: Self) -> Self {
        let mut sum = [0; 4];
        let mut carry = 0;
        for place in 0..4 {
            carry += u128::from(self.0[place]) + u128::from(other.0[place]);
            sum[place] = carry as u64;
            carry >>= 64;
        }
        Self(less_p(sum).unwrap_or(sum))
    }

    fn times(self, other: Self) -> Self {
        let mut product = [0_u64; 8];
        for low in 0..4 {
            let mut carry = 0;
            for high in 0..4 {
                carry +=
                    u128::from(self.0[low]) * u128::from(other.0[high]) + u128::from(product[low + high]);
                product[low + high] = carry as u64;
                carry >>= 64;
            }
            product[low + 4] = carry as u64;
        }
        // 2^256 is 38 here.
        let mut sum = [0; 4];
        let mut carry = 0;
        for place in 0..4 {
            carry += u128::from(product[place]) + 38 * u128::from(product[place + 4]);
            sum[place] = carry as u64;
            carry >>= 64;
        }
        while carry > 0 {
            carry *= 38;
            for limb in &mut sum {
                carry += u128::from(*limb);
                *limb = carry as u64;
                carry >>= 64;
            }
        }
        while let Some(less) = less_p(sum) {
            sum = less;
        }
        Self(sum)
    }

    /// This to the power of `exponent`, which is shifted to the right.
    fn to_the(self, (exponent, shift): (&[u64; 4], u32)) -> Self {
        (shift..256).rev().fold(ONE, |power, bit| {
            let squared = power.times(power);
            let is_set = exponent[bit as usize / 64] >> (bit % 64) & 1 == 1;
            if is_set { squared.times(self) } else { squared }
        })
    }
}

/// The number less p, if it is p or more.
fn less_p(limbs: [u64; 4]) -> Option<[u64; 4]> {
    let mut less = [0; 4];
    let mut borrows = false;
    for place in 0..4 {
        let (difference, first) = limbs[place].overflowing_sub(P[place]);
        let (difference, second) = difference.overflowing_sub(u64::from(borrows));
        (less[place], borrows) = (difference, first || second);
    }
    (!borrows).then_some(less)
}

const P: [u64; 4] = [u64::MAX - 18, u64::MAX, u64::MAX, u64::MAX >> 1];
const ONE: Field = Field([1, 0, 0, 0]);
/// Half of it is Euler's exponent.
const MINUS_ONE: Field = Field([u64::MAX - 19, u64::MAX, u64::MAX, u64::MAX >> 1]);
/// The curve's d = -121665 / 121666.
const D: Field =
    Field([0x75eb_4dca_1359_78a3, 0x0070_0a4d_4141_d8ab, 0x8cc7_4079_7779_e898, 0x5203_6cee_2b6f_fe73]);

/// The y coordinates of the points of order 1, 2, 4 and 8 on edwards25519 (RFC 8032 section 5.1), least byte first: 0, 1 and
/// p - 1, 0 and 1 once more as p and p + 1, and the two of order 8.
pub(super) const SMALL_ORDER: [[u8; KEY_LENGTH]; 7] = {
    const fn near_p(first: u8) -> [u8; KEY_LENGTH] {
        let mut y = [0xff; KEY_LENGTH];
        y[0] = first;
        y[KEY_LENGTH - 1] = 0x7f;
        y
    }
    let mut one = [0; KEY_LENGTH];
    one[0] = 1;
    [[0; KEY_LENGTH], one, near_p(0xec), near_p(0xed), near_p(0xee), ORDER_8, ORDER_8_NEGATIVE]
};

const ORDER_8: [u8; KEY_LENGTH] = [
    0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
    0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
];

/// p less the one above.
const ORDER_8_NEGATIVE: [u8; KEY_LENGTH] = [
    0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
    0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
];

#[cfg(test)]
mod tests {
    use super::super::PrivateKey;
    use super::*;

    fn number(value: u64) -> Field {
        Field([value, 0, 0, 0])
    }

    #[test]
    fn the_curve_s_d_is_what_rfc_8032_says() {
        assert_eq!(D.times(number(121_666)), MINUS_ONE.times(number(121_665)));
    }

    #[test]
    fn every_key_that_is_made_is_a_point() {
        for _ in 0..200 {
            let public = PrivateKey::generate().unwrap().public();
            assert!(is_on_curve(&public.0), "{public}");
        }
    }

    #[test]
    fn every_second_text_is_none() {
        let random = |seed: u8| PrivateKey::of_seed(&[seed; KEY_LENGTH]).public().0.map(|byte| byte ^ seed);
        let points = (0..200).filter(|seed| is_on_curve(&random(*seed))).count();
        assert!((60..140).contains(&points), "{points} of 200");
        // y = 2 has no x (RFC 8032 section 7 has no such key), and p + 3 is 3 written otherwise.
        let mut two = [0; KEY_LENGTH];
        two[0] = 2;
        assert!(!is_on_curve(&two));
        let mut three = [0; KEY_LENGTH];
        three[0] = 3;
        assert!(is_on_curve(&three));
        let mut not_reduced = [0xff; KEY_LENGTH];
        (not_reduced[0], not_reduced[KEY_LENGTH - 1]) = (0xf0, 0x7f);
        assert!(!is_on_curve(&not_reduced));
    }

    #[test]
    fn the_sign_of_x_does_not_matter() {
        let mut key = PrivateKey::generate().unwrap().public().0;
        key[KEY_LENGTH - 1] ^= 0x80;
        assert!(is_on_curve(&key));
    }

    #[test]
    fn both_points_of_order_8_are_each_other_s_negative() {
        let mut carry = 0_u16;
        let sum = std::array::from_fn::<u8, KEY_LENGTH, _>(|place| {
            carry += u16::from(ORDER_8[place]) + u16::from(ORDER_8_NEGATIVE[place]);
            let [low, high] = carry.to_le_bytes();
            carry = u16::from(high);
            low
        });
        // p
        assert_eq!(sum, SMALL_ORDER[3]);
    }

    #[test]
    fn anybody_signs_for_the_neutral_point() {
        use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
        let neutral = SMALL_ORDER[1];
        let mut signature = [0; 64];
        signature[..KEY_LENGTH].copy_from_slice(&neutral);
        UnparsedPublicKey::new(&ED25519, neutral).verify(b"whatever", &signature).unwrap();
    }
}
