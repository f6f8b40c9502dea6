//! Notices when another program changes the host's resolvers.

use std::{path::PathBuf, time::Duration};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{
    net::unix::pipe::Receiver,
    time::{sleep, timeout},
};

/// Watches files and directories. A file needs two inotify watches. The watch on its directory reports when the file is replaced.
/// The watch on the file reports writes to the file, even if the file is a mount point.
#[derive(Debug)]
pub(super) struct Watch {
    paths: Vec<PathBuf>,
    /// The inotify descriptor. `None` if none is available, for example on a desktop where other programs use up the limit.
    inotify: Option<Receiver>,
}

impl Watch {
    /// Begins to watch `paths`, some of which may not exist.
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok();
        let watch = Self {
            paths,
            inotify: inotify.and_then(|inotify| Receiver::from_owned_fd_unchecked(inotify).ok()),
        };
        if watch.arm() { watch } else { Self { inotify: None, ..watch } }
    }

    /// Waits until something may have changed and the writer has probably finished.
    pub(super) async fn changed(&self) {
        // Without inotify, the caller checks the files at this interval.
        let Some(inotify) = &self.inotify else { return sleep(LOOK_EVERY).await };
        if inotify.readable().await.is_err() {
            return sleep(LOOK_EVERY).await;
        }
        // The number of pauses is limited, because a program that never stops writing must not delay the repair for ever.
        for _ in 0..MOST_PAUSES {
            drain(inotify);
            if timeout(PAUSE, inotify.readable()).await.is_err() {
                break;
            }
        }
        // If the file was replaced, it is a new inode, which needs a new watch.
        self.arm();
    }

    /// Returns whether anything is watched.
    fn arm(&self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let events = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::CREATE
            | WatchFlags::DELETE;
        // Adding a path that is already watched has no effect.
        let watched =
            self.paths.iter().filter(|path| inotify::add_watch(inotify, path.as_path(), events).is_ok());
        watched.count() > 0
    }
}

/// Reads and discards all pending events; their content does not matter.
fn drain(inotify: &Receiver) {
    let mut events = [0; 4096];
    while inotify.try_read(&mut events).is_ok_and(|length| length > 0) {}
}

/// The time between two checks without inotify. The tunnel's resolvers must be back within two seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause in which a program that writes a file line by line can finish.
const PAUSE: Duration = Duration::from_millis(100);
// Limits the pauses to half a second, so that the repair still comes within those two seconds.
const MOST_PAUSES: usize = 5;
