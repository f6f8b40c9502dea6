//! A daemon's own directory below the runtime directory: lock, control socket, journal and log.

use std::borrow::Cow;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use warren_host::exec_groups::Released;
use warren_host::{durable_file, open_lock_file, open_plain};

use crate::directories::Directories;
use crate::exit_code::{ExitCode, Failure};
use crate::output;
use warren_config::find_profile;
use warren_config::storage::make_directory;
use warren_control::{AskError, Request, SOCKET_NAME, ask, exec_socket};

/// The name of the exit's daemon, which no profile can have.
pub const EXIT: &str = "exit";

/// What to do with the nftables tables that a daemon leaves for its successor: a closed kill switch, or the table that holds an
/// exit's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForSuccessor {
    /// Keep them for the successor.
    Keep,
    /// Remove them.
    Remove,
}

/// One daemon's directory, whether the daemon runs or not.
#[derive(Debug, Clone)]
pub struct DaemonDirectory {
    path: PathBuf,
}

impl DaemonDirectory {
    /// The directory of a profile's daemon, or of [`EXIT`].
    pub fn new(runtime_dir: &Path, name: &str) -> Self {
        Self { path: runtime_dir.join(name) }
    }

    /// Creates the directory for its owner alone. The directory above is open to all, because an exit with its own user
    /// has its directory there too.
    ///
    /// # Errors
    /// When the directory cannot be created, or when other users may write to it or to the directory above. They could put a
    /// socket or a link there, and answer in the daemon's place.
    pub fn create(&self) -> anyhow::Result<()> {
        self.path.parent().map_or(Ok(false), make_directory).and_then(|_| self.make()).with_context(
            || format!("cannot create {}; run as root, or choose another --runtime-dir", self.path.display()),
        )?;
        for directory in [Some(self.path.as_path()), self.path.parent()].into_iter().flatten() {
            let mode = directory
                .metadata()
                .with_context(|| {
                    format!(
                        "cannot inspect {}; run as root, or choose another --runtime-dir",
                        directory.display()
                    )
                })?
                .mode();
            // The bits for write permission of the group and of others.
            if mode & 0o022 != 0 {
                // A directory with the sticky bit, such as /tmp, is meant for everybody, so the advice is to use another one.
                let advice = match mode & 0o1000 {
                    0 => format!("run: chmod go-w {}", directory.display()),
                    _ => "choose another --runtime-dir, for instance one below it".to_owned(),
                };
                bail!("others may write to {} (mode {:04o}); {advice}", directory.display(), mode & 0o7777);
            }
        }
        Ok(())
    }

    fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.path) {
            // An earlier daemon has created the directory. `create` checks its mode.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// The path of this directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The runtime directory, which contains the directories of all daemons.
    pub fn runtime_dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Whether a daemon has run in this directory since the last boot.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET_NAME)
    }

    /// The journal of the daemon's changes to the host.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// The journal of the table that an exit leaves on purpose for its successor
    /// ([`warren_host::exit_hold`]).
    pub fn hold_journal(&self) -> PathBuf {
        self.path.join("hold")
    }

    /// The journal of the profile's kill switch, which outlasts the daemon.
    pub fn kill_switch(&self) -> PathBuf {
        self.path.join("kill-switch")
    }

    /// The journal of the nftables table for `warren exec` ([`warren_host::exec_groups`]), which outlasts the daemon.
    pub fn exec(&self) -> PathBuf {
        self.path.join("exec")
    }

    /// The journal of an open portal, a user's way to a login page ([`warren_host::portal`]).
    pub fn portal(&self) -> PathBuf {
        self.path.join("portal")
    }

    /// Closes a portal (a user's way to a login page) that a killed process has left. A portal that is still in use stays.
    ///
    /// # Errors
    /// When the portal cannot be closed.
    pub async fn release_portal(&self) -> anyhow::Result<()> {
        if !self.portal().exists() {
            return Ok(());
        }
        match warren_host::recover(self.portal()).await {
            Ok(_) | Err(warren_host::HostError::Busy(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Records that `warren up` starts the next daemon, which then connects even on a trusted network.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_wanted_up(&self) -> anyhow::Result<()> {
        write_note(&self.wanted_up(), "")
    }

    /// Removes the note that `warren up` started this daemon. Returns whether there was one.
    pub fn take_wanted_up(&self) -> bool {
        std::fs::remove_file(self.wanted_up()).is_ok()
    }

    fn wanted_up(&self) -> PathBuf {
        self.path.join("wanted-up")
    }

    /// Records that the next daemon must leave the host's own traffic outside of the tunnel.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_host_outside(&self) -> anyhow::Result<()> {
        write_note(&self.host_outside(), "")
    }

    /// Removes the note that this daemon must leave the host's own traffic outside of the tunnel. Returns whether there was one.
    pub fn take_host_outside(&self) -> bool {
        std::fs::remove_file(self.host_outside()).is_ok()
    }

    fn host_outside(&self) -> PathBuf {
        self.path.join("host-outside")
    }

    /// Whether a process keeps the kill switch closed, or such a process was killed since the last boot.
    pub fn has_guard(&self) -> bool {
        is_of_this_boot(&self.guard())
    }

    /// Records that a process keeps the kill switch closed from now on.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_guard(&self) -> anyhow::Result<()> {
        note_boot(&self.guard())
    }

    /// Removes the note of [`Self::note_guard`], because the process ends normally and was not killed.
    pub fn forget_guard(&self) {
        // If the note stayed, the next guard would conclude that this one was killed, and would not close the kill switch.
        drop(std::fs::remove_file(self.guard()));
    }

    /// Whether a daemon of this boot has opened the kill switch only because this host is on a trusted network.
    pub fn has_opened_at_home(&self) -> bool {
        is_of_this_boot(&self.opened_at_home())
    }

    /// Records that the kill switch is open only while this host is on a trusted network.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_opened_at_home(&self) -> anyhow::Result<()> {
        note_boot(&self.opened_at_home())
    }

    /// Removes the note of [`Self::note_opened_at_home`], because the kill switch is closed again, or a person has opened it.
    ///
    /// # Errors
    /// When the note cannot be removed. The next daemon would then close the kill switch.
    pub fn forget_opened_at_home(&self) -> anyhow::Result<()> {
        let note = self.opened_at_home();
        durable_file::remove(&note).with_context(|| format!("cannot remove {}; run as root", note.display()))
    }

    fn opened_at_home(&self) -> PathBuf {
        self.path.join("opened-at-home")
    }

    fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    fn guard(&self) -> PathBuf {
        self.path.join("guard")
    }

    /// The log of a daemon that `warren up` started.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The socket on which `warren up` waits for its daemon to be ready. Only the holder of the [`StartLock`] may use it.
    pub fn notify_socket(&self) -> PathBuf {
        self.path.join("notify.sock")
    }

    /// Records the exit that the next daemon tries first.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_first_exit(&self, name: &str) -> anyhow::Result<()> {
        write_note(&self.first_exit(), name)
    }

    /// Reads and removes the note of the exit to try first. `None` if there is no note.
    pub fn take_first_exit(&self) -> Option<String> {
        let name = std::fs::read_to_string(self.first_exit()).ok()?;
        // If the note stayed, it would also apply to later daemons.
        drop(std::fs::remove_file(self.first_exit()));
        Some(name)
    }

    fn first_exit(&self) -> PathBuf {
        self.path.join("first-exit")
    }

    /// The path of the file that the daemon locks.
    pub fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Whether any process has taken the daemon's lock since the last boot.
    pub fn has_lock_file(&self) -> bool {
        self.lock_file().exists()
    }

    /// Takes the daemon's lock. It is held until the returned value is dropped or the process dies.
    ///
    /// # Errors
    /// When the file cannot be created. `None` when another process holds the lock.
    pub fn lock(&self) -> anyhow::Result<Option<DaemonLock>> {
        Ok(locked(&self.lock_file())?.map(|file| DaemonLock { file }))
    }

    /// Takes the lock for starting the daemon. The starter holds it until the daemon is ready or has failed.
    ///
    /// # Errors
    /// When the file cannot be created. `None` when another process is starting the daemon.
    pub fn start_lock(&self) -> anyhow::Result<Option<StartLock>> {
        Ok(locked(&self.path.join("start.lock"))?.map(|file| StartLock { _file: file }))
    }

    /// Whether a process holds the [`StartLock`].
    pub fn is_being_started(&self) -> bool {
        matches!(self.start_lock(), Ok(None))
    }

    /// Takes the lock like [`Self::lock`], but waits a moment if a killed daemon still holds it. A killed daemon no longer
    /// answers requests, but holds its lock until its last thread has ended.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn lock_after_kill(&self) -> anyhow::Result<Option<DaemonLock>> {
        for _ in 0..ATTEMPTS {
            if let Some(lock) = self.lock()? {
                return Ok(Some(lock));
            }
            // If the daemon does not answer, it was either killed, or just started and will answer one of the next attempts.
            if !matches!(ask(&self.socket(), &Request::Status).await, Err(AskError::NotRunning)) {
                return Ok(None);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(None)
    }

    /// Waits a moment until a killed daemon has ended completely.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn wait_for_killed(&self) -> anyhow::Result<()> {
        if self.has_lock_file() {
            drop(self.lock_after_kill().await?);
        }
        Ok(())
    }

    /// Whether the daemon is running, that is, whether it holds the lock.
    pub fn is_running(&self) -> anyhow::Result<bool> {
        Ok(self.lock()?.is_none())
    }

    /// Whether a daemon that no longer runs left changes that it would have undone on a normal end.
    pub fn was_killed(&self) -> bool {
        self.journal().exists()
    }

    /// Whether a daemon that no longer runs left any changes on the host.
    pub fn has_remains(&self) -> bool {
        self.was_killed() || self.kill_switch().exists() || self.exec().exists()
    }

    /// Returns the last daemon's final message, if the daemon ended on its own.
    pub fn last_error(&self) -> Option<String> {
        let mut file = open_plain(&self.log()).ok()?;
        let end = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(end.saturating_sub(END_OF_LOG))).ok()?;
        let mut log = Vec::new();
        file.take(END_OF_LOG).read_to_end(&mut log).ok()?;
        // The part that is read may begin in the middle of a character.
        let log = String::from_utf8_lossy(&log);
        // Only `output::report` begins a line like this.
        log.lines().rev().find_map(|line| line.strip_prefix("warren: ")).map(str::to_owned)
    }

    /// Undoes what a killed daemon left on the host. A running daemon is not touched. Returns whether there was
    /// anything to undo.
    ///
    /// # Errors
    /// When something cannot be undone.
    pub async fn clean_up(&self, for_successor: ForSuccessor) -> anyhow::Result<bool> {
        if !self.exists() {
            return Ok(false);
        }
        let lock = match for_successor {
            // This is called by a daemon that is starting. It also finds its own directory, and must not wait for its own lock.
            ForSuccessor::Keep => self.lock()?,
            ForSuccessor::Remove => self.lock_after_kill().await?,
        };
        let Some(lock) = lock else { return Ok(false) };
        let mut found_any = !warren_host::recover(&self.journal()).await?.undone.is_empty();
        if for_successor == ForSuccessor::Remove {
            found_any |= !warren_host::recover(&self.hold_journal()).await?.undone.is_empty();
            found_any |= warren_host::kill_switch::open(&self.kill_switch()).await?;
            self.forget_opened_at_home()?;
            found_any |= self.release_exec().await?;
            self.release_portal().await?;
        }
        // While this process holds the lock, no new daemon can have created the socket, so the files can be removed.
        self.clear(&lock);
        Ok(found_any)
    }

    /// Removes the nftables table for `warren exec`. While a program is still in the inside group, the table stays, the program
    /// can send nothing, and a warning says so. Returns whether the table was removed.
    ///
    /// # Errors
    /// When nft fails.
    pub async fn release_exec(&self) -> anyhow::Result<bool> {
        let name = self.name();
        let released = warren_host::exec_groups::release(self.exec(), &name).await?;
        if released == Released::CutOff {
            output::warn(format!(
                "programs that `warren exec {name}` has put into the tunnel still run, but are cut off from the network; end \
                 them and run `warren cleanup {name}`, or run `warren up {name}`"
            ));
        }
        Ok(released == Released::All)
    }

    /// Removes the files that a stopped daemon no longer needs. The log stays, because it may say why the
    /// daemon stopped.
    pub fn clear(&self, _lock: &DaemonLock) {
        // The socket may not exist.
        drop(std::fs::remove_file(self.socket()));
        exec_socket::remove(self.runtime_dir(), &self.name());
    }
}

