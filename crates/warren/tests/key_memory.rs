//! Tests how many copies of private keys are in daemons' memory, and which processes may read that memory.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;

use crate::support::memory::{copies_in, copies_on};
use crate::support::{Client, Exit, Namespace, Net, eventually, seconds};

/// Scorecard S9.
#[test]
fn a_key_is_in_memory_once_its_text_nowhere_and_neither_once_it_is_done_with() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    client.up();
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    let exit_key = key_in(&exit);
    let client_key = profile.value("client", "private_key").to_owned();

    for (host, own, other) in [(&net.exit, &exit_key, &client_key), (&net.client, &client_key, &exit_key)] {
        assert_copies(own, host, Copies::ONE, "its own key");
        assert_copies(other, host, Copies::NONE, "the other side's key");
    }
    let public = STANDARD.decode(exit.status().text("/public_key")).unwrap();
    assert!(copies_on(&net.exit, &public) > 0 && copies_on(&net.client, &public) > 0, "the control");
    assert!(copies_in_a_careless_program(&net.client, &exit_key) > 0, "the control");

    // A second key is added through the control socket.
    exit.warren.run("exit rotate-key").ok();
    let new_key = key_in(&exit);
    for key in [&exit_key, &new_key] {
        assert_copies(key, &net.exit, Copies::ONE, "while there are two keys");
    }
    exit.warren.run("exit rotate-key --retire").ok();
    assert_copies(&exit_key, &net.exit, Copies::NONE, "a retired key");
    exit.warren.run("reload exit").ok();
    assert_copies(&new_key, &net.exit, Copies::ONE, "after a reload");

    client.down();
    assert_copies(&client_key, &net.client, Copies::NONE, "after `down`");
    exit.stop(Signal::TERM);
    assert_copies(&new_key, &net.exit, Copies::NONE, "after the exit has ended");
}

#[test]
fn a_process_of_the_same_user_can_neither_debug_a_daemon_nor_read_its_memory() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    // Runs a command as root with the daemons' capabilities and no others.
    let looks = |pid: i32, how: &str| {
        let set = ["bounding-set", "inh-caps", "ambient-caps"].map(|set| format!("--{set}=-all,+net_admin"));
        net.exit
            .sh(&format!("setpriv {} {}", set.join(" "), how.replace("PID", &pid.to_string())))
            .succeeded()
    };
    let ways = [
        "sh -c 'exec < /proc/PID/mem'",
        "sh -c 'exec < /proc/PID/maps'",
        "sh -c 'cat /proc/PID/environ'",
        // PTRACE_SEIZE, which ends with the tracing process.
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, PID, 0, 0) != 0)'",
    ];
    let sleeper = net.exit.start(&["setpriv", "--bounding-set=-all,+net_admin", "sleep", "600"]);
    let other = sleeper.pid();

    for how in ways {
        eventually(seconds(10), "the control: a process without this protection can be read", || {
            looks(other, how)
        });
        for host in [&net.exit, &net.client] {
            for pid in host.pids().into_iter().filter(|pid| *pid != other) {
                assert!(!looks(pid, how), "{how} works on {pid}");
            }
        }
    }
    client.down();
}

/// The number of copies of a private key in the memory of a host's processes.
#[derive(Debug, PartialEq)]
struct Copies {
    /// The seed of RFC 8032.
    seed: usize,
    /// The half of the seed's hash that signing uses directly.
    hash: usize,
    /// The text form, as in the key file.
    text: usize,
}

impl Copies {
    const NONE: Self = Self { seed: 0, hash: 0, text: 0 };
    const ONE: Self = Self { seed: 1, ..Self::NONE };

    fn of(key: &str, host: &Namespace) -> Self {
        let seed = STANDARD.decode(key).unwrap();
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA512, &seed);
        let [seed, hash, text] =
            [&seed, &hash.as_ref()[32..], key.as_bytes()].map(|part| copies_on(host, part));
        Self { seed, hash, text }
    }
}

/// Tries several times, because a handshake in progress copies the key for some microseconds.
#[track_caller]
fn assert_copies(key: &str, host: &Namespace, wanted: Copies, what: &str) {
    let mut found = Copies::of(key, host);
    for _ in 0..5 {
        if found == wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
        found = Copies::of(key, host);
    }
    panic!("{what}: {found:?} on {}", host.name());
}

fn key_in(exit: &Exit<'_>) -> String {
    let text = std::fs::read_to_string(exit.warren.config("exit.key")).unwrap();
    text.lines().next().unwrap().to_owned()
}

/// The number of copies of a key's text in the memory of a shell that has read it.
fn copies_in_a_careless_program(host: &Namespace, key: &str) -> usize {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), key).unwrap();
    let line = format!("read key < {}; echo ready; sleep 600", file.path().display());
    let shell = host.start(&["sh", "-c", &line]);
    eventually(seconds(10), "the shell has read it", || shell.output().contains("ready"));
    copies_in(shell.pid(), key.as_bytes())
}
