//! The time of day.

use std::time::SystemTime;

/// The time of day of this host.
///
/// In a build with debug assertions, the file that `WARREN_FLEET_CLOCK` names contains a number of seconds. The time is set forward
/// or back by that number, so a test can step the clock of one link.
pub(crate) fn now() -> SystemTime {
    let now = SystemTime::now();
    #[cfg(debug_assertions)]
    let now = stepped(now);
    now
}

#[cfg(debug_assertions)]
fn stepped(now: SystemTime) -> SystemTime {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::time::Duration;

    static STEP: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file = STEP.get_or_init(|| std::env::var_os("WARREN_FLEET_CLOCK").map(PathBuf::from));
    let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let seconds: i64 = text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let step = Duration::from_secs(seconds.unsigned_abs());
    let stepped = if seconds < 0 { now.checked_sub(step) } else { now.checked_add(step) };
    stepped.unwrap_or(now)
}
