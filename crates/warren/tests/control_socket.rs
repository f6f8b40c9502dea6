//! The control socket against other users of the host. A user other than root cannot use, replace or redirect it.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Client, Exit, ExitOptions, HostState, Net, eventually, seconds};

/// Another user's attempts to replace the socket, or to change the mode of the file at its path.
const ATTEMPTS: &str = "
refused=0 done=0
while test ! -e stop; do
  for act in 'rm -f' \"ln -sfn $2\" \"mv -f $2\" 'chmod 777'; do
    if $act \"$1\" 2>/dev/null; then done=$((done + 1)); else refused=$((refused + 1)); fi
  done
done
echo refused $refused done $done
";

/// Scorecard A9.
#[test]
fn another_user_neither_asks_nor_replaces_the_control_socket_while_daemons_start_and_stop() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    let socket = exit.warren.state("../runtime/exit/control.sock");
    // The file is readable and writable for everybody, so that an unwanted change of its mode or content is detected.
    let target = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(target.path(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let work = tempfile::tempdir().unwrap();
    std::fs::set_permissions(work.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = work.path().join("attempts");
    std::fs::write(&script, ATTEMPTS).unwrap();
    let line = format!(
        "chmod a+rx {0} && cd {0} && exec setpriv --reuid=65534 --regid=65534 --clear-groups sh {1} {2} {3}",
        work.path().display(),
        script.display(),
        socket.canonicalize().unwrap().display(),
        target.path().display()
    );
    // All directories above the socket are open. Only the socket's own directory keeps other users out.
    let above = exit.warren.state("../runtime").canonicalize().unwrap();
    for directory in above.ancestors().take(2) {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut attempts = net.exit.start(&["sh", "-c", &line]);

    for _ in 0..10 {
        exit.stop(Signal::TERM);
        exit.run();
        let metadata = std::fs::symlink_metadata(&socket).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o600, 0));
    }
    std::fs::write(work.path().join("stop"), "").unwrap();
    attempts.wait(seconds(30));
    let counted = attempts.output();
    println!("measured: of another user's attempts {}", counted.trim());
    let refused: u64 = counted.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(refused > 100 && counted.trim_end().ends_with("done 0"), "{counted}");
    assert_eq!(std::fs::metadata(target.path()).unwrap().permissions().mode() & 0o777, 0o666);

    // The control: the same attempts succeed when the directory is open to everybody.
    std::fs::remove_file(work.path().join("stop")).unwrap();
    let open = socket.parent().unwrap();
    std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut attempts = net.exit.start(&["sh", "-c", &line]);
    eventually(seconds(20), "another user's link replaces the socket", || {
        std::fs::symlink_metadata(&socket).is_ok_and(|metadata| metadata.is_symlink())
    });
    std::fs::write(work.path().join("stop"), "").unwrap();
    attempts.wait(seconds(30));
    assert!(!attempts.output().trim_end().ends_with("done 0"), "{}", attempts.output());
    // A daemon refuses to use a directory that others may write to.
    exit.daemon().signal(Signal::TERM);
    exit.daemon().wait(seconds(10));
    let refused = exit.warren.run("exit run");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("others may write to"), "{refused:?}");
}

#[test]
fn no_daemon_starts_in_a_directory_that_others_can_write_to() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let before = HostState::of(&net.exit);
    let runtime = |warren: &crate::support::daemon::Warren<'_>| warren.state("../runtime");
    for warren in [&exit.warren, &client.warren] {
        std::fs::set_permissions(runtime(warren), std::fs::Permissions::from_mode(0o777)).unwrap();
    }

    for (warren, line) in [(&exit.warren, "exit run"), (&client.warren, "up home --timeout 5s")] {
        let refused = warren.run(line);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert_eq!(refused.stderr.trim_end().lines().count(), 1, "{refused:?}");
        assert!(refused.stderr.contains("others may write to"), "{refused:?}");
    }
    before.assert_same(&HostState::of(&net.exit));
    client.assert_host_unchanged();
}

