//! Completions as a shell asks for them.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::finished;

/// Returns the words that bash offers for the last word of a line.
fn offered(directory: &Path, line: &str) -> Vec<String> {
    let script = format!(
        "source <(warren completions bash); COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; \
         _clap_complete_warren warren \"${{COMP_WORDS[COMP_CWORD]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).env("PATH", path).env("WARREN_CONFIG_DIR", directory.join("config"));
    bash.env("WARREN_RUNTIME_DIR", directory.join("run")).env("WARREN_STATE_DIR", directory.join("state"));
    let words = finished(&mut bash).ok();
    // Options are removed unless the line contains one, because for an empty word bash also offers all options.
    let is_asked = |word: &&str| !word.starts_with("--") || line.contains("--");
    words.lines().map(str::trim).filter(is_asked).map(str::to_owned).collect()
}

#[test]
fn bash_knows_commands_profiles_clients_and_settings() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["bin", "config"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_warren"), directory.path().join("bin/warren")).unwrap();
    let warren = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warren"));
        for name in ["config", "state"] {
            command.arg(format!("--{name}-dir={}", directory.path().join(name).display()));
        }
        let run = directory.path().join("run");
        finished(command.arg(format!("--runtime-dir={}", run.display())).args(line.split(' '))).ok()
    };
    warren("exit init --endpoint 192.0.2.1");
    let profile = warren("exit client add laptop");
    warren("exit client add phone");
    for name in ["home", "work"] {
        std::fs::write(directory.path().join(format!("config/{name}.toml")), "").unwrap();
    }

    // A profile with two exits.
    let second = profile[profile.find("[[exit]]").unwrap()..].split("\n\n").next().unwrap().to_owned();
    let both = format!("{profile}\n{}\n", second.replace("192.0.2.1", "second.example"));
    let away = directory.path().join("config/away.toml");
    std::fs::write(&away, both).unwrap();
    std::fs::set_permissions(&away, std::fs::Permissions::from_mode(0o600)).unwrap();

    let offered = |line: &str| offered(directory.path(), line);

    assert_eq!(offered("warren up ''"), ["away", "home", "work"]);
    assert_eq!(offered("warren up away --exit 192"), ["192.0.2.1:443"]);
    assert_eq!(offered("warren reload e"), ["exit"]);
    assert_eq!(offered("warren exit client disable ''"), ["laptop", "phone"]);
    assert_eq!(offered("warren exit client set ph"), ["phone"]);
    assert_eq!(offered("warren set max_transmit_"), ["max_transmit_datagrams", "max_transmit_segments"]);
    assert_eq!(offered("warren set congestion b"), ["bbr3"]);
    assert_eq!(offered("warren exit in"), ["init", "invite"]);
    assert_eq!(offered("warren exit client ren"), ["rename"]);
    assert_eq!(offered("warren up --k"), ["--kill-switch"]);
    // `warren-fleet` completes its own commands.
    if Path::new(env!("CARGO_BIN_EXE_warren")).with_file_name("warren-fleet").exists() {
        assert_eq!(offered("warren fleet sta"), ["status"]);
        assert_eq!(offered("warren fleet ticket --ex"), ["--expires"]);
    }
}
