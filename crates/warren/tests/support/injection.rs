//! Injects system calls into a running process, to simulate an attacker who has taken it over.

use std::ffi::c_long;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// A process that is stopped in a system call, and made to run other system calls. It continues when this is dropped.
#[derive(Debug)]
pub struct Injected {
    pid: Pid,
    memory: File,
    before: libc::user_regs_struct,
}

/// The result of an injected call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call's return value.
    Done(i64),
    /// The error number of a failed call.
    Failed(i32),
    /// The kernel ended the process.
    Killed,
}

impl Outcome {
    /// Whether the call failed for lack of privileges. Its arguments are not considered.
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Failed(libc::EPERM | libc::EACCES))
    }
}

impl Injected {
    /// Stops the first thread of a process, which is waiting in the kernel most of the time.
    pub fn into(pid: i32) -> Self {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
        let pid = Pid::from_raw(pid);
        for _ in 0..1000 {
            ptrace::attach(pid).unwrap();
            assert!(matches!(waitpid(pid, None).unwrap(), WaitStatus::Stopped(..)));
            let before = ptrace::getregs(pid).unwrap();
            let mut instruction = [0; 2];
            memory.read_exact_at(&mut instruction, before.rip - 2).unwrap();
            if instruction == SYSCALL {
                return Self { pid, memory, before };
            }
            ptrace::detach(pid, None).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("process {pid} never waits");
    }

    /// Sends a datagram to the Unix socket at `path` through one of the process's descriptors.
    pub fn send_to(&self, descriptor: i32, text: &str, path: &str) -> Outcome {
        let (address, length) = self.write_address(path);
        // The text is placed after the address in the process's memory.
        let sent = address + 128;
        self.memory.write_all_at(text.as_bytes(), sent.cast_unsigned()).unwrap();
        let bytes = c_long::try_from(text.len()).unwrap();
        let flags = c_long::from(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        self.call_with(libc::SYS_sendto, &[c_long::from(descriptor), sent, bytes, flags, address, length])
    }

    /// Connects one of the process's descriptors to the Unix socket at `path`.
    pub fn connect(&self, descriptor: i32, path: &str) -> Outcome {
        let (address, length) = self.write_address(path);
        self.call_with(libc::SYS_connect, &[c_long::from(descriptor), address, length])
    }

    /// Opens a file.
    pub fn open(&self, path: &str, flags: i32) -> Outcome {
        let path = self.write(path);
        let here = c_long::from(libc::AT_FDCWD);
        self.call_with(libc::SYS_openat, &[here, path, c_long::from(flags), 0o600])
    }

    /// Executes another program.
    pub fn execute(&self, path: &str) -> Outcome {
        let path = self.write(path);
        self.call_with(libc::SYS_execve, &[path, 0, 0])
    }

    /// Makes a call with numeric arguments.
    pub fn call<const N: usize>(&self, number: c_long, arguments: [i32; N]) -> Outcome {
        self.call_with(number, &arguments.map(c_long::from))
    }

    fn call_with(&self, number: c_long, arguments: &[c_long]) -> Outcome {
        let argument = |place: usize| arguments.get(place).copied().unwrap_or_default().cast_unsigned();
        let registers = libc::user_regs_struct {
            rip: self.before.rip - 2,
            rax: number.cast_unsigned(),
            // With this value, the kernel does not restart the interrupted call.
            orig_rax: u64::MAX,
            rdi: argument(0),
            rsi: argument(1),
            rdx: argument(2),
            r10: argument(3),
            r8: argument(4),
            r9: argument(5),
            ..self.before
        };
        ptrace::setregs(self.pid, registers).unwrap();
        ptrace::step(self.pid, None).unwrap();
        let status = waitpid(self.pid, None).unwrap();
        if matches!(status, WaitStatus::Signaled(_, Signal::SIGSYS, _)) {
            return Outcome::Killed;
        }
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
        match ptrace::getregs(self.pid).unwrap().rax.cast_signed() {
            error @ -4095..0 => Outcome::Failed(i32::try_from(-error).unwrap()),
            value => Outcome::Done(value),
        }
    }

    /// Writes a Unix socket address into the process's memory. Returns its location and length.
    fn write_address(&self, path: &str) -> (c_long, c_long) {
        let family = u16::try_from(libc::AF_UNIX).unwrap().to_ne_bytes();
        let bytes = [&family, path.as_bytes(), &[0]].concat();
        let address = self.before.rsp - 4096;
        self.memory.write_all_at(&bytes, address).unwrap();
        (address.cast_signed(), c_long::try_from(bytes.len()).unwrap())
    }

    /// Writes a text below the stack pointer, and returns its address.
    pub fn write(&self, text: &str) -> c_long {
        let address = self.before.rsp - 4096;
        self.memory.write_all_at(&[text.as_bytes(), &[0]].concat(), address).unwrap();
        address.cast_signed()
    }
}

/// An io_uring ring of a process, used through the process's memory. Nobody else may use the ring at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    descriptor: i32,
    /// The addresses of the kernel's `struct io_rings` and of the submission queue's entries.
    rings: u64,
    entries: u64,
}

impl Ring {
    /// The process's first ring.
    pub fn of(process: &Injected) -> Self {
        let pid = process.pid;
        let descriptor = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().find_map(|file| {
            let path = file.unwrap().path();
            let target = std::fs::read_link(&path).ok()?;
            target.to_str()?.contains(IO_URING).then(|| path.file_name()?.to_str()?.parse().ok())?
        });
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mapped = |offset: &str| {
            let is_it = |line: &&str| line.contains(IO_URING) && line.split(' ').nth(2) == Some(offset);
            let line = maps.lines().find(is_it).unwrap();
            u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
        };
        // IORING_OFF_SQ_RING and IORING_OFF_SQES of linux/io_uring.h.
        let (rings, entries) = (mapped("00000000"), mapped("10000000"));
        let ring = Self { descriptor: descriptor.expect("a ring"), rings, entries };
        let size = ring.read(process, SUBMISSION_MASK) + 1;
        assert!(
            size.is_power_of_two() && ring.read(process, SUBMISSION_SIZE) == size,
            "not as in the kernel: {size}"
        );
        ring
    }

