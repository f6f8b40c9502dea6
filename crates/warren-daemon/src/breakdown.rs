//! A panic ends the process, whichever thread or task has it: a daemon of which a part is missing helps nobody. What it leaves
//! on the host is what SIGKILL leaves, for the next start or `warren cleanup` to undo.

#[cfg(debug_assertions)]
use warren_control::Part;
#[cfg(debug_assertions)]
use warren_tunnel::{Command, WorkerHandle};

/// Sees to that. Release builds are made to abort anyway; in others a panic would end its thread or task alone.
pub fn end_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::abort();
    }));
}

/// The parts of a daemon that a test lets panic. No release build knows them.
/// Lets a part of this daemon panic, for a test.
#[cfg(debug_assertions)]
pub async fn break_down(part: Part, workers: &WorkerHandle) {
    match part {
        Part::Daemon => panic!("as asked for"),
        Part::Worker => workers.send(Command::Panic).await,
        Part::Task => drop(tokio::spawn(async { panic!("as asked for") })),
        Part::Aside => drop(tokio::task::spawn_blocking(|| panic!("as asked for"))),
    }
}
