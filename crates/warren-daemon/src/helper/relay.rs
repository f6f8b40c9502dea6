//! Passes a daemon's notices on to its starter, and reconnects its log when the journal was restarted. The daemon itself
//! cannot reach the sockets of other programs.

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

/// The two ends of a channel for messages. Neither can be connected to anything else.
///
/// # Errors
/// When no descriptor is left.
pub(super) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    // Unlike a stream, this type of socket keeps notices apart. Unlike a datagram socket, it reports that the other end
    // is closed.
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a descriptor, together with one byte, over a connected socket.
///
/// # Errors
/// When the other end is closed.
pub(super) fn send_descriptor(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    // A descriptor travels only with at least one byte of data (unix(7)).
    sendmsg(socket, &[io::IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a descriptor that the other end sent. `None` at the end. Does not wait.
///
/// # Errors
/// When a byte arrives without a descriptor, or nothing has arrived.
pub(super) fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
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

/// Passes on a daemon's notices, and hands it new log sockets.
#[derive(Debug)]
pub(super) struct Relay {
    channel: OwnedFd,
    notices: JoinHandle<()>,
}

impl Relay {
    /// Passes on the notices that arrive on `channel`, and sends the daemon a new log socket whenever the journal has
    /// closed the old one.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn open(channel: OwnedFd) -> io::Result<Self> {
        if is_journal() {
            let channel = channel.try_clone()?;
            thread::Builder::new().name("log".into()).spawn(move || keep_log(&channel))?;
        }
        let said = channel.try_clone()?;
        let notices = thread::Builder::new().name("notices".into()).spawn(move || pass_on(&said))?;
        Ok(Self { channel, notices })
    }

    /// Waits until every notice has been passed on.
    pub(super) fn close(self) {
        // Data that has already arrived can still be read.
        let _ = shutdown(&self.channel, Shutdown::Read);
        // A join fails only after a panic, and that thread does not panic.
        drop(self.notices.join());
    }
}

/// Passes notices to the starter until no more can arrive.
fn pass_on(channel: &OwnedFd) {
    let mut buffer = [0; LONGEST_NOTICE];
    let mut any = false;
    while let Ok((length @ 1.., _)) = recv(channel, &mut buffer, RecvFlags::empty()) {
        let notice = buffer.get(..length).map(serde_json::from_slice::<Notice>);
        // A notice that cannot be read is skipped, because a compromised daemon may send anything.
        let Some(Ok(notice)) = notice else { continue };
        any = true;
        if let Err(error) = notice.tell() {
            tracing::debug!("cannot notify the starter: {error}");
        }
    }
    if any && let Err(error) = wait_until_heard() {
        tracing::debug!("the starter did not get every notice: {error}");
    }
}

/// Waits until the starter has read everything (sd_notify_barrier(3)). systemd ignores notices of a process that has
/// already ended.
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
    // The starter has the only other copy now. It closes that copy once it has read everything before it.
    drop(theirs);
    let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(&ours, PollFlags::empty())], Some(&patience))?;
    Ok(())
}

/// Whether standard error leads to the journal, according to the variable that systemd.exec(5) describes.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let own = std::fs::metadata("/proc/self/fd/2").map(|file| format!("{}:{}", file.dev(), file.ino()));
    own.is_ok_and(|own| own == stream)
}

/// Reconnects the log each time the journal has closed it: a restarted journal forgets its connections.
fn keep_log(channel: &OwnedFd) {
    loop {
        let log = io::stderr();
        // If no events are asked for, poll(2) returns once the other end is closed.
        let closed = poll(&mut [PollFd::new(&log, PollFlags::empty())], None);
        if closed.is_ok()
            && let Ok(log) = connect_to_journal()
        {
            // This fails only once the daemon has ended. The log then has no writer.
            let sent = send_descriptor(channel.as_fd(), log.as_fd());
            if logging::write_to(log.into()).and(sent).is_err() {
                return;
            }
        }
        thread::sleep(PAUSE);
    }
}

/// A log socket like the one that systemd gives a service (sd_journal_stream_fd(3)).
fn connect_to_journal() -> io::Result<UnixStream> {
    let mut log = UnixStream::connect(JOURNAL)?;
    log.shutdown(std::net::Shutdown::Read)?;
    // The lines are: identifier, unit, priority, whether lines begin with a priority, and whether to forward to
    // syslog, kmsg and the console.
    log.write_all(b"warren\n\n6\n0\n0\n0\n0\n")?;
    Ok(log)
}

const JOURNAL: &str = "/run/systemd/journal/stdout";
/// Pause between two attempts to reach the journal.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest notice in bytes. JSON may need six bytes for a character.
const LONGEST_NOTICE: usize = 16 * 1024;
