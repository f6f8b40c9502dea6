//! Makes many TUN writes with one system call (io_uring).
//!
//! A packet may wake its receiver, which then runs when `writev` returns. With one call for each packet, that happens tens of
//! thousands of times a second. One call for a whole batch returns only once.
//!
//! No seccomp filter sees the calls that io_uring makes. A [`Ring`] is therefore restricted for good before it is enabled
//! (`IORING_REGISTER_RESTRICTIONS`, Linux 5.10): it can write to open files and do nothing else. A process can do the same
//! with `writev`.
//!
//! The TUN files are not registered with the ring. A ring releases registered files only some 25 ms after its process has
//! died. With registered files, the device of a killed daemon would outlive the daemon by that time.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::AsRawFd as _;

use io_uring::register::Restriction;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

use crate::batch::Gathered;

/// Maximum number of writes of one system call. A batch from the carrier seldom has more, and a second call then costs little.
const ENTRIES: u16 = 256;

/// A ring of the kernel (io_uring) that can only write.
pub struct Ring {
    ring: IoUring,
    /// Whether the kernel's TUN driver knows `RWF_NOWAIT` (since Linux 6.4), true until a write shows otherwise.
    knows_nowait: bool,
}

impl Ring {
    /// Makes a ring. A process in its sandbox can no longer make one.
    ///
    /// # Errors
    /// `ENOSYS` or `EINVAL` if the kernel has no io_uring or no restrictions for it, `EPERM` if a filter or the setting
    /// `kernel.io_uring_disabled` forbids it, `ENOMEM` beyond RLIMIT_MEMLOCK (before Linux 5.12).
    pub fn new() -> io::Result<Self> {
        let ring = Self::disabled()?;
        let mut allowed = [Restriction::sqe_op(opcode::Writev::CODE), Restriction::sqe_flags_allowed(0)];
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        Ok(Self { ring, knows_nowait: true })
    }