/// Proof that this process is the only daemon of its directory.
#[derive(Debug)]
pub struct DaemonLock {
    file: File,
}

impl DaemonLock {
    /// Returns a second descriptor of the lock, for a helper process that may outlive this process by a moment.
    ///
    /// # Errors
    /// When this process has too many open descriptors.
    pub fn share(&self) -> io::Result<File> {
        // Both descriptors share the lock, because it belongs to the open file description (flock(2)).
        self.file.try_clone()
    }

    /// Releases the lock even if another process still has a descriptor of it. The caller must know that this process has no work
    /// left.
    pub fn release(self) {
        // If this fails, the kernel releases the lock when the last descriptor is closed.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Proof that this process is the only one that is starting the daemon of its directory.
#[derive(Debug)]
pub struct StartLock {
    _file: File,
}

/// Opens or creates the file and locks it. `None` if another process holds the lock.
fn locked(path: &Path) -> anyhow::Result<Option<File>> {
    let file = open_lock_file(path).with_context(|| {
        format!("cannot open {}; run as root, or choose another --runtime-dir", path.display())
    })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot lock {}; check its file system", path.display()))
        }
    }
}

/// The directories of all daemons with their names, running or not, in order.
///
/// # Errors
/// When this user may not read the runtime directory. A missing directory contains no daemon.
pub fn all(runtime_dir: &Path) -> anyhow::Result<Vec<(String, DaemonDirectory)>> {
    let cannot = |error: io::Error| {
        let advice = if error.kind() == ErrorKind::PermissionDenied { "; run this as root" } else { "" };
        anyhow::anyhow!("cannot read {}: {error}{advice}", runtime_dir.display())
    };
    let entries = match std::fs::read_dir(runtime_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(error)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(cannot)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let directory = DaemonDirectory::new(runtime_dir, &name);
        // A directory with a lock file belongs to a daemon, because every daemon creates this file first.
        match directory.lock_file().try_exists() {
            Ok(true) => all.push((name, directory)),
            Ok(false) => {}
            // The entry is not a directory, but a file that somebody put there.
            Err(error) if error.kind() == ErrorKind::NotADirectory => {}
            // Root without capabilities, as in a systemd unit, may not read another user's directory. Such a daemon is skipped.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && geteuid().is_root() => {}
            Err(error) => return Err(cannot(error)),
        }
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(all)
}

/// Undoes what killed daemons left on the host. Running daemons are not touched. Returns the names of those that left
/// something.
///
/// # Errors
/// When something cannot be undone.
pub async fn clean_up(runtime_dir: &Path, for_successor: ForSuccessor) -> anyhow::Result<Vec<String>> {
    let mut cleaned = Vec::new();
    let mut first_error = None;
    for (name, directory) in all(runtime_dir)? {
        match directory.clean_up(for_successor).await {
            Ok(true) => cleaned.push(name),
            Ok(false) => {}
            // If another user has made one directory unusable, the others must still be cleaned up.
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(cleaned), Err)
}

/// How many bytes at the end of a log are searched for the final message.
const END_OF_LOG: u64 = 64 * 1024;

fn write_note(note: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    std::fs::write(note, text).with_context(|| {
        format!("cannot write {}; run as root, or choose another --runtime-dir", note.display())
    })
}

/// Writes a note that counts until the next boot.
fn note_boot(note: &Path) -> anyhow::Result<()> {
    let boot = std::fs::read(BOOT).with_context(|| format!("cannot read {BOOT}"))?;
    write_note(note, boot)
}

fn is_of_this_boot(note: &Path) -> bool {
    std::fs::read(note).is_ok_and(|noted| std::fs::read(BOOT).is_ok_and(|boot| noted == boot))
}

/// The kernel's random ID of this boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// How often to try to take the lock of a killed process. All attempts together last one second. A killed process ends within
/// this time even on a busy machine.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Returns an error unless the name is that of the exit, of a profile, or of a daemon that has run.
///
/// # Errors
/// [`ExitCode::NotRunning`] with the known names.
pub fn refuse_unknown(
    directories: &Directories,
    directory: &DaemonDirectory,
    name: &str,
) -> anyhow::Result<()> {
    if name == EXIT || directory.exists() {
        return Ok(());
    }
    match find_profile(&directories.config, Some(name.as_ref())) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(ExitCode::NotRunning, error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lock_of_one_that_answers_nobody_is_waited_for() {
        let runtime = tempfile::tempdir().unwrap();
        let directory = DaemonDirectory::new(runtime.path(), "home");
        directory.create().unwrap();
        let held = directory.lock().unwrap();
        let end = tokio::spawn(async move {
            tokio::time::sleep(4 * PAUSE).await;
            drop(held);
        });

        assert!(directory.lock_after_kill().await.unwrap().is_some());
        end.await.unwrap();
    }

    #[tokio::test]
    async fn clearing_a_stopped_daemon_s_directory_leaves_what_is_its_starter_s() {
        let runtime = tempfile::tempdir().unwrap();
        let directory = DaemonDirectory::new(runtime.path(), "home");
        directory.create().unwrap();
        let _starter = directory.start_lock().unwrap().unwrap();
        drop(directory.lock().unwrap());
        let for_users = exec_socket::path(runtime.path(), "home");
        for path in [directory.socket(), directory.notify_socket(), for_users.clone()] {
            std::fs::write(path, "").unwrap();
        }

        clean_up(runtime.path(), ForSuccessor::Keep).await.unwrap();

        assert!(!directory.socket().exists(), "no daemon is running that could answer there");
        assert!(!for_users.exists(), "nor there");
        assert!(directory.notify_socket().exists(), "the daemon's starter still listens there");
        assert!(directory.start_lock().unwrap().is_none());
    }

    #[test]
    fn the_directory_above_is_open_to_other_daemons_users_and_its_own_is_not() {
        let above = tempfile::tempdir().unwrap();
        let runtime = above.path().join("run/warren");
        DaemonDirectory::new(&runtime, "home").create().unwrap();

        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&runtime), mode(&runtime.join("home"))), (0o755, 0o700));
    }

    #[test]
    fn lock_has_one_holder_at_a_time() {
        let runtime = tempfile::tempdir().unwrap();
        let directory = DaemonDirectory::new(runtime.path(), "home");
        directory.create().unwrap();
        let held = directory.lock().unwrap();
        assert!(held.is_some());
        assert!(directory.lock().unwrap().is_none());
        drop(held);
        assert!(directory.lock().unwrap().is_some());
        let names: Vec<String> = all(runtime.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["home"]);
    }
}
