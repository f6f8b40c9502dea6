//! Enrolling a machine with an invitation, on a running exit.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{Client, Exit, ExitOptions, Net, flows, seconds};

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
    // Who was enrolled may ask again, as one does whose answer was lost.
    first.warren.run(&arguments(&line)).ok();
    let registry = std::fs::read_to_string(exit.warren.state("exit/clients.toml")).unwrap();
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

/// What the printed line gives to `warren`.
fn arguments(line: &str) -> String {
    line.trim().strip_prefix("warren ").expect("the line is a command").to_owned()
}
