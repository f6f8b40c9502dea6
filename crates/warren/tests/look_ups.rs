//! The process that looks up names. In it, the C library parses answers from the network, so an attacker who takes over this
//! process must gain nothing.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "test code")]

use rustix::process::Signal;

use crate::support::injection::Injected;
use crate::support::rights::of_each_thread;
use crate::support::{Client, Exit, ExitOptions, Net, eventually, seconds, signal};

#[test]
fn a_look_up_that_was_taken_over_has_no_right_and_reads_no_file_of_its_own() {
    let Some(net) = Net::new() else { return };
    let exit =
        Exit::start_with(&net, &ExitOptions { endpoint: "exit.test:443".into(), ..ExitOptions::default() });
    let client = Client::with(&net, &exit.enrol("laptop"));
    let profile = client.warren.config("home.toml");
    // No answer comes, so the look-up keeps waiting.
    net.filter("udp dport 53 drop;");
    let mut daemon = client.warren.start(&format!("client run {}", profile.display()));
    let (mut found, mut helper) = (None, None);
    eventually(seconds(20), "a name look-up is running", || {
        found = net.client.pids().into_iter().find(|pid| is_look_up(*pid));
        helper = found.and_then(|pid| of_each_thread(pid, "PPid:").first()?.parse().ok());
        helper.is_some()
    });
    let files = client.status().text("/process/sandbox/files").to_owned();
    let (Some(pid), Some(helper)) = (found, helper) else { return };
    // The helper would end a slow look-up.
    signal(helper, Signal::STOP);

    for field in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert!(of_each_thread(pid, field).iter().all(|set| is_empty(set)), "{field}");
    }
    assert!(of_each_thread(pid, "NoNewPrivs:").iter().all(|value| value == "1"));
    let look_up = Injected::into(pid);
    // The control: the process may read the files that look-ups need.
    assert!(!look_up.open("/etc/hosts", libc::O_RDONLY).is_refused());
    if files == "unconfined" {
        println!("skipped: this kernel has no landlock");
    } else {
        for path in ["/etc/shadow", &profile.display().to_string()] {
            assert!(look_up.open(path, libc::O_RDONLY).is_refused(), "{path}");
        }
        assert!(look_up.open("/var/tmp", libc::O_TMPFILE | libc::O_RDWR).is_refused());
    }
    drop(look_up);
    signal(helper, Signal::CONT);
    net.unfilter();
    daemon.signal(Signal::TERM);
    daemon.wait(seconds(20));
}

/// Whether this is a look-up process that has dropped its privileges, which is its last step before the query.
fn is_look_up(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"look-up")
        && status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .is_some_and(|set| is_empty(set.trim()))
}

fn is_empty(set: &str) -> bool {
    u64::from_str_radix(set, 16).is_ok_and(|set| set == 0)
}
