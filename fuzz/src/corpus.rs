//! Runs a fuzz target with the files of its corpus and with variants that have small random changes. The variants are the same in
//! each run.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Number of changed variants of each file.
const CHANGES: u64 = 64;

/// Runs a target with each file of `fuzz/corpus/NAME` and with the file's changed variants, on all cores.
///
/// # Panics
/// If the target panics, in which case it prints the input, or if there is no corpus.
pub fn replay(name: &str, run: impl Fn(&[u8]) + Sync) {
    // `CARGO_MANIFEST_DIR` is the directory of the crate whose tests include this file, which is below `crates/`.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a corpus can be listed").path())
        .collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let next = AtomicUsize::new(0);
    let take_files = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            replay_file(file, &run);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(take_files);
        }
    });
}

fn replay_file(file: &Path, run: impl Fn(&[u8])) {
    let input = fs::read(file).expect("a corpus can be read");
    let telling = Telling { file, input: &input };
    run(&input);
    // The target did not panic, so there is nothing to print.
    std::mem::forget(telling);
    for seed in 1..=CHANGES {
        let input = changed(&input, seed);
        let telling = Telling { file, input: &input };
        run(&input);
        std::mem::forget(telling);
    }
}

/// Prints an input if the target panics. Unwinding drops this value, and `drop` prints. If the target returns, the value is
/// forgotten without being dropped.
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
    // The state of xorshift must not be zero. The product is not zero, because seeds start at 1 and the factor is odd.
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
