//! Gives a target what is in its corpus, and small changes of it: the same ones in each run.

use std::fs;
use std::path::Path;

/// Changes of each file.
const CHANGES: u64 = 64;

/// Runs a target with each file of `fuzz/corpus/NAME`, and with changes of it.
///
/// # Panics
/// When the target does, after it has said which input that was; and when there is no corpus.
pub fn replay(name: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a corpus can be listed").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let input = fs::read(&file).expect("a corpus can be read");
        let telling = Telling { file: &file, input: &input };
        run(&input);
        std::mem::forget(telling);
        for seed in 1..=CHANGES {
            let input = changed(&input, seed);
            let telling = Telling { file: &file, input: &input };
            run(&input);
            std::mem::forget(telling);
        }
    }
}

/// Says what was being read when a target panics.
struct Telling<'a> {
    file: &'a Path,
    input: &'a [u8],
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        eprintln!("failed on {} or a change of it: {:02x?}", self.file.display(), self.input);
    }
}

fn changed(input: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap_or(0)
    };
    let mut bytes = input.to_vec();
    for _ in 0..=random(4) {
        let at = random(bytes.len());
        match random(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, u8::try_from(random(256)).unwrap_or(0)),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => bytes.extend_from_within(at..),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random(8);
                }
            }
        }
    }
    bytes
}
