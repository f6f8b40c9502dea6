//! Tests what a compromised daemon can do through its io_uring ring, whose operations are not visible to seccomp filters.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::injection::{Injected, Ring};
use crate::support::{Client, Exit, Net};

/// The file for calls that need one. Each write here has an empty list of buffers, so nothing is written.
const FILE: i32 = libc::STDERR_FILENO;

#[test]
fn through_its_ring_a_daemon_that_was_taken_over_can_only_write() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    for warren in [&exit.warren, &client.warren] {
        let status = warren.status().expect("the daemon answers");
        assert_eq!(status.text("/transport/tun_writes"), "io_uring");
        let pid = i32::try_from(status.number("/pid")).unwrap();
        let daemon = Injected::into(pid);
        let ring = Ring::of(&daemon);
        let path = daemon.write("/etc/hosts");
        for (what, operation, file, address, length) in [
            ("reading", READ, FILE, path, 1),
            ("opening a file", OPENAT, libc::AT_FDCWD, path, 0),
            ("making a Unix socket", SOCKET, libc::AF_UNIX, 0, 0),
            ("connecting", CONNECT, FILE, path, 16),
            ("sending", SENDMSG, FILE, path, 0),
            ("exchanging the ring's own files", FILES_UPDATE, -1, path, 1),
        ] {
            let result = ring.perform(&daemon, (operation, 0), file, address, length);
            assert_eq!(result, -libc::EACCES, "{what} in {pid}");
        }
        // With these flags, a write makes the next entry wait for it, or is carried out by a kernel thread.
        for flags in [LINKED, ASYNCHRONOUS] {
            let result = ring.perform(&daemon, (WRITEV, flags), FILE, path, 0);
            assert_eq!(result, -libc::EACCES, "flags {flags} in {pid}");
        }
        // The control: an allowed entry succeeds, so the refusals above do come from the kernel.
        assert_eq!(ring.perform(&daemon, (WRITEV, 0), FILE, path, 0), 0, "a write of nothing in {pid}");
    }

    // Both daemons still work.
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    client.down();
    exit.stop(Signal::TERM);
}

/// `enum io_uring_op` and the flags of linux/io_uring.h.
const WRITEV: u8 = 2;
const SENDMSG: u8 = 9;
const CONNECT: u8 = 16;
const OPENAT: u8 = 18;
const FILES_UPDATE: u8 = 20;
const READ: u8 = 22;
const SOCKET: u8 = 45;
const LINKED: u8 = 1 << 2;
const ASYNCHRONOUS: u8 = 1 << 4;
