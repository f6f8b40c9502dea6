//! The system calls that a daemon may make, restricted by seccomp(2).
//!
//! There are three filters. One ends the process, with an entry in the kernel's log, at a call that only an attacker makes, such
//! as execve. Another makes each call that is not in the daemons' list fail with EPERM. So if a new C library needs another call,
//! an error reports this and the tunnel continues. With the third, clone3 fails with ENOSYS, because a filter cannot see its
//! flags. The C library then falls back to clone.
//!
//! The calls of the packet path are allowed with any arguments. For such calls, the kernel caches the decision and runs no filter
//! (Linux 5.11).

use std::collections::BTreeMap;

use anyhow::Context as _;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch};

/// Restricts the calling thread and its future threads. Returns whether the kernel can do that.
///
/// # Errors
/// When the kernel has seccomp and refuses.
pub(super) fn confine() -> anyhow::Result<bool> {
    let eperm = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let enosys = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let without_rules = |calls: &[libc::c_long]| calls.iter().map(|call| (*call, Vec::new())).collect();
    let filters = [
        (without_rules(ATTACKS), SeccompAction::Allow, SeccompAction::KillProcess),
        (without_rules(&[libc::SYS_clone3]), SeccompAction::Allow, enosys),
        // This filter comes last, because it forbids adding further filters.
        (own_calls()?, eperm, SeccompAction::Allow),
    ];
    for (rules, otherwise, listed) in filters {
        let filter = SeccompFilter::new(rules, otherwise, listed, ARCHITECTURE)?;
        let program = BpfProgram::try_from(filter)?;
        match seccompiler::apply_filter(&program) {
            // This error means that the kernel has no seccomp, or no seccomp filters (seccomp(2)).
            Err(seccompiler::Error::Seccomp(error)) if is_missing(&error) => return Ok(false),
            applied => applied.context("seccomp refuses")?,
        }
    }
    Ok(true)
}

/// Forbids all Unix sockets except streams, for the calling thread and its future threads. Stream sockets are needed, because the
/// services that look up names listen on them.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn confine_to_streams() -> anyhow::Result<()> {
    let of_unix = SeccompCondition::new(0, Dword, Eq, number(libc::AF_UNIX))?;
    // For Unix sockets, the kernel treats SOCK_RAW as SOCK_DGRAM.
    let kinds = [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET];
    let refused = kinds.into_iter().map(|kind| {
        let kind = SeccompCondition::new(1, Dword, MaskedEq(SOCKET_KIND), number(kind))?;
        SeccompRule::new(vec![of_unix.clone(), kind])
    });
    let refused: Vec<SeccompRule> = refused.collect::<Result<_, _>>()?;
    let calls = [(libc::SYS_socket, refused.clone()), (libc::SYS_socketpair, refused)].into();
    let eperm = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, eperm, ARCHITECTURE)?;
    match seccompiler::apply_filter(&BpfProgram::try_from(filter)?) {
        Err(seccompiler::Error::Seccomp(error)) if is_missing(&error) => Ok(()),
        applied => applied.context("seccomp refuses"),
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

fn own_calls() -> anyhow::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> =
        OWN.iter().chain(OWN_OF_ARCHITECTURE).map(|call| (*call, Vec::new())).collect();
    let rule = |conditions: &[(u8, _, u64)], length: &dyn Fn() -> _| -> anyhow::Result<SeccompRule> {
        let conditions = conditions
            .iter()
            .map(|(argument, operator, value): &(u8, seccompiler::SeccompCmpOp, u64)| {
                SeccompCondition::new(*argument, length(), operator.clone(), *value)
            })
            .collect::<Result<_, _>>()?;
        Ok(SeccompRule::new(conditions)?)
    };
    // The kernel ignores the upper 32 bits of an int argument. A filter must ignore them too, or a call with other upper bits
    // could evade it.
    let dword = || Dword;
    let qword = || Qword;
    // Writable memory can never be executed.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        calls.insert(call, vec![rule(&[(2, MaskedEq(EXECUTABLE), 0)], &qword)?]);
    }
    // Threads are allowed, processes and namespaces are not.
    calls.insert(libc::SYS_clone, vec![rule(&[(0, MaskedEq(THREAD | NAMESPACES), THREAD)], &qword)?]);
    // Unix sockets are not allowed. Services such as docker and the system bus trust root's connections, and a datagram socket
    // can be reconnected at any time. The daemon needs no new ones: its listeners were created before the sandbox, and its helper
    // talks to the service manager.
    let mut sockets = Vec::new();
    for protocol in [libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER, libc::NETLINK_SOCK_DIAG] {
        let netlink = [(0, Eq, number(libc::AF_NETLINK)), (2, Eq, number(protocol))];
        sockets.push(rule(&netlink, &dword)?);
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        // The protocol is checked too, because the kernel would load modules for protocols such as SCTP and MPTCP.
        for (kind, protocol) in
            [(libc::SOCK_DGRAM, libc::IPPROTO_UDP), (libc::SOCK_STREAM, libc::IPPROTO_TCP)]
        {
            // Protocol 0 means the default protocol of the socket type.
            for protocol in [0, protocol] {
                let kind = (1, MaskedEq(SOCKET_KIND), number(kind));
                let internet = [(0, Eq, number(family)), kind, (2, Eq, number(protocol))];
                sockets.push(rule(&internet, &dword)?);
            }
        }
    }
    calls.insert(libc::SYS_socket, sockets);
    // New threads set their names by prctl.
    calls.insert(libc::SYS_prctl, vec![rule(&[(0, Eq, number(libc::PR_SET_NAME))], &dword)?]);
    // These ioctls can insert input into the terminal from which the daemon was started.
    calls.insert(libc::SYS_ioctl, vec![rule(&[(1, Ne, TIOCSTI), (1, Ne, TIOCLINUX)], &dword)?]);
    Ok(calls)
}

