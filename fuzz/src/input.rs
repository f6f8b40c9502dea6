//! Reads numbers and byte strings from a fuzzer's input. After the end of the input, numbers are zero, so that every input is
//! valid.

/// The unread part of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns whether the whole input has been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads `length` bytes, or fewer if the input ends before.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Reads two bytes as a number.
    pub fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Reads a length of two bytes and then that many bytes, or fewer if the input ends before.
    pub fn piece(&mut self) -> &'a [u8] {
        let length = self.word();
        self.bytes(length.into())
    }
}
