//! strace makes system calls of running daemons fail; the tunnel must survive it.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::time::Duration;

use crate::support::{Client, Exit, Net, Running, asked, eventually, seconds};

/// The faults: system calls of which every one, or every second to fourth one, fails for a while. Calls on the TUN are selected
/// by the file's path.
const FAULTS: [Fault; 14] = [
    carrier("sendmsg,sendmmsg:error=ENOBUFS"),
    carrier("sendmsg,sendmmsg:error=EAGAIN:when=1+3"),
    carrier("sendmsg,sendmmsg:error=EPERM"),
    carrier("sendmsg,sendmmsg:error=ENETUNREACH:when=1+2"),
    carrier("sendmsg,sendmmsg:error=EIO:when=1+3"),
    carrier("sendmsg,sendmmsg:error=EINVAL:when=1+3"),
    carrier("recvmsg,recvmmsg:error=EIO:when=1+3"),
    carrier("recvmsg,recvmmsg:error=ENOBUFS:when=1+3"),
    carrier("sendmsg,sendmmsg,recvmsg,recvmmsg,epoll_wait,read,writev:error=EINTR:when=1+4"),
    tun("writev:error=ENOBUFS:when=1+2"),
    tun("writev:error=EIO"),
    tun("writev:error=EINVAL:when=1+2"),
    tun("read:error=EIO:when=1+2"),
    tun("read:error=EAGAIN:when=1+3"),
];

/// For row F17 of the scorecard (docs/torture.md), run this test with `WARREN_FAULT_SECONDS=10`, the time of each of the 28
/// faults.
#[test]
#[ignore = "needs strace and takes minutes; `scripts/torture faults` runs it"]
fn system_calls_that_fail_end_no_daemon_and_no_tunnel() {
    let Some(net) = Net::new() else { return };
    // strace must exist, because without it the test would pass without any fault.
    net.client.sh("command -v strace").ok();
    let fault_seconds = asked("WARREN_FAULT_SECONDS");
    let lasting: u64 = fault_seconds.unwrap_or(1);
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let mut daemon = client.run("info");
    let (mut slowest, mut most_lines) = (Duration::ZERO, 0);
    let failed = |client: &Client<'_>| client.status().number("/totals/connections_ended");
    let ended = failed(&client);

    for (role, of) in [("client", &mut daemon), ("exit", exit.daemon())] {
        for Fault { file, calls } in FAULTS {
            let lines = lines_of(of);
            let injected = net.client.sh(&format!(
                "timeout -s INT {lasting} strace -qq -f -p {} {file} -e inject={calls} -o /dev/null & \
                 ping -q -c {} -i 0.1 -W 1 203.0.113.2; wait",
                of.pid(),
                lasting * 9,
            ));
            let passes = || net.client.sh("ping -c 1 -W 0.3 203.0.113.2").succeeded();
            let back = eventually(seconds(30), calls, passes);
            let lines = lines_of(of) - lines;
            let lost = injected.stdout.lines().find(|line| line.contains("packet loss")).unwrap_or_default();
            println!("{role} {file} {calls}: back {back:.1?} after, {lines} lines; {lost}");
            assert!(of.is_running() && Path::new(&format!("/proc/{}", of.pid())).exists(), "{}", of.output());
            slowest = slowest.max(back);
            most_lines = most_lines.max(lines);
        }
    }

    println!(
        "measured: {} faults of {lasting} s, both daemons alive, traffic back {slowest:.1?} after at the latest, {most_lines} lines of \
         log at most, {} connections ended",
        2 * FAULTS.len(),
        failed(&client) - ended
    );
    // The test suite allows more time, because a daemon that could send nothing at all retries with growing pauses.
    let within = if fault_seconds.is_some() { seconds(1) } else { seconds(2) };
    assert!(slowest <= within, "{slowest:?}");
    assert!(most_lines as u64 <= 10 * lasting, "{most_lines} lines");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(seconds(10)), Some(0));
    client.assert_host_unchanged();
}

/// Failing calls in strace's syntax, and options that select their files.
#[derive(Clone, Copy)]
struct Fault {
    file: &'static str,
    calls: &'static str,
}

const fn carrier(calls: &'static str) -> Fault {
    Fault { file: "", calls }
}

const fn tun(calls: &'static str) -> Fault {
    Fault { file: "-P /dev/net/tun", calls }
}

fn lines_of(daemon: &Running) -> usize {
    daemon.output().lines().count()
}
