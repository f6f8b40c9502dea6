//! Simulates a compromised daemon: a debugger injects system calls into running daemons. The kernel must refuse them.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use crate::support::injection::{Injected, Outcome};
use crate::support::rights::{assert_rights_are_few, of_each_thread};
use crate::support::{Client, Exit, Net, Profile, Running, eventually, seconds};

#[test]
fn a_daemon_that_was_taken_over_can_do_nothing_of_it() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let daemons = [&exit.warren, &client.warren].map(|warren| {
        let status = warren.status().expect("the daemon answers");
        assert_eq!(status.0["process"]["sandbox"]["rights"], true, "{:#}", status.0);
        assert_eq!(status.0["process"]["sandbox"]["system_calls"], true);
        let files = status.text("/process/sandbox/files").to_owned();
        (i32::try_from(status.number("/pid")).unwrap(), files)
    });

    for (pid, files) in daemons {
        assert_rights_and_core(pid);
        let daemon = Injected::into(pid);
        for (what, act) in refused(&files) {
            let outcome = act(&daemon);
            assert!(outcome.is_refused(), "{what} in {pid}: {outcome:?}");
        }
    }

    // Both daemons still work.
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    client.down();
    exit.stop(rustix::process::Signal::TERM);
}

#[test]
fn what_only_an_attacker_calls_ends_the_daemon() {
    let Some(net) = Net::new() else { return };
    for (what, act) in deadly() {
        let (client, _shell) = running(&net, "on");
        let outcome = act(&Injected::into(pid_of(&client)));
        assert_eq!(outcome, Outcome::Killed, "{what}");
    }
}

#[test]
fn without_the_sandbox_all_of_it_can_be_done() {
    let Some(net) = Net::new() else { return };
    let (client, _shell) = running(&net, "off");
    let daemon = Injected::into(pid_of(&client));
    for (what, act) in refused("confined") {
        let outcome = act(&daemon);
        assert!(!outcome.is_refused(), "{what}: {outcome:?}");
    }
    for (what, act) in deadly() {
        // The kernel may still refuse the call for other reasons.
        assert_ne!(act(&daemon), Outcome::Killed, "{what}");
    }
}

/// A datagram to a socket that only root may write to, like wpa_supplicant's.
#[test]
fn no_datagram_reaches_another_programs_unix_socket() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    let receiver = Receiver::bind();

    for warren in [&exit.warren, &client.warren] {
        let pid = i32::try_from(warren.status().expect("the daemon answers").number("/pid")).unwrap();
        let sockets = sockets_of(pid);
        assert!(!sockets.is_empty());
        let daemon = Injected::into(pid);
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET, libc::SOCK_STREAM] {
            let made = daemon.call(libc::SYS_socket, [libc::AF_UNIX, kind, 0]);
            assert!(made.is_refused(), "a socket of type {kind} was created in {pid}: {made:?}");
            let pair = daemon.call(libc::SYS_socketpair, [libc::AF_UNIX, kind, 0, 0]);
            assert!(pair.is_refused(), "a socket pair of type {kind} was created in {pid}: {pair:?}");
        }
        // The daemon's existing sockets cannot be redirected to another program's socket either.
        for socket in sockets {
            let connected = daemon.connect(socket, &receiver.path);
            assert!(matches!(connected, Outcome::Failed(_)), "socket {socket} of {pid} was connected");
            // On a connected packet socket the kernel ignores the address.
            daemon.send_to(socket, "attack", &receiver.path);
        }
    }

    assert_eq!(receiver.received(), None);
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    client.down();
    exit.stop(rustix::process::Signal::TERM);
}

#[test]
fn without_the_sandbox_a_datagram_reaches_another_programs_unix_socket() {
    let Some(net) = Net::new() else { return };
    let (client, _shell) = running(&net, "off");
    let receiver = Receiver::bind();
    let daemon = Injected::into(pid_of(&client));

    let made = daemon.call(libc::SYS_socket, [libc::AF_UNIX, libc::SOCK_DGRAM, 0]);
    let Outcome::Done(socket) = made else { panic!("no socket: {made:?}") };
    let socket = i32::try_from(socket).unwrap();
    assert_eq!(daemon.send_to(socket, "first", &receiver.path), Outcome::Done(5));
    assert_eq!(receiver.received().as_deref(), Some("first"));
    assert_eq!(daemon.connect(socket, &receiver.path), Outcome::Done(0));
}

type Act = fn(&Injected) -> Outcome;

