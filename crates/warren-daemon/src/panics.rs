//! Makes a panic in any thread or task end the whole process, because a daemon cannot work without one of its parts. The host is
//! then in the same state as after SIGKILL. The next start or `warren cleanup` undoes the daemon's changes.

#[cfg(debug_assertions)]
use warren_control::Part;
#[cfg(debug_assertions)]
use warren_tunnel::WorkerHandle;

/// Makes every panic abort the process. Release builds abort anyway. In other builds, a panic would end only its thread or task.
pub fn abort_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::abort();
    }));
}

/// Makes a part of this daemon panic, for tests. Release builds do not have it.
#[cfg(debug_assertions)]
pub async fn cause(part: Part, workers: &WorkerHandle) {
    match part {
        Part::Daemon => panic!("as asked for"),
        Part::Worker => workers.panic().await,
        Part::Task => drop(tokio::spawn(async { panic!("as asked for") })),
        Part::Aside => drop(tokio::task::spawn_blocking(|| panic!("as asked for"))),
    }
}