    /// Makes the kernel carry out one entry, and returns the result.
    pub fn perform(
        &self,
        process: &Injected,
        (operation, flags): (u8, u8),
        descriptor: i32,
        address: c_long,
        length: u32,
    ) -> i32 {
        let (tail, mask) = (self.read(process, SUBMISSION_TAIL), self.read(process, SUBMISSION_MASK));
        // `struct io_uring_sqe`.
        let mut entry = [0; 64];
        entry[..2].copy_from_slice(&[operation, flags]);
        entry[4..8].copy_from_slice(&descriptor.to_ne_bytes());
        entry[16..24].copy_from_slice(&address.to_ne_bytes());
        entry[24..28].copy_from_slice(&length.to_ne_bytes());
        process.memory.write_all_at(&entry, self.entries + u64::from(tail & mask) * 64).unwrap();
        self.write(process, SUBMISSION_TAIL, tail.wrapping_add(1));
        let completed = self.read(process, COMPLETION_TAIL);
        let entered = process.call(libc::SYS_io_uring_enter, [self.descriptor, 1, 1, WAIT, 0, 0]);
        assert_eq!(entered, Outcome::Done(1));
        assert_eq!(self.read(process, COMPLETION_TAIL), completed.wrapping_add(1));
        let place = u64::from(completed & self.read(process, COMPLETION_MASK)) * 16;
        self.write(process, COMPLETION_HEAD, completed.wrapping_add(1));
        self.read(process, COMPLETIONS + place + 8).cast_signed()
    }

    fn read(&self, process: &Injected, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        process.memory.read_exact_at(&mut bytes, self.rings + offset).unwrap();
        u32::from_ne_bytes(bytes)
    }

    fn write(&self, process: &Injected, offset: u64, value: u32) {
        process.memory.write_all_at(&value.to_ne_bytes(), self.rings + offset).unwrap();
    }
}

/// How the kernel names the files and mappings of rings.
const IO_URING: &str = "[io_uring]";
/// `IORING_ENTER_GETEVENTS`.
const WAIT: i32 = 1;
/// The fields of `struct io_rings` (include/linux/io_uring_types.h).
const SUBMISSION_TAIL: u64 = 4;
const COMPLETION_HEAD: u64 = 8;
const COMPLETION_TAIL: u64 = 12;
const SUBMISSION_MASK: u64 = 16;
const COMPLETION_MASK: u64 = 20;
const SUBMISSION_SIZE: u64 = 24;
const COMPLETIONS: u64 = 64;

impl Drop for Injected {
    fn drop(&mut self) {
        // The process may have been killed.
        if ptrace::setregs(self.pid, self.before).is_ok() {
            let _ = ptrace::detach(self.pid, None);
        }
    }
}

/// The `syscall` instruction of x86-64.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
