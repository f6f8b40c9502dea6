//! Where a daemon's words leave for other programs' sockets, which the daemon itself has no way to: notices to its starter, and a
//! log that is connected anew when the journal has lost it.

use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown,
    socketpair,
};

use crate::logging;
use crate::notify::{Notice, SOCKET};

/// The two ends of a channel of messages, of which neither can be connected to anything else.
///
/// # Errors
/// When no descriptors are left.
pub(super) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a descriptor over a connected socket, with a byte.
///
/// # Errors
/// When nobody is at its other end.
pub(super) fn hand_over(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[io::IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes a descriptor that was handed over; none at the end. Does not wait for one.
///
/// # Errors
/// When a byte came without one, or nothing has come.
pub(super) fn take_over(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let parts = &mut [io::IoSliceMut::new(&mut byte)];
    if recvmsg(socket, parts, &mut ancillary, flags)?.bytes == 0 {
        return Ok(None);
    }
    let taken = ancillary.drain().find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut descriptors) = message else { return None };
        descriptors.next()
    });
    taken.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor came"))
}

/// A daemon's words on their way out.
#[derive(Debug)]
pub(super) struct Outlets {
    channel: OwnedFd,
    notices: JoinHandle<()>,
}

impl Outlets {
    /// Lets out what the daemon says over `channel`, and hands it its log anew whenever the journal has lost it.
    ///
    /// # Errors
    /// When no threads can be started.
    pub(super) fn open(channel: OwnedFd) -> io::Result<Self> {
        if is_journal() {
            let channel = channel.try_clone()?;
            thread::Builder::new().name("log".into()).spawn(move || keep_log(&channel))?;
        }
        let said = channel.try_clone()?;
        let notices = thread::Builder::new().name("notices".into()).spawn(move || pass_on(&said))?;
        Ok(Self { channel, notices })
    }

    /// Waits until everything that was said is out.
    pub(super) fn close(self) {
        // What has come is read all the same.
        let _ = shutdown(&self.channel, Shutdown::Read);
        // It does not panic.
        drop(self.notices.join());
    }
}

/// Tells the starter what the daemon has to say, until nothing more can come.
fn pass_on(channel: &OwnedFd) {
    let mut buffer = [0; LONGEST_NOTICE];
    let mut any = false;
    while let Ok((length @ 1.., _)) = recv(channel, &mut buffer, RecvFlags::empty()) {
        let notice = buffer.get(..length).map(serde_json::from_slice::<Notice>);
        let Some(Ok(notice)) = notice else { continue };
        any = true;
        if let Err(error) = notice.tell() {
            tracing::debug!("cannot notify the starter: {error}");
        }
    }
    if any && let Err(error) = wait_until_heard() {
        tracing::debug!("the starter did not hear all: {error}");
    }
}

/// Waits until the starter has read everything (sd_notify_barrier(3)): systemd ignores what a process said that has ended since.
fn wait_until_heard() -> io::Result<()> {
    let Some(path) = std::env::var_os(SOCKET) else { return Ok(()) };
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    let (ours, theirs) = io::pipe()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [theirs.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&socket, &[io::IoSlice::new(b"BARRIER=1")], &mut ancillary, SendFlags::NOSIGNAL)?;
    drop(theirs);
    let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(&ours, PollFlags::empty())], Some(&patience))?;
    Ok(())
}

/// Whether standard error is the journal's, by what systemd.exec(5) puts into the environment.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let own = std::fs::metadata("/proc/self/fd/2").map(|file| format!("{}:{}", file.dev(), file.ino()));
    own.is_ok_and(|own| own == stream)
}

/// Connects the log anew each time that the journal has closed it: a journal that was stopped forgets who was connected.
fn keep_log(channel: &OwnedFd) {
    loop {
        let log = io::stderr();
        let closed = poll(&mut [PollFd::new(&log, PollFlags::empty())], None);
        if closed.is_ok()
            && let Ok(log) = connect_to_journal()
        {
            // Without the daemon its log is nobody's.
            let handed_over = hand_over(channel.as_fd(), log.as_fd());
            if logging::write_to(log.into()).and(handed_over).is_err() {
                return;
            }
        }
        thread::sleep(PAUSE);
    }
}

/// A log as systemd gives a service one (sd_journal_stream_fd(3)).
fn connect_to_journal() -> io::Result<UnixStream> {
    let mut log = UnixStream::connect(JOURNAL)?;
    log.shutdown(std::net::Shutdown::Read)?;
    // Identifier, unit, priority, prefixes of a line's own priority, and to where else it goes: nowhere.
    log.write_all(b"warren\n\n6\n0\n0\n0\n0\n")?;
    Ok(log)
}

const JOURNAL: &str = "/run/systemd/journal/stdout";
/// Between two tries to reach the journal.
const PAUSE: Duration = Duration::from_millis(500);
/// Bytes of a notice; JSON writes some characters with six.
const LONGEST_NOTICE: usize = 16 * 1024;
