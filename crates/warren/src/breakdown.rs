//! A panic ends the process, whichever thread or task has it: a daemon of which a part is missing helps nobody. What it leaves
//! on the host is what SIGKILL leaves, for the next start or `warren cleanup` to undo.

/// Sees to that. Release builds are made to abort anyway; in others a panic would end its thread or task alone.
pub(crate) fn end_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::abort();
    }));
}

/// The parts of a daemon that a test lets panic. No release build knows them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// The task that does everything but carry packets.
    Daemon,
    /// The first thread that carries packets.
    Worker,
    /// A task of its own beside the daemon's.
    Task,
    /// A thread for what may block.
    Aside,
}

#[cfg(debug_assertions)]
impl Part {
    /// Lets this part panic.
    pub(crate) async fn break_down(self, worker: &crate::worker::WorkerHandle) {
        match self {
            Self::Daemon => panic!("as asked for"),
            Self::Worker => worker.send(crate::worker::Command::Panic).await,
            Self::Task => drop(tokio::spawn(async { panic!("as asked for") })),
            Self::Aside => drop(tokio::task::spawn_blocking(|| panic!("as asked for"))),
        }
    }
}