/// The exit has a user of its own. An attacker who takes over that user must not become root through commands that root runs in
/// the exit's directories.
#[test]
fn what_the_exits_user_leaves_does_not_lead_roots_commands_astray() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let runtime = exit.warren.state("../runtime/exit");
    let clients = exit.warren.state("exit/clients.toml.lock");
    let state = clients.parent().unwrap().to_path_buf();
    for directory in [&runtime, &state] {
        std::fs::create_dir_all(directory).unwrap();
        chown(directory, Some(65_534), Some(65_534)).unwrap();
    }
    let place = net.exit.sh("cat /proc/sys/kernel/random/boot_id; stat -Lc %d:%i /proc/self/ns/net").ok();
    let place: Vec<&str> = place.lines().collect();
    let journal = |key: &str, set: &str, previous: &str| {
        let lines = [
            json!({"place": {"boot": place[0], "namespace": place[1]}}),
            json!({"begin": {"entry": 0, "undo": {"sysctl":
                {"key": key, "set": set, "previous": previous, "companions": []}}}}),
        ];
        std::fs::write(runtime.join("lock"), "").unwrap();
        std::fs::write(runtime.join("journal"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
    };
    let setting =
        |key: &str| net.exit.sh(&format!("cat /proc/sys/{}", key.replace('.', "/"))).ok().trim().to_owned();

    // The control: root's commands do undo a journal entry that restores a network setting.
    let ours = "net.ipv4.conf.lo.log_martians";
    journal(ours, &setting(ours), "1");
    assert_eq!(exit.warren.run("cleanup exit").code, Some(0));
    assert_eq!(setting(ours), "1");
    let theirs = "kernel.printk_ratelimit_burst";
    let before = setting(theirs);
    journal(theirs, &before, "77");
    let refused = exit.warren.run("cleanup exit");
    assert_eq!(setting(theirs), before);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("not a network setting"), "{refused:?}");

    let target = tempfile::NamedTempFile::new().unwrap();
    let absent = target.path().with_extension("absent");
    for (link, line) in [
        (runtime.join("journal"), "cleanup exit"),
        (runtime.join("lock"), "cleanup exit"),
        (clients, "exit client add phone"),
    ] {
        for leads_to in [target.path(), &absent] {
            std::fs::write(target.path(), "not a journal").unwrap();
            let _ = std::fs::remove_file(&link);
            symlink(leads_to, &link).unwrap();
            let refused = exit.warren.run(line);
            // A dangling link in place of the journal is treated like a missing journal.
            if leads_to.exists() || !link.ends_with("journal") {
                assert_eq!(refused.code, Some(1), "{line}: {refused:?}");
                assert!(refused.stderr.contains("symbolic link"), "{line}: {refused:?}");
            }
            assert_eq!(std::fs::read_to_string(target.path()).unwrap(), "not a journal");
            assert_eq!(std::fs::metadata(target.path()).unwrap().uid(), 0);
            assert!(!absent.exists(), "{line}");
        }
        std::fs::remove_file(&link).unwrap();
    }
    std::fs::remove_file(runtime.join("journal")).ok();
}

#[test]
fn what_is_no_question_is_refused_and_the_daemon_goes_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let socket = exit.warren.state("../runtime/exit/control.sock");
    let deep = [vec![b'['; 100_000], vec![b'\n']].concat();
    let long_name = format!("{{\"request\":\"client_remove\",\"name\":\"{}\"}}\n", "x".repeat(1_000_000));
    let questions: [(&[u8], &str); 7] = [
        (&vec![b'x'; 10_000_000], "longer than 4 MiB"),
        (&deep, "not understood"),
        (b"{\"request\":\"status\"", "not a line"),
        (b"{\"request\":\"fly\"}\n", "not understood"),
        (b"\xff\xfe\x00\n", ""),
        (b"\n", "not understood"),
        (long_name.as_bytes(), "no client"),
    ];
    for (question, says) in questions {
        let answer = ask(&socket, question);
        assert!(answer.contains(says), "{says:?} is not in: {answer}");
        assert!(answer.len() < 2_000_000 && !answer.contains("\"Ok\""), "{answer}");
        assert!(exit.warren.status().is_some(), "the exit still answers after {says:?}");
    }
}

/// Sends bytes to the socket and returns the answer. The daemon may stop reading early.
fn ask(socket: &Path, question: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(seconds(10))).unwrap();
    let _ = stream.write_all(question);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    // A daemon that stops reading early answers first and then resets the connection.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}
