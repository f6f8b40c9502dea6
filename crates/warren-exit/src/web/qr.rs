//! QR codes for the page to draw.

use std::fmt::Write as _;

use qrcodegen::{QrCode, QrCodeEcc};
use serde::Serialize;
use zeroize::Zeroize as _;

/// A QR code: the number of modules on a side, and the dark modules as an SVG path. In the path, a module is one unit wide.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DrawnQrCode {
    size: i32,
    path: String,
}

impl Drop for DrawnQrCode {
    fn drop(&mut self) {
        self.path.zeroize();
    }
}

/// Maximum number of bytes that one module takes in the path. A side has at most 177 modules (ISO 18004).
const LONGEST_MODULE: usize = "M177 177h1v1h-1z".len();

/// Returns the QR code of a text, or `None` if the text is too long for a code.
pub(crate) fn code(text: &str) -> Option<DrawnQrCode> {
    // The lowest level of error correction makes the smallest code.
    let code = QrCode::encode_text(text, QrCodeEcc::Low).ok()?;
    // The path has room for every module. The code may contain a private key, and a string that grows leaves its old buffers
    // behind, unwiped.
    let mut path = String::with_capacity(usize::try_from(code.size() * code.size()).ok()? * LONGEST_MODULE);
    for y in 0..code.size() {
        for x in (0..code.size()).filter(|x| code.get_module(*x, y)) {
            write!(path, "M{x} {y}h1v1h-1z").ok()?;
        }
    }
    Some(DrawnQrCode { size: code.size(), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_its_finders_and_a_text_too_long_has_none() {
        let code = code("warren join warren1:abc").unwrap();
        assert!(code.path.starts_with("M0 0h1v1h-1zM1 0h1v1h-1z"), "{}", code.path);
        assert!(code.path.contains(&format!("M{} 0h", code.size - 1)));
        assert_eq!(super::code(&"x".repeat(5_000)), None);
    }
}
