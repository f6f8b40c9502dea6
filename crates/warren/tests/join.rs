//! Enrolling a machine with an invitation on a running exit.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use warren_quic::key::PrivateKey;
use warren_session::invite::{Invite, InviteToken};

use crate::support::lying_exit::{Answers, LyingExit};
use crate::support::{Client, Exit, ExitOptions, Net, Profile, flows, seconds};

#[test]
fn one_line_on_the_exit_and_one_on_the_client_make_a_tunnel() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);

    let line = exit.warren.run("exit invite laptop").ok();
    let client = Client::bare(&net.client);
    let joined = client.warren.run(&arguments(&line)).ok();

    assert!(joined.starts_with("Enrolled as laptop and wrote "), "{joined}");
    let profile = client.warren.config("laptop.toml");
    assert_eq!(std::fs::metadata(&profile).unwrap().permissions().mode() & 0o7777, 0o600);
    client.warren.run("up").ok();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);
    client.warren.run("down").ok();
    client.assert_host_unchanged();
}

#[test]
fn an_invitation_works_once_and_its_token_is_kept_nowhere() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let line = exit.warren.run("exit invite laptop").ok();
    let token_text = line.trim().rsplit_once(':').unwrap().1.to_owned();
    let first = Client::bare(&net.client);
    first.warren.run(&arguments(&line)).ok();

    let host = net.second_client();
    let second = Client::bare(&host);
    let refused = second.warren.run(&arguments(&line));

    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("was used, withdrawn or has expired"), "{}", refused.stderr);
    assert!(!second.warren.config("laptop.toml").exists(), "a refused machine keeps no profile");
    // The enrolled machine may use the invitation again, as it does when the answer was lost.
    first.warren.run(&arguments(&line)).ok();
    let registry = exit.export();
    assert!(registry.contains("token_sha256") && !registry.contains(&token_text), "{registry}");
    assert!(!exit.daemon().output().contains(&token_text));
}

#[test]
fn a_withdrawn_or_expired_invitation_enrols_nobody() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let withdrawn = exit.warren.run("exit invite laptop").ok();
    assert!(exit.warren.run("exit client list").ok().contains("laptop is invited until "));
    exit.warren.run("exit client remove laptop").ok();
    let expired = exit.warren.run("exit invite laptop --expires 1s").ok();
    std::thread::sleep(seconds(2));

    let client = Client::bare(&net.client);
    for line in [withdrawn, expired] {
        let refused = client.warren.run(&arguments(&line));
        assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    }
    assert_eq!(exit.status().number("/clients/enrolled"), 0);
}

#[test]
fn an_invitation_whose_table_is_deleted_enrols_nobody_from_the_reload_on() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let leaked = arguments(&exit.warren.run("exit invite laptop").ok());
    let kept = arguments(&exit.warren.run("exit invite phone").ok());
    let file = exit.warren.state("exit/clients.toml");
    let before = exit.export();
    let mut edited: toml::Table = before.parse().unwrap();
    edited["invitation"].as_array_mut().unwrap().retain(|table| table["name"].as_str() != Some("laptop"));

    std::fs::write(&file, edited.to_string()).unwrap();
    exit.warren.run("reload exit").ok();

    assert!(!exit.warren.run("exit client list").ok().contains("laptop"));
    let client = Client::bare(&net.client);
    let refused = client.warren.run(&leaked);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    // The control: the other invitation still works.
    client.warren.run(&kept).ok();
    let written = exit.export();
    assert!(written.contains("phone") && !written.contains("laptop"), "{written}");
    // Restoring the text from before the edit does not reopen the invitation.
    std::fs::write(&file, before).unwrap();
    let refused = exit.warren.run("reload exit");
    assert!(refused.stderr.contains("\"laptop\" is not open at this exit"), "{refused:?}");
}

#[test]
fn an_invitation_of_a_stopped_exit_waits_for_it() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let line = exit.warren.run("exit invite laptop").ok();
    let client = Client::bare(&net.client);

    let unreached = client.warren.run(&format!("{} --timeout 1s", arguments(&line)));
    assert_eq!(unreached.code, Some(5), "{}", unreached.stderr);
    assert!(!client.warren.config("laptop.toml").exists());

    exit.run();
    client.warren.run(&format!("{} --name home", arguments(&line))).ok();
    client.up();
}

