//! On a kernel that lacks a sandbox feature, daemons report this and work without the feature.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use std::collections::BTreeMap;

use rustix::process::Signal;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;

use crate::support::{Client, Exit, ExitOptions, Net, seconds};

/// This test and the next are the second half of scorecard S3.
#[test]
fn daemons_whose_kernel_has_no_landlock_say_so_and_work() {
    let warning = "this kernel has no landlock";
    let Some(statuses) = tunnel_without(libc::SYS_landlock_create_ruleset, warning) else { return };
    for status in statuses {
        let sandbox = &status["process"]["sandbox"];
        assert_eq!(sandbox["files"], "unconfined");
        assert_eq!(sandbox["system_calls"], true, "the rest of the sandbox works: {sandbox}");
        assert_eq!(sandbox["rights"], true);
    }
}

#[test]
fn daemons_whose_kernel_has_no_seccomp_say_so_and_work() {
    let warning = "this kernel has no seccomp filters";
    let Some(statuses) = tunnel_without(libc::SYS_seccomp, warning) else { return };
    for status in statuses {
        let sandbox = &status["process"]["sandbox"];
        assert_eq!(sandbox["system_calls"], false);
        assert_eq!(sandbox["rights"], true, "the rest of the sandbox works: {sandbox}");
    }
}

#[test]
fn daemons_whose_kernel_has_no_io_uring_say_so_and_work() {
    let information = "io_uring is not available";
    let Some(statuses) = tunnel_without(libc::SYS_io_uring_setup, information) else { return };
    for status in statuses {
        assert_eq!(status["transport"]["tun_writes"], "writev");
        assert!(status["totals"]["tun_writes"].as_u64() > Some(0), "{status}");
        assert_eq!(status["process"]["sandbox"]["system_calls"], true, "the sandbox works");
    }
}

/// Runs a tunnel between two daemons whose kernel lacks a system call. Fails unless both say so and packets
/// pass. Returns their statuses, or `None` without root.
fn tunnel_without(call: libc::c_long, warning: &str) -> Option<[Value; 2]> {
    let net = Net::new()?;
    let mut exit = Exit::init(&net, &ExitOptions::default());
    without(call, || exit.run());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let mut daemon = without(call, || client.run("info"));

    client.sh("ping -c 3 -i 0.2 -W 5 203.0.113.2");
    client.sh("curl -sS --max-time 30 -o /dev/null http://203.0.113.2/bytes/2000000");

    let statuses = [exit.status(), client.status()].map(|status| status.0);
    for log in [exit.daemon().output(), daemon.output()] {
        assert!(log.contains(warning), "{log}");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(seconds(10)), Some(0), "{}", daemon.output());
    client.assert_host_unchanged();
    Some(statuses)
}

/// Starts a program on a thread for which a system call returns ENOSYS. The program and its children inherit this.
fn without<T: Send>(call: libc::c_long, start: impl FnOnce() -> T + Send) -> T {
    let calls = BTreeMap::from([(call, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, unknown, architecture).unwrap();
    let program = BpfProgram::try_from(filter).unwrap();
    let filtered = || {
        seccompiler::apply_filter(&program).unwrap();
        start()
    };
    std::thread::scope(|scope| scope.spawn(filtered).join().unwrap())
}
