//! When one part of a daemon panics, the whole daemon ends. The changes that it leaves are undone as after SIGKILL.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::daemon::Warren;
use crate::support::{Client, Exit, HostState, Net, Running, eventually, seconds, signal};

/// The daemon's main task, a worker thread, another task, and a thread for blocking work.
const PARTS: [&str; 4] = ["daemon", "worker", "task", "aside"];

#[test]
fn panic_of_any_part_of_a_client_ends_all_of_it_and_cleanup_or_the_next_start_undoes_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    for (number, part) in PARTS.into_iter().enumerate() {
        let mut daemon = client.run("info");

        break_down(&client.warren, "home", part);

        assert_ends_at_once(&mut daemon, part);
        if number % 2 == 0 {
            client.warren.run("cleanup").ok();
        } else {
            client.up();
            client.sh("ping -c 1 -W 5 203.0.113.2");
            client.warren.run("down home").ok();
        }
        client.assert_host_unchanged();
    }
    // The helper is a process of its own. Its end also ends the daemon.
    let mut daemon = client.run("info");
    signal(helper_of(&client, &daemon), Signal::ABORT);
    let code = daemon.wait(seconds(10));
    assert_eq!(code, Some(1), "{}", daemon.output());
    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
}

#[test]
fn panic_of_any_part_of_an_exit_ends_all_of_it_and_the_next_one_goes_on_with_its_clients() {
    let Some(net) = Net::new() else { return };
    let before = HostState::of(&net.exit);
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    for part in PARTS {
        break_down(&exit.warren, "exit", part);

        assert_ends_at_once(exit.daemon(), part);
        exit.run();
        eventually(seconds(30), "the client is back", || {
            net.client.sh("ping -c 1 -W 0.5 203.0.113.2").succeeded()
        });
    }
    break_down(&exit.warren, "exit", "worker");
    assert_ends_at_once(exit.daemon(), "worker");
    exit.warren.run("cleanup").ok();
    before.assert_same(&HostState::of(&net.exit));
}

/// Asks a daemon to panic in `part`. `warren` itself never sends this request.
fn break_down(warren: &Warren<'_>, daemon: &str, part: &str) {
    let socket = warren.state(&format!("../runtime/{daemon}/control.sock"));
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, "{{\"request\":\"break_down\",\"part\":\"{part}\"}}").unwrap();
    // Reading may fail, because the daemon may have ended without an answer.
    drop(stream.read_to_string(&mut String::new()));
}

#[track_caller]
fn assert_ends_at_once(daemon: &mut Running, part: &str) {
    let took = eventually(seconds(1), part, || !daemon.is_running());
    println!("{part}: ended after {took:?}");
    let code = daemon.wait(Duration::from_secs(1));
    assert_ne!(code, Some(0), "{part}, after {took:?}: {}", daemon.output());
    assert!(daemon.output().contains("panicked at"), "{part}: {}", daemon.output());
}

/// The privileged helper process of a client's daemon.
fn helper_of(client: &Client<'_>, daemon: &Running) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let children = std::fs::read_to_string(children).unwrap();
    let is_helper = |pid: &str| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|word| word == "helper")
    };
    let pid = children.split_whitespace().find(|pid| is_helper(pid));
    pid.unwrap_or_else(|| panic!("no helper on {}", client.warren.host.name())).parse().unwrap()
}
