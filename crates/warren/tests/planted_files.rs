//! Symbolic links, FIFOs and hard links that the exit's user puts into its directories do not harm root's commands.
//!
//! An attacker who takes over the exit's daemon acts as the daemon's user. Such an attacker must not become root or
//! block root through these files.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::{Exit, ExitOptions, Net, seconds};

/// The exit's user.
const USER: u32 = 65_534;
/// The content of a file that root's commands must not read or change.
const SECRET: &str = "root:$6$secret:";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Symlink,
    Fifo,
    HardLink,
}

impl Planted {
    const ALL: [Self; 3] = [Self::Symlink, Self::Fifo, Self::HardLink];

    fn says(self) -> &'static str {
        match self {
            Self::Symlink => "symbolic link",
            Self::Fifo => "not a regular file",
            Self::HardLink => "hard link",
        }
    }

    fn put(self, at: &Path, theirs: &Path) {
        let _ = std::fs::remove_file(at);
        match self {
            Self::Symlink => symlink(theirs, at).unwrap(),
            Self::Fifo => mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
            Self::HardLink => std::fs::hard_link(theirs, at).unwrap(),
        }
    }
}

#[test]
fn root_s_commands_follow_and_wait_for_nothing_that_the_exit_s_user_planted() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    exit.enrol("laptop");
    let runtime = exit.warren.state("../runtime/exit");
    let state = exit.warren.state("exit");
    std::fs::create_dir_all(&runtime).unwrap();
    for path in [&runtime, &state] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    for file in ["clients.store", "clients.toml.lock"] {
        chown(state.join(file), Some(USER), Some(USER)).unwrap();
    }
    std::fs::write(runtime.join("lock"), "").unwrap();
    let theirs = state.with_file_name("theirs");
    let files: [(PathBuf, &[&str]); 6] = [
        (
            state.join("clients.store"),
            &["exit client list", "exit client show laptop", "exit client add phone", "exit invite tablet"],
        ),
        (state.join("clients.toml"), &["exit client add phone", "exit invite tablet"]),
        (state.join("clients.toml.lock"), &["exit client add phone", "exit client remove laptop"]),
        (runtime.join("journal"), &["cleanup exit", "cleanup", "status"]),
        (runtime.join("lock"), &["cleanup exit"]),
        (runtime.join("kill-switch"), &["cleanup exit"]),
    ];

    for (file, commands) in &files {
        let before = std::fs::read(file).ok();
        for planted in Planted::ALL {
            for line in *commands {
                // The text has no final line break, so a reader of journals would truncate it as an unfinished line.
                std::fs::write(&theirs, SECRET).unwrap();
                planted.put(file, &theirs);
                let refused = within_time(&exit, line);
                let what = format!("{planted:?} at {}, {line}: {refused:?}", file.display());
                let is_refused = refused.code == Some(1) && refused.output.contains(planted.says());
                assert!(*line == "status" || is_refused, "{what}");
                assert!(!refused.output.contains("secret"), "{what}");
                assert!(*line == "status" || refused.output.trim_end().lines().count() == 1, "{what}");
                let metadata = std::fs::metadata(&theirs).unwrap();
                assert_eq!((metadata.uid(), metadata.gid()), (0, 0), "{what}");
                assert_eq!(std::fs::read_to_string(&theirs).unwrap(), SECRET, "{what}");
            }
        }
        std::fs::remove_file(file).unwrap();
        // The control: with the regular file in its place, the same commands succeed.
        if let Some(content) = before {
            std::fs::write(file, content).unwrap();
            chown(file, Some(USER), Some(USER)).unwrap();
        }
        for line in commands.iter().filter(|line| **line != "status" && !line.contains("remove")) {
            let done = within_time(&exit, line);
            assert_eq!(done.code, Some(0), "{line}: {done:?}");
        }
        for name in ["phone", "tablet"] {
            exit.warren.run(&format!("exit client remove {name}"));
        }
    }
}

#[test]
fn control_socket_and_log_lead_nowhere_else() {
    let Some(net) = Net::new() else { return };
    let mut other = Exit::start(&net);
    let exit = Exit::init_on(&net.client, &ExitOptions::second());
    let runtime = exit.warren.state("../runtime/exit");
    std::fs::create_dir_all(&runtime).unwrap();
    std::fs::write(runtime.join("lock"), "").unwrap();
    chown(&runtime, Some(USER), Some(USER)).unwrap();
    let socket = runtime.join("control.sock");
    let others = other.warren.state("../runtime/exit/control.sock");

    // The control: root gets an answer at the other daemon's own socket.
    assert!(other.warren.status().is_some());
    symlink(&others, &socket).unwrap();
    for line in ["exit client list", "exit rotate-key", "reload exit", "exit drain"] {
        let refused = within_time(&exit, line);
        assert_eq!(refused.code, Some(1), "{line}: {refused:?}");
        assert!(refused.output.contains("is not a socket"), "{line}: {refused:?}");
    }
    assert!(other.daemon().is_running() && other.warren.status().is_some());
    std::fs::remove_file(&socket).unwrap();

    for planted in Planted::ALL {
        let theirs = runtime.with_file_name("theirs");
        std::fs::write(&theirs, "warren: secret\n").unwrap();
        planted.put(&runtime.join("log"), &theirs);
        let said = within_time(&exit, "status");
        assert!(!said.output.contains("secret"), "{planted:?}: {said:?}");
    }
}

#[test]
fn the_exit_itself_waits_for_no_fifo_in_the_place_of_its_secrets() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("web", "listen", "127.0.0.1:9467"));
    let state = exit.warren.state("exit");
    std::fs::create_dir_all(&state).unwrap();

    for name in ["reset.key", "web.token", "clients.store", "clients.toml"] {
        let file = state.join(name);
        Planted::Fifo.put(&file, &state);
        let refused = within_time(&exit, "exit run");
        assert_eq!(refused.code, Some(1), "{name}: {refused:?}");
        assert!(refused.output.contains(name), "{refused:?}");
        std::fs::remove_file(file).unwrap();
    }
}

/// The result of a command.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    output: String,
}

/// Runs a command, which must not block on a FIFO that nobody writes to.
#[track_caller]
fn within_time(exit: &Exit<'_>, line: &str) -> Ended {
    let start = Instant::now();
    let mut command = exit.warren.start_under(&["timeout", "-k", "1", "20"], line);
    let code = command.wait(seconds(25));
    let output = command.output();
    assert!(code != Some(124) && start.elapsed() < seconds(20), "{line} waits: {output}");
    Ended { code, output }
}