#[test]
fn a_removed_key_never_comes_back_and_the_same_machine_joins_with_a_new_one() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::bare(&net.client);
    let key_of = |profile: &Profile| {
        client.warren.public_key(profile.value("client", "private_key")).trim().to_owned()
    };
    let invite = |exit: &Exit| arguments(&exit.warren.run("exit invite laptop").ok());
    let joined = || Profile::parse(&std::fs::read_to_string(client.warren.config("laptop.toml")).unwrap());

    client.warren.run(&invite(&exit)).ok();
    let stolen = joined();
    exit.warren.run("exit client remove laptop").ok();
    let said = client.warren.run(&invite(&exit)).ok();

    assert_ne!(key_of(&joined()), key_of(&stolen), "{said}");
    assert!(said.contains("with a new key") && said.contains("laptop.toml.old"), "{said}");
    assert_eq!(
        Profile::parse(&std::fs::read_to_string(client.warren.config("laptop.toml.old")).unwrap()).text(),
        stolen.text()
    );
    client.warren.run("up laptop").ok();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);
    client.warren.run("down laptop").ok();

    // A copy of a removed client's key is useless, both in a profile and with an invitation, even after a restart of the exit.
    exit.stop(Signal::TERM);
    exit.run();
    let host = net.second_client();
    let thief = Client::on(&host, &stolen);
    assert_eq!(thief.warren.run("up home").code, Some(4));
    let line = arguments(&exit.warren.run("exit invite phone").ok());
    let label = line.split_once(' ').unwrap().1.parse::<Invite>().unwrap().token.digest().label();
    let key_file = format!("join-{label}.key");
    thief.warren.write(&key_file, 0o600, stolen.value("client", "private_key"));
    let refused = thief.warren.run(&format!("{line} --name phone"));
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(
        exit.warren.run("exit client list").ok().contains("phone is invited until "),
        "the invitation is still open"
    );

    // The controls: a new key can use that invitation, and the operator can allow the removed key again.
    std::fs::remove_file(thief.warren.config(&key_file)).unwrap();
    thief.warren.run(&format!("{line} --name phone")).ok();
    let add = format!("exit client add thief --public-key {}", key_of(&stolen));
    let refused = exit.warren.run(&add);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("was taken from \"laptop\" for good"), "{refused:?}");
    assert!(exit.warren.run("exit client list --removed").ok().contains(&key_of(&stolen)));
    exit.warren.run(&format!("{add} --allow-removed")).ok();
    assert_eq!(exit.warren.run("exit client list --removed --json").ok().trim(), "[]");
    thief.up();
}

#[test]
fn a_stopped_exit_enrols_no_removed_key_either() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let key = PrivateKey::generate().unwrap().public();
    let add = format!("exit client add laptop --public-key {key}");
    exit.warren.run(&add).ok();
    exit.warren.run("exit client remove laptop").ok();

    let refused = exit.warren.run(&add);
    assert!(refused.code == Some(1) && refused.stderr.contains("--allow-removed"), "{refused:?}");
    exit.warren.run("exit client add phone").ok();
    let refused = exit.warren.run(&format!("exit client set phone --public-key {key}"));
    assert!(refused.code == Some(1) && refused.stderr.contains("--allow-removed"), "{refused:?}");
    exit.warren.run(&format!("{add} --allow-removed")).ok();
}

#[test]
fn a_joins_lost_answer_costs_no_key_and_the_same_line_goes_on_with_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let line = arguments(&exit.warren.run("exit invite laptop").ok());
    let client = Client::bare(&net.client);
    client.warren.run(&line).ok();
    let profile = std::fs::read(client.warren.config("laptop.toml")).unwrap();

    // Restores the state of a machine that was stopped after the exit's answer and before it wrote its profile.
    let text = Profile::parse(std::str::from_utf8(&profile).unwrap());
    let label = line.split_once(' ').unwrap().1.parse::<Invite>().unwrap().token.digest().label();
    let key_file =
        client.warren.write(&format!("join-{label}.key"), 0o600, text.value("client", "private_key"));
    std::fs::remove_file(client.warren.config("laptop.toml")).unwrap();
    client.warren.run(&line).ok();
    assert_eq!(std::fs::read(client.warren.config("laptop.toml")).unwrap(), profile);
    assert!(!key_file.exists());
    let again = client.warren.run(&line).ok();
    assert!(!again.contains("wrote"), "nothing was written: {again}");
    assert_eq!(std::fs::read(client.warren.config("laptop.toml")).unwrap(), profile);
}

#[test]
fn a_name_that_steers_the_terminal_is_no_name() {
    let Some(net) = Net::new() else { return };
    let key = PrivateKey::generate().unwrap();
    let invite = Invite {
        endpoint: format!("{}:443", Net::EXIT_V4),
        exit_key: key.public(),
        name: "laptop".to_owned(),
        token: InviteToken::new([7; 16]),
    };
    let client = Client::bare(&net.client);
    let name = "\u{1b}]0;owned\u{7}\u{9b}2Jlaptop".to_owned();

    let liar = LyingExit::answering(&net, key.clone(), Answers { name, ..Answers::default() });
    let refused = client.warren.run(&format!("join {invite}"));
    drop(liar);

    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("broke the protocol"), "{refused:?}");
    let printed = format!("{}{}", refused.stdout, refused.stderr);
    assert!(!printed.contains(|letter: char| letter.is_control() && letter != '\n'), "{printed:?}");
    assert!(!client.warren.config("laptop.toml").exists());
    // The control: an honest name is printed.
    let _honest = LyingExit::answering(&net, key, Answers::default());
    let said = client.warren.run(&format!("join {invite}")).ok();
    assert!(said.starts_with("Enrolled as laptop and wrote "), "{said}");
}

/// The arguments of the printed `warren` command.
fn arguments(line: &str) -> String {
    line.trim().strip_prefix("warren ").expect("the line is a command").to_owned()
}
