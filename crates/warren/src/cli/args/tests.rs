//! Tests of command lines as a person types them.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::*;

mod documents;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn short_definition_of_a_start_means_the_same_as_the_full_one() {
    let short = |line: &str| Cli::of_start(line.split_whitespace().map(Into::into));
    let full = |line: &str| parse(line).ok();
    let text = |cli: Option<Cli>| cli.map(|cli| format!("{cli:?}"));
    for line in [
        "warren up",
        "warren up home --timeout 30s --exit second --kill-switch",
        "warren up home --dry-run",
        "warren --config-dir /tmp/c up ./home.toml --state-dir /tmp/s --log debug --log-format json",
        "warren down",
        "warren down --all",
        "warren client run --detached home.toml",
        "warren client close home --watch",
        "warren --log debug --runtime-dir /tmp/r helper -- home",
    ] {
        assert!(short(line).is_some(), "{line}");
        assert_eq!(text(short(line)), text(full(line)), "{line}");
    }
    // The full definition answers these.
    for line in [
        "warren",
        "warren --version",
        "warren --help",
        "warren help up",
        "warren up --help",
        "warren up --no-such-option",
        "warren up --timeout never",
        "warren u",
        "warren client",
        "warren client close --help",
        "warren helper",
        "warren status",
        "warren exit run",
    ] {
        assert!(short(line).is_none(), "{line}");
    }
}

#[test]
fn command_lines_of_the_contract_are_understood() {
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    for line in [
        "warren exit init",
        "warren exit init --endpoint exit.example.net",
        "warren exit init --endpoint [2001:db8::1]:8443 --ipv4 10.66.0.0/16 --ipv6 fd66:6666::/64",
        "warren exit run",
        "warren exit import wireguard wg0.conf --output profiles --dry-run",
        "warren exit rotate-key --retire",
        "warren exit rotate-key --retire --end-sessions",
        "warren doctor --json --fix",
        "warren exit client add laptop",
        &format!(
            "warren exit client add laptop --public-key {key} --ipv4 10.66.0.9 --ipv6 fd66::9 --output a.toml"
        ),
        "warren exit client list --json",
        "warren exit client show laptop --json",
        "warren exit client remove laptop",
        "warren exit client rename laptop desk",
        "warren exit client disable laptop",
        "warren exit client enable laptop",
        "warren exit client set laptop --ipv4 10.66.0.9 --ipv6 auto",
        "warren exit client set laptop --prefix 10.1.0.0/16 --prefix fd00::/64",
        "warren exit client set laptop --no-prefixes",
        "warren exit drain --timeout 1min",
        "warren exit audit",
        "warren exit audit --client laptop --limit 20 --json",
        "warren reload",
        "warren reload home",
        "warren up",
        "warren up home --timeout 30s",
        "warren --config-dir /tmp/c up ./home.toml --state-dir /tmp/s --log debug --log-format json",
        "warren down",
        "warren down home",
        "warren down --all",
        "warren client run home.toml",
        "warren status",
        "warren status home --json",
        "warren status --changes",
        "warren status exit --all",
        "warren list --json",
        "warren logs home -f -n 20",
        "warren exits home --json",
        "warren fleet status --json",
        "warren fleet --help",
        "warren exit init --fleet warrenfleet1:abc",
        "warren up home --exit exit.example.net",
        "warren exit drain --yes",
        "warren set max_transmit_segments 10",
        "warren set congestion off --profile exit",
        "warren portal",
        "warren portal home --timeout 2min --url http://192.0.2.1/",
        "warren portal home -- w3m http://example.com/",
        "warren network office",
        "warren keygen",
        "warren pubkey",
        "warren cleanup",
        "warren cleanup --keep",
        "warren cleanup exit",
        "warren cleanup home --keep",
        "warren completions bash",
        "warren man /tmp/man",
    ] {
        assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
    }
}