/// The calls that must fail, depending on the kernel's landlock support.
fn refused(files: &str) -> Vec<(&'static str, Act)> {
    let of_files: [(&'static str, Act); 2] = [
        ("reading /etc/shadow", |daemon| daemon.open("/etc/shadow", libc::O_RDONLY)),
        ("writing outside its own files", |daemon| daemon.open("/var/tmp", libc::O_TMPFILE | libc::O_RDWR)),
    ];
    let of_the_newest: [(&'static str, Act); 1] = [("a signal to another process", |daemon| {
        daemon.call(libc::SYS_kill, [i32::try_from(std::process::id()).unwrap(), 0])
    })];
    let of_all: [(&'static str, Act); 6] = [
        ("a packet socket", |daemon| daemon.call(libc::SYS_socket, [libc::AF_PACKET, libc::SOCK_RAW, 0])),
        ("a raw socket", |daemon| daemon.call(libc::SYS_socket, [libc::AF_INET, libc::SOCK_RAW, 1])),
        ("a socket of MPTCP", |daemon| {
            daemon.call(libc::SYS_socket, [libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP])
        }),
        ("a socket for another program's, as docker's", |daemon| {
            daemon.call(libc::SYS_socket, [libc::AF_UNIX, libc::SOCK_STREAM, 0])
        }),
        ("memory to write and run", |daemon| {
            let both = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            daemon.call(libc::SYS_mmap, [0, 4096, both, own, -1, 0])
        }),
        ("a new name for the host", |daemon| daemon.call(libc::SYS_sethostname, [0, -1])),
    ];
    let mut acts = Vec::from(of_all);
    match files {
        "confined" => acts.extend(of_files.into_iter().chain(of_the_newest)),
        "partly" => acts.extend(of_files),
        _ => println!("skipped: this kernel has no landlock"),
    }
    acts
}

/// The calls that must kill the daemon. Where a call is allowed, its arguments make it fail for another reason.
fn deadly() -> Vec<(&'static str, Act)> {
    vec![
        ("running a shell", |daemon| daemon.execute("/nonexistent/sh")),
        ("debugging", |daemon| daemon.call(libc::SYS_ptrace, [-1, 0])),
        ("reading another's memory", |daemon| daemon.call(libc::SYS_process_vm_readv, [1, 0, 0, 0, 0, 0])),
        ("mounting", |daemon| daemon.call(libc::SYS_mount, [0, 0, 0, 0, 0])),
        ("a BPF program", |daemon| daemon.call(libc::SYS_bpf, [-1, 0, 0])),
        ("a ring without restrictions", |daemon| daemon.call(libc::SYS_io_uring_setup, [1, 0])),
        ("another file for a ring", |daemon| daemon.call(libc::SYS_io_uring_register, [-1, 0, 0, 0])),
        ("loading a module", |daemon| daemon.call(libc::SYS_finit_module, [-1, 0, 0])),
    ]
}

/// A client whose exit does not exist.
fn running<'net>(net: &'net Net, sandbox: &str) -> (Client<'net>, Running) {
    let key = warren_quic::key::PrivateKey::generate().unwrap();
    let text = format!(
        "[client]\nprivate_key = \"{}\"\n[[exit]]\nendpoint = \"{}:443\"\npublic_key = \"{}\"\n",
        key.to_base64().as_str(),
        Net::EXIT_V4,
        warren_quic::key::PrivateKey::generate().unwrap().public()
    );
    let client = Client::with(net, &Profile::parse(&text));
    let profile = client.warren.config("home.toml");
    // The daemon is started by a shell and is not a child of this process, so that only the debugger waits for it.
    let run = format!("WARREN_SANDBOX={sandbox} \"$@\" & wait");
    let shell =
        client.warren.start_under(&["sh", "-c", &run, "sh"], &format!("client run {}", profile.display()));
    eventually(seconds(20), "the daemon answers", || client.warren.status().is_some());
    (client, shell)
}

fn pid_of(client: &Client<'_>) -> i32 {
    i32::try_from(client.status().number("/pid")).unwrap()
}

/// Checks that a process has few capabilities, cannot gain others, and leaves no core file.
fn assert_rights_and_core(pid: i32) {
    assert_rights_are_few(pid);
    for set in of_each_thread(pid, "CapBnd:") {
        assert_eq!(u64::from_str_radix(&set, 16).unwrap(), 0x1000, "CapBnd:");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().filter(|word| *word == "0").count(), 2, "{core}");
}

/// A socket that only root may write to.
struct Receiver {
    socket: std::os::unix::net::UnixDatagram,
    path: String,
    _directory: tempfile::TempDir,
}

impl Receiver {
    fn bind() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let path = directory.path().join("socket");
        let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, path: path.to_str().unwrap().to_owned(), _directory: directory }
    }

    /// The datagram that has arrived, if any.
    fn received(&self) -> Option<String> {
        let mut buffer = [0; 64];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

/// The socket descriptors of a process.
fn sockets_of(pid: i32) -> Vec<i32> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|fd| fd.unwrap().path());
    let is_socket = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let number = |path: std::path::PathBuf| path.file_name()?.to_str()?.parse().ok();
    descriptors.filter(is_socket).filter_map(number).collect()
}
