//! A small internet made of network namespaces, and the warren binary on its hosts.
//!
//! ```text
//!   client 192.0.2.2 ----- router ----- 198.51.100.2 exit
//!     2001:db8:1::2          |          2001:db8:2::2
//!                            |
//!                       internet host 203.0.113.2, 2001:db8:3::2
//! ```
//!
//! The client can also reach the internet host without a tunnel, so packets that bypass the tunnel are detected. Each test makes
//! its own net, so tests can run in parallel. All of this needs root.
#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "test code, of which no test target uses everything"
)]

#[path = "../../../warren-quic/tests/common/attacker.rs"]
pub mod attacker;
pub mod balance;
#[path = "../../../warren-fleet/tests/support/certificates.rs"]
pub mod certificates;
pub mod cgroups;
pub mod cores;
pub mod counters;
pub mod crowd;
pub mod daemon;
pub mod download;
pub mod etcd;
pub mod faulty_fleet;
pub mod fleet_clients;
pub mod fleet_store;
pub mod flows;
pub mod forged;
pub mod half_open;
pub mod host_state;
pub mod hostile;
#[cfg(target_arch = "x86_64")]
pub mod injection;
pub mod interloper;
pub mod internet_host;
pub mod leaks;
pub mod library_client;
pub mod life;
pub mod life_faults;
pub mod lying_exit;
pub mod memory;
pub mod memory_limit;
pub mod namespace;
pub mod net;
pub mod open_metrics;
pub mod peer;
pub mod preload;
pub mod probing;
pub mod profile;
pub mod protocols;
#[path = "../../../warren-fleet/tests/support/proxy.rs"]
pub mod proxy;
pub mod real_clients;
pub mod real_fleet;
pub mod rights;
pub mod seen_history;
pub mod slow_wire;
pub mod status;
pub mod steady;
pub mod stubborn;
pub mod systemd;
pub mod tapped;
pub mod terminal;
pub mod trains;
pub mod visits;
pub mod wireguard_go;

use std::str::FromStr;
use std::time::{Duration, Instant};

pub use daemon::{Client, Exit, ExitOptions};
pub use host_state::HostState;
pub use internet_host::InternetHost;
pub use leaks::{Attempts, LeakCounter, fewest_attempts};
pub use namespace::{Finished, Namespace, Running, finished, signal};
pub use net::{Family, Net};
pub use open_metrics::OpenMetrics;
pub use preload::Preload;
pub use probing::Probing;
pub use profile::Profile;
pub use status::Status;
pub use systemd::{Files, Systemd};
pub use terminal::Terminal;

/// Whether tests may make namespaces. If not, prints a line, or fails in CI.
pub fn root() -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "this test needs root");
    println!("skipped: this test needs root");
    false
}

/// The value of an environment variable with which `scripts/torture` changes a test, if it is set.
#[track_caller]
pub fn asked<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} has an invalid value: {text:?}")))
}

/// Waits until `condition` holds. Fails with `what` if it does not hold in time.
///
/// Returns how long it took.
#[track_caller]
pub fn eventually(within: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    loop {
        if condition() {
            return start.elapsed();
        }
        assert!(start.elapsed() < within, "timed out after {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long something takes.
pub fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

/// Seconds, for short calls.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
