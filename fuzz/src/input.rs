//! Reads a fuzzer's bytes as numbers and pieces. Missing bytes read as zero, so that every input has a meaning.

/// The unread part of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes up to `length` bytes.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes a byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Takes two bytes as a number.
    pub fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Takes a length of two bytes, then that many bytes. Takes fewer if the input ends before.
    pub fn piece(&mut self) -> &'a [u8] {
        let length = self.word();
        self.bytes(length.into())
    }
}