    fn disabled() -> io::Result<IoUring> {
        let ring = IoUring::builder().dontfork().setup_r_disabled().build(u32::from(ENTRIES))?;
        // Every kernel with io_uring restrictions has both features. Without the first one, completions could be lost.
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_submit_stable() {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        Ok(ring)
    }

    /// Makes the writes in their order, and pushes the result of each.
    ///
    /// # Errors
    /// When the kernel refuses the ring. The results pushed so far are valid, the other writes were not made, and the ring
    /// must not be used again.
    pub(crate) fn write_all(
        &mut self,
        writes: &[Gathered<'_>],
        results: &mut Vec<io::Result<()>>,
    ) -> io::Result<()> {
        for chunk in writes.chunks(usize::from(ENTRIES)) {
            let done = results.len();
            let refused = self.write_chunk(chunk, |index, result| {
                // Completions of writes to a TUN come in order. Completions of writes to other files need not.
                while results.len() <= done + index {
                    results.push(Err(io::ErrorKind::Other.into()));
                }
                if let Some(slot) = results.get_mut(done + index) {
                    *slot = result;
                }
            });
            refused?;
            if self.knows_nowait {
                self.repeat_unknown(chunk, results.get_mut(done..).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Repeats the writes that an older driver refused because of their flag. The files are non-blocking, and an older
    /// io_uring respects that.
    fn repeat_unknown(&mut self, writes: &[Gathered<'_>], results: &mut [io::Result<()>]) {
        for (write, result) in writes.iter().zip(results) {
            if matches!(result, Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP)) {
                self.knows_nowait = false;
                *result = write.write();
            }
        }
    }

    /// Makes at most [`ENTRIES`] writes, and returns once the kernel no longer needs their memory.
    fn write_chunk(
        &mut self,
        writes: &[Gathered<'_>],
        mut done: impl FnMut(usize, io::Result<()>),
    ) -> io::Result<()> {
        let mut queue = self.ring.submission();
        for (index, write) in writes.iter().enumerate() {
            // SAFETY: the file, the list of slices and their memory are borrowed until this function returns. Until then the kernel has
            // completed every write that it took from the queue, or this process ends. A queue with writes that it did not take is never
            // submitted again, because the caller drops the ring.
            unsafe { queue.push(&entry(index, write, self.knows_nowait)) }
                .map_err(|_| io::Error::other("the ring is full although nothing is under way"))?;
        }
        drop(queue);
        let mut under_way = writes.len();
        let mut refused = None;
        while under_way > 0 {
            match self.ring.submit_and_wait(under_way) {
                Ok(_) => {}
                // A signal ended the wait. The loop waits for the remaining writes.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let left = self.ring.submission().len();
                    under_way = self.take_completions(writes, under_way, &mut done);
                    // The kernel may still read the memory of writes that it took and did not complete.
                    if under_way > left {
                        std::process::abort();
                    }
                    refused = Some(error);
                    break;
                }
            }
            under_way = self.take_completions(writes, under_way, &mut done);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes the results that have arrived. Returns how many writes are still under way.
    fn take_completions(
        &mut self,
        writes: &[Gathered<'_>],
        mut under_way: usize,
        done: &mut impl FnMut(usize, io::Result<()>),
    ) -> usize {
        for completion in self.ring.completion() {
            under_way = under_way.saturating_sub(1);
            let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            if let Some(write) = writes.get(index) {
                done(index, write.result(completion.result()));
            }
        }
        under_way
    }
}

fn entry(index: usize, write: &Gathered<'_>, nowait: bool) -> Entry {
    let slices = write.slices;
    // Always fits: a write has a header and at most 64 parts.
    let count = u32::try_from(slices.len()).unwrap_or(0);
    // `IoSlice` has the layout of an iovec. Without the flag, a newer io_uring waits for room although the file is non-blocking.
    opcode::Writev::new(types::Fd(write.file.as_raw_fd()), slices.as_ptr().cast(), count)
        .rw_flags(if nowait { libc::RWF_NOWAIT } else { 0 })
        .build()
        .user_data(index as u64)
}

impl fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ring").field("file", &self.ring.as_raw_fd()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs::File;
    use std::io::{IoSlice, Read as _};
    use std::net::TcpListener;
    use std::os::fd::{AsFd as _, RawFd};

    use io_uring::squeue::Flags;
    use rustix::io::Errno;
    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    #[test]
    fn each_write_has_its_own_result_and_those_of_a_file_are_in_order() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let (_, broken) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let (_full, nearly_full) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        fcntl_setpipe_size(&nearly_full, 8192).unwrap();
        rustix::io::write(&nearly_full, &[0; 4096]).unwrap();
        let numbers: Vec<[u8; 2]> = (0..2 * ENTRIES + 50).map(u16::to_be_bytes).collect();
        let parts: Vec<[IoSlice<'_>; 2]> = numbers
            .iter()
            .map(|number| number.split_at(1))
            .map(|(high, low)| [IoSlice::new(high), IoSlice::new(low)])
            .collect();
        let mut writes: Vec<Gathered<'_>> =
            parts.iter().map(|parts| Gathered::new(writer.as_fd(), parts)).collect();
        let pages = [0; 8192];
        let pages = [IoSlice::new(&pages)];
        // There is room for only one of the two pages.
        for (place, file) in [(300, &nearly_full), (200, &broken), (100, &nearly_full)] {
            writes.insert(place, Gathered::new(file.as_fd(), &pages));
        }

        let mut results = Vec::new();
        Ring::new().unwrap().write_all(&writes, &mut results).unwrap();

        assert_eq!(results.len(), writes.len());
        let failed: Vec<_> = (0..).zip(&results).filter(|(_, result)| result.is_err()).collect();
        let [(100, Err(short)), (201, Err(broken)), (302, Err(full))] = failed[..] else {
            panic!("{failed:?}")
        };
        assert_eq!(short.kind(), io::ErrorKind::WriteZero);
        assert_eq!(Errno::from_io_error(broken), Some(Errno::PIPE));
        assert_eq!(Errno::from_io_error(full), Some(Errno::AGAIN));
        drop(writer);
        let mut read = Vec::new();
        File::from(reader).read_to_end(&mut read).unwrap();
        assert_eq!(read, numbers.concat());
    }

    #[test]
    fn a_ring_can_do_nothing_but_write() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = SocketAddress::of(&listener);
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let zero = File::open("/dev/zero").unwrap();
        let null = File::options().write(true).open("/dev/null").unwrap();
        let mut buffer = [0; 1];
        let slices = [IoSlice::new(b"a")];
        let writev = |file: RawFd| opcode::Writev::new(types::Fd(file), slices.as_ptr().cast(), 1).build();
        let here = types::Fd(libc::AT_FDCWD);
        let (hosts, null_file) = (c"/etc/hosts".as_ptr(), types::Fd(null.as_raw_fd()));
        let connect =
            opcode::Connect::new(types::Fd(socket.as_raw_fd()), address.pointer(), address.length());
        let acts = [
            ("opening a file", opcode::OpenAt::new(here, hosts).build()),
            (
                "creating a file",
                opcode::OpenAt::new(here, TEMPORARY.as_ptr())
                    .flags(libc::O_TMPFILE | libc::O_RDWR)
                    .mode(0o600)
                    .build(),
            ),
            ("making a socket", opcode::Socket::new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).build()),
            ("connecting", connect.build()),
            ("reading", opcode::Read::new(types::Fd(zero.as_raw_fd()), buffer.as_mut_ptr(), 1).build()),
            ("writing in another way", opcode::Write::new(null_file, b"a".as_ptr(), 1).build()),
            ("writing on a thread of the kernel's", writev(null.as_raw_fd()).flags(Flags::ASYNC)),
            ("doing nothing", opcode::Nop::new().build()),
        ];
        let (mut restricted, mut free) = (Ring::new().unwrap().ring, Ring::disabled().unwrap());
        free.submitter().register_enable_rings().unwrap();

        for (what, act) in acts {
            assert_eq!(outcome(&mut restricted, &act), -libc::EACCES, "{what}");
            assert!(outcome(&mut free, &act) >= 0, "the control: {what}");
        }
        assert_eq!(outcome(&mut restricted, &writev(null.as_raw_fd())), 1, "what it is for");
        let refused = restricted.submitter().register_files(&[0]).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::ACCESS));
        free.submitter().register_files(&[null.as_raw_fd()]).unwrap();
    }

    #[test]
    fn the_writes_that_a_refused_ring_did_not_make_are_known() {
        let null = File::options().write(true).open("/dev/null").unwrap();
        let slices = [IoSlice::new(b"a")];
        let writes = [Gathered::new(null.as_fd(), &slices); 3];
        let mut ring = Ring::new().unwrap();
        // A filter applies to the thread that installs it.
        let refused = std::thread::scope(|scope| {
            let refused = || {
                refuse(libc::SYS_io_uring_enter);
                let mut results = Vec::new();
                let error = ring.write_all(&writes, &mut results).unwrap_err();
                (Errno::from_io_error(&error), results.len(), Ring::new().is_ok())
            };
            scope.spawn(refused).join().unwrap()
        });
        assert_eq!(refused, (Some(Errno::PERM), 0, true));
    }

    /// Makes the kernel carry out one entry, and returns the result.
    fn outcome(ring: &mut IoUring, entry: &Entry) -> i32 {
        // SAFETY: the memory that the entry points to outlives this function, which waits for the completion.
        unsafe { ring.submission().push(entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    }

    /// Makes the kernel refuse a system call to this thread.
    fn refuse(call: libc::c_long) {
        use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
        let eperm = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let calls = [(call, Vec::new())].into();
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, eperm, architecture).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    const TEMPORARY: &CStr = c"/tmp";

    /// The address of a listening socket in the kernel's form.
    struct SocketAddress(socket2::SockAddr);

    impl SocketAddress {
        fn of(listener: &TcpListener) -> Self {
            Self(listener.local_addr().unwrap().into())
        }

        fn pointer(&self) -> *const libc::sockaddr {
            self.0.as_ptr().cast()
        }

        fn length(&self) -> libc::socklen_t {
            self.0.len()
        }
    }
}
