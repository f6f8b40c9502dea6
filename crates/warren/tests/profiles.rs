//! The profiles of a machine, their exits and their logs.
#![allow(clippy::unwrap_used, reason = "test code")]

use warren_quic::key::PrivateKey;

use crate::support::{Client, Exit, ExitOptions, Net};

#[test]
fn profiles_are_listed_with_what_they_do_and_logs_are_those_of_the_daemon() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop").with("kill_switch", "enabled", true));
    client.warren.write("work.toml", 0o600, "[client\n");
    let list = || client.warren.run("list").ok();
    let line = |list: &str, name: &str| {
        let found = list.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("{name} is missing:\n{list}"))
    };

    let down = list();
    assert!(line(&down, "home ").contains("down") && line(&down, "home ").ends_with("off"), "{down}");
    assert!(line(&down, "work: ").contains("work.toml:1"), "{down}");
    assert_eq!(client.warren.run("logs home").code, Some(3));

    client.up();
    let up = list();
    let home = line(&up, "home ");
    assert!(
        home.contains("up for ") && home.contains("198.51.100.2:443") && home.ends_with("closed"),
        "{up}"
    );
    let json: serde_json::Value = serde_json::from_str(&client.warren.run("list --json").ok()).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["state"]), (&"home".into(), &"up".into()), "{json:#}");

    let all = client.warren.run("logs home").ok();
    let last = client.warren.run("logs --lines 1").ok();
    assert!(all.contains("connected to 198.51.100.2:443"), "{all}");
    assert_eq!(Some(last.as_str()), all.lines().last());
    assert_eq!(client.warren.run("logs exit").code, Some(3), "no exit runs here");

    client.sh(&format!("kill -9 {}", client.status().number("/pid")));
    crate::support::eventually(crate::support::seconds(10), "the profile is listed as killed", || {
        line(&list(), "home ").contains("killed")
    });
    assert!(line(&list(), "home: ").contains("cleanup"), "{}", list());
    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
}

#[test]
fn exits_are_listed_with_their_round_trip_and_which_one_is_in_use() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").text();
    let key = PrivateKey::generate().unwrap().public();
    let other = format!("\n[[exit]]\nendpoint = \"{}:443\"\npublic_key = \"{key}\"\n", Net::INTERNET_V4);
    let client = Client::bare(&net.client);
    client.warren.write("home.toml", 0o600, &(profile + &other));

    let before = client.warren.run("exits").ok();
    client.up();
    let after = client.warren.run("exits home").ok();
    let sessions = exit.status().list("/sessions").len();

    for list in [&before, &after] {
        let exit = list.lines().find(|line| line.starts_with("198.51.100.2:443")).unwrap();
        assert!(exit.contains(" ms"), "{list}");
        assert_eq!(exit.ends_with("in use"), list == &after, "{list}");
        assert!(list.contains("no answer") && list.contains("203.0.113.2:443: "), "{list}");
    }
    assert_eq!(sessions, 1, "asking opens no session");
    client.down();
}

#[test]
fn up_tries_the_exit_that_it_is_told_first_this_time_only() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let first = Exit::start(&net);
    let mut second = Exit::init_on(&other_host, &ExitOptions::second());
    second.run();
    let profile = first.enrol("laptop");
    let public = first.warren.public_key(profile.value("client", "private_key"));
    let client = Client::with(&net, &profile.with_failover_to(&second.enrol_key("laptop", &public)));
    let in_use = || client.status().text("/exit/endpoint").to_owned();

    let line = client.warren.run("up home --exit 192.0.3.2").ok();
    assert!(line.starts_with("connected to home by 192.0.3.2:443, "), "{line}");
    assert_eq!(in_use(), "192.0.3.2:443");
    assert_eq!(client.warren.run("reload home").ok(), "Reloaded home: no setting has changed.");
    client.down();

    // The control: the next `up` uses the profile's order again.
    client.up();
    assert_eq!(in_use(), "198.51.100.2:443");
    client.down();
    let unknown = client.warren.run("up home --exit nowhere");
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("name one of 198.51.100.2:443, 192.0.3.2:443"), "{unknown:?}");
}
