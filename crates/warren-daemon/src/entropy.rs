//! Random bytes from the kernel for the state machines, which do no I/O themselves.

/// Returns a source of random bytes for a state machine.
///
/// # Panics
/// When the kernel gives no random bytes. getrandom(2) waits until the kernel is seeded at boot. After that, it does not fail.
pub fn source() -> warren_session::Entropy {
    Box::new(|bytes| getrandom::fill(bytes).expect("the kernel gives random bytes"))
}

/// A fixed number of random bytes.
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        anyhow::anyhow!("cannot get random bytes: {error}; check that this kernel has getrandom")
    })?;
    Ok(bytes)
}