#[test]
fn a_wrong_time_is_answered_with_a_right_one() {
    for (line, says) in [
        ("warren portal --timeout 0", "must be from 1s to 5min"),
        ("warren portal --timeout 10min", "must be from 1s to 5min"),
        ("warren exit invite laptop --expires 0", "must be from 1s to 366d"),
        ("warren exit invite laptop --expires 12", "needs a unit, such as 12h or 12min"),
    ] {
        let error = parse(line).expect_err(line).to_string();
        assert!(error.contains(says), "{line}: {error}");
    }
    assert_eq!(values::portal_time("5min"), Ok(warren_client::portal::LONGEST));
}

#[test]
fn wrong_command_lines_end_with_the_usage_code() {
    for line in [
        "warren",
        "warren exit",
        "warren exit init --endpoint host:0",
        "warren exit init --endpoint a --ipv4 10.0.0.1/8",
        "warren exit init --endpoint a --ipv6 10.0.0.0/8",
        "warren exit init --fleet warrenfleet1:abc --ipv4 10.66.0.0/16",
        "warren exit client add",
        "warren exit client set laptop",
        "warren exit client set laptop --ipv4 fd00::1",
        "warren exit client rename laptop",
        "warren exit client add a --public-key short",
        "warren exit client add a --ipv4 fd00::1",
        "warren portal --url https://example.com/",
        "warren portal --timeout 0",
        "warren portal --timeout 10min",
        "warren up --timeout 0",
        "warren up --timeout soon",
        "warren up --timeout 25h",
        "warren down home --all",
        "warren client run",
        "warren completions klingon",
        "warren reload home exit",
        "warren set congestion",
        "warren --log-format xml keygen",
        "warren --config-dir= keygen",
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for (line, kind) in [("warren --help", ErrorKind::DisplayHelp), ("warren -V", ErrorKind::DisplayVersion)]
    {
        let error = parse(line).expect_err(line);
        assert_eq!((error.kind(), error.exit_code()), (kind, 0));
    }
}

#[test]
fn defaults_are_those_of_the_contract() {
    let global = parse("warren keygen").unwrap().global;
    assert_eq!(global.config_dir.to_str(), Some("/etc/warren"));
    assert_eq!(global.runtime_dir.to_str(), Some("/run/warren"));
    assert_eq!(global.state_dir.to_str(), Some("/var/lib/warren"));
    assert_eq!(global.log_format, LogFormat::Text);
    let Command::Up(up) = parse("warren up").unwrap().command else { panic!("not up") };
    assert_eq!(up.timeout, Duration::from_secs(15));
}

#[test]
fn global_options_have_the_environment_variables_of_the_contract() {
    let command = Cli::command();
    let variables = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
    assert_eq!(
        variables.collect::<Vec<_>>(),
        ["WARREN_CONFIG_DIR", "WARREN_RUNTIME_DIR", "WARREN_STATE_DIR", "WARREN_LOG", "WARREN_LOG_FORMAT"]
    );
}

#[test]
fn every_command_and_option_has_help() {
    fn check(command: &clap::Command) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "{} {}", command.get_name(), argument.get_id());
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn examples_in_help_can_be_typed() {
    fn check(command: &clap::Command) {
        let invite = Invite {
            endpoint: "exit.example.net:443".to_owned(),
            exit_key: warren_session::PublicKey([7; 32]),
            name: "laptop".to_owned(),
            token: warren_session::invite::InviteToken::new([9; 16]),
        };
        let invite = invite.to_string();
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|line| line.trim().strip_prefix("warren ")) {
            let typed = line.split("  ").next().unwrap().split(['>', '<', '|']).next().unwrap();
            let typed = typed.replace("KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
            let typed = typed.replace("warren1:...", &invite);
            assert!(parse(&format!("warren {typed}")).is_ok(), "{line}");
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn completions_and_man_pages_name_every_command() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = completions(shell).unwrap();
        assert!(script.contains(COMPLETION_VARIABLE) && script.contains("warren"), "{script}");
    }
    let directory = tempfile::tempdir().unwrap();
    man_pages(directory.path()).unwrap();
    for page in ["warren.1", "warren-up.1", "warren-exit-client-add.1"] {
        assert!(directory.path().join("man1").join(page).exists(), "{page}");
    }
}