fn number(constant: libc::c_int) -> u64 {
    u64::from(constant.unsigned_abs())
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;
const THREAD: u64 = libc::CLONE_THREAD as u64;
/// CLONE_NEWNS, and the six flags from CLONE_NEWCGROUP to CLONE_NEWNET (`linux/sched.h`).
const NAMESPACES: u64 = 0x7e02_0000;
/// The socket type without SOCK_NONBLOCK and SOCK_CLOEXEC (`linux/net.h`).
const SOCKET_KIND: u64 = 0xf;
/// `asm-generic/ioctls.h` and `linux/tiocl.h`.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

/// Calls that no part of a daemon makes.
const ATTACKS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
];

/// Calls that daemons make, with any arguments.
const OWN: &[libc::c_long] = &[
    // The packet path.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    // New rings cannot be created in the sandbox. Rings that were created before can only write (`warren-tun/src/ring.rs`).
    libc::SYS_io_uring_enter,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    // Sockets.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Files.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    // Events and time.
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_eventfd2,
    libc::SYS_nanosleep,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads, signals, children from before the sandbox, and the process itself. clone3 is listed although another filter
    // refuses it with ENOSYS. If this filter, which is added later, refused clone3 too, its EPERM would take precedence
    // (seccomp(2)).
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_kill,
    libc::SYS_pidfd_send_signal,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Calls that newer architectures no longer have.
#[cfg(target_arch = "x86_64")]
const OWN_OF_ARCHITECTURE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_gettimeofday,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(target_arch = "aarch64")]
const OWN_OF_ARCHITECTURE: &[libc::c_long] = &[libc::SYS_gettimeofday];

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn a_look_up_has_streams_and_no_datagrams_of_unix() {
        // The test installs the filters in a thread of its own, because they apply only to that thread.
        let confined = std::thread::spawn(|| {
            confine_to_streams().unwrap();
            let refused = [UnixDatagram::unbound().map(drop), UnixDatagram::pair().map(drop)];
            (refused.map(|made| made.unwrap_err().kind()), UnixStream::pair().is_ok())
        });

        assert_eq!(confined.join().unwrap(), ([ErrorKind::PermissionDenied; 2], true));
        assert!(UnixDatagram::unbound().is_ok(), "the control");
    }
}
