//! The exit rotates its key, and clients that pin the old key keep their tunnels.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use warren_quic::key::PrivateKey;

use crate::support::library_client::{LibraryClient, runtime};
use crate::support::{Client, Exit, Namespace, Net, eventually, seconds};

#[test]
fn clients_of_either_key_are_served_until_the_old_one_is_retired() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    client.up();
    let session = exit.status().number("/sessions/0/id");
    let old_key = exit.status().text("/public_key").to_owned();

    exit.warren.run("exit rotate-key").ok();
    assert_eq!(exit.warren.run("exit rotate-key").code, Some(1));

    let new_key = exit.status().text("/public_key").to_owned();
    assert_ne!(new_key, old_key);
    assert_eq!(exit.status().text("/old_public_key"), old_key);
    let is_up = |client: &Client<'_>| {
        client.warren.status().is_some_and(|status| status.text("/state") == "up")
            && client.warren.host.sh(&format!("ping -c 1 -W 1 {}", Net::INTERNET_V4)).succeeded()
    };
    eventually(seconds(20), "traffic flows", || is_up(&client));
    assert_eq!(exit.status().number("/sessions/0/id"), session, "the session survives");
    client.down();
    client.up();
    exit.warren.run("reload exit").ok();
    assert_eq!(exit.status().text("/old_public_key"), old_key, "a reload does not change the keys");
    let host = net.second_client();
    let both = exit.enrol("both");
    let other = Client::on(&host, &both);
    other.up();
    other.down();
    // A reload of the client's profile with the new key needs no restart.
    let told = profile.with_exit("public_key", vec![new_key, old_key.clone()]);
    client.warren.write("home.toml", 0o600, &told.text());
    client.warren.run("reload home").ok();

    exit.warren.run("exit rotate-key --retire").ok();

    eventually(seconds(20), "traffic flows", || is_up(&client));
    assert_eq!(client.status().number("/reconnects"), 0);
    client.down();
    client.up();
    other.up();
    other.down();
    other.warren.write("home.toml", 0o600, &both.with_exit("public_key", old_key).text());
    let refused = other.warren.run("up home --timeout 5s");
    assert!(!refused.succeeded(), "{refused:?}");
    client.down();
}

#[test]
fn a_key_file_that_was_put_back_by_hand_is_taken_over() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let file = exit.warren.config("exit.key");
    let (first, key) = (exit.status().text("/public_key").to_owned(), std::fs::read(&file).unwrap());
    exit.warren.run("exit rotate-key").ok();
    assert_ne!(exit.status().text("/public_key"), first);

    std::fs::write(&file, key).unwrap();
    exit.warren.run("reload exit").ok();

    assert_eq!(exit.status().text("/public_key"), first);
    assert_eq!(exit.status().0["old_public_key"], Value::Null);
}

#[test]
fn a_client_gets_another_key_and_keeps_its_session_until_it_uses_it_and_its_addresses_then() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    client.up();
    let addresses = client.inner_addresses();
    let key = PrivateKey::generate().unwrap();

    exit.warren.run(&format!("exit client set laptop --public-key {}", key.public())).ok();
    client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    assert_eq!(client.status().number("/reconnects"), 0);
    client.down();
    let other = profile.clone().with("client", "private_key", key.to_base64().as_str());
    client.warren.write("home.toml", 0o600, &other.text());
    client.up();

    assert_eq!(client.inner_addresses(), addresses);
    assert_eq!(exit.status().text("/sessions/0/name"), "laptop");
    client.down();
    client.warren.write("home.toml", 0o600, &profile.text());
    assert_eq!(client.warren.run("up home").code, Some(4), "the old key is forgotten");
}

#[test]
fn a_rotation_that_is_finished_in_the_clients_file_keeps_the_addresses_and_touches_nobody_else() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    let host = net.second_client();
    let other = Client::on(&host, &exit.enrol("phone"));
    client.up();
    other.up();
    let addresses = client.inner_addresses();
    let [key, added] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    exit.warren.run(&format!("exit client set laptop --public-key {}", key.public())).ok();

    exit.edit_clients(|clients| {
        let laptop = clients.iter_mut().find(|client| client["name"].as_str() == Some("laptop")).unwrap();
        laptop["public_key"] = laptop.as_table_mut().unwrap().remove("next_public_key").unwrap();
        let entry = format!(
            "name = \"tablet\"\npublic_key = \"{}\"\ncreated = \"2026-01-01T00:00:00Z\"",
            added.public()
        );
        clients.push(entry.parse::<toml::Table>().unwrap().into());
    });
    exit.warren.run("reload exit").ok();
    exit.warren.run("reload exit").ok();

    let list = exit.warren.run("exit client list").ok();
    assert!(["laptop", "phone", "tablet"].iter().all(|name| list.contains(name)), "{list}");
    eventually(seconds(5), "the old key is refused", || client.status().text("/state") == "refused");
    client.down();
    client.warren.write(
        "home.toml",
        0o600,
        &profile.with("client", "private_key", key.to_base64().as_str()).text(),
    );
    client.up();
    assert_eq!(client.inner_addresses(), addresses);
    other.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
    assert_eq!(other.status().number("/reconnects"), 0);
}

/// There are three clients: one is connected, one has never connected, and one has a version that does not learn keys.
#[test]
fn clients_take_the_next_key_over_by_themselves_and_the_old_one_stays_until_all_have_it() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let hosts = (net.second_client(), net.clients_beside(1).remove(0));
    let (pinning_old, away) = (exit.enrol("laptop"), exit.enrol("tablet"));
    let client = Client::with(&net, &pinning_old);
    client.up();
    let (old_key, session) =
        (exit.status().text("/public_key").to_owned(), exit.status().number("/sessions/0/id"));
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("museum", &key.public().to_string());
    let old_version = OldVersion::start(&hosts.1, key.clone(), &old_key);

    let said = exit.warren.run("exit rotate-key").ok();

    let new_key = exit.status().text("/public_key").to_owned();
    assert!(said.contains("2 of 3 clients have not connected with the new key yet:"), "{said}");
    let row = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(row("museum").contains("its version of Warren is too old to receive keys"), "{said}");
    assert!(row("tablet").contains("never") && row("tablet").contains("to connect once"), "{said}");
    assert_eq!(row("laptop"), "", "{said}");
    assert_eq!(waiting(&exit), ["museum", "tablet"]);
    assert_eq!(client.status().number("/reconnects"), 0);
    assert_eq!(exit.status().number("/sessions/0/id"), session);
    assert_eq!(client.status().text("/exit/public_key"), old_key, "the session goes on");
    assert_eq!(client.status().text("/exit/next_public_key"), new_key);
    let log = client.warren.run("logs home").ok();
    assert!(log.contains("has a second key") && log.contains(&new_key), "{log}");

    let refused = exit.warren.run("exit rotate-key --retire");
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("museum")
            && refused.stderr.contains("tablet")
            && refused.stderr.contains("--force"),
        "{refused:?}"
    );
    let again = exit.warren.run("exit rotate-key");
    assert!(again.code == Some(1) && again.stderr.contains("tablet"), "{again:?}");
    assert_eq!(exit.status().text("/old_public_key"), old_key, "nothing has changed");

    // The operator writes the new key into the profile of the client with the old version. The client that has never connected
    // uses its existing profile.
    drop(old_version);
    let by_hand = OldVersion::start(&hosts.1, key, &new_key);
    let tablet = Client::on(&hosts.0, &away);
    tablet.up();
    eventually(seconds(10), "nobody is missing", || waiting(&exit).is_empty());
    exit.warren.run("exit rotate-key --retire").ok();
    assert_eq!(exit.status().0["old_public_key"], Value::Null);

    // The client is killed at once, and started again with its old profile.
    client.signal(Signal::KILL);
    client.up();
    tablet.down();
    tablet.up();
    for (client, profile) in [(&client, &pinning_old), (&tablet, &away)] {
        assert_eq!(client.status().text("/exit/public_key"), new_key);
        client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4));
        let file = std::fs::read_to_string(client.warren.config("home.toml")).unwrap();
        assert_eq!(file, profile.text(), "nobody has touched the profile");
    }
    let log = client.warren.run("logs home").ok();
    assert!(log.contains("has retired its key"), "{log}");
    assert!(client.warren.run("exits home").ok().contains("in use"));

    // The control: without the keys that it has learnt, the client is refused.
    client.down();
    std::fs::remove_file(client.warren.state("exit-keys/home.json")).unwrap();
    let forgotten = client.warren.run("up home --timeout 5s");
    assert!(!forgotten.succeeded(), "{forgotten:?}");
    client.warren.run("down home");
    tablet.down();
    drop(by_hand);
}

#[test]
fn the_old_key_is_retired_by_force_and_when_sessions_end_although_clients_are_missing() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    exit.enrol("never");
    client.up();
    exit.warren.run("exit rotate-key").ok();
    assert_eq!(exit.warren.run("exit rotate-key --retire").code, Some(1));
    exit.warren.run("exit rotate-key --retire --force").ok();
    let second = exit.status().text("/public_key").to_owned();
    assert_eq!(client.status().number("/reconnects"), 0);

    // The session was opened with a key that is two keys old by now, and still vouches for the newest one.
    exit.warren.run("exit rotate-key").ok();
    eventually(seconds(10), "the client has the third key", || waiting(&exit) == ["never"]);
    exit.warren.run("exit rotate-key --retire --end-sessions").ok();

    let third = exit.status().text("/public_key").to_owned();
    assert_ne!(third, second);
    eventually(seconds(20), "the client is back", || {
        let status = client.status();
        status.text("/state") == "up" && status.text("/exit/public_key") == third
    });
    client.down();
}

#[test]
fn a_profile_with_other_keys_forgets_what_was_learnt() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    client.up();
    exit.warren.run("exit rotate-key").ok();
    exit.warren.run("exit rotate-key --retire").ok();
    client.down();
    // After a theft, the owner writes other keys into the profile. From then on, only these are accepted.
    let stranger = PrivateKey::generate().unwrap().public().to_string();
    client.warren.write("home.toml", 0o600, &profile.clone().with_exit("public_key", stranger).text());
    let refused = client.warren.run("up home --timeout 5s");
    assert!(!refused.succeeded(), "{refused:?}");
    client.warren.run("down home");

    let new = exit.status().text("/public_key").to_owned();
    client.warren.write("home.toml", 0o600, &profile.with_exit("public_key", new).text());
    client.up();
    client.down();
}

/// The names of the clients that have not connected with the new key.
fn waiting(exit: &Exit<'_>) -> Vec<String> {
    let list = exit.warren.run("exit rotate-key --list --json").ok();
    let list: Value = serde_json::from_str(&list).unwrap();
    let waiting = list["waiting"].as_array().unwrap();
    waiting.iter().map(|client| client["name"].as_str().unwrap().to_owned()).collect()
}

/// A client whose version takes no changes during a session. It stays connected until this is dropped.
struct OldVersion {
    stop: Option<Sender<()>>,
    stopped: Receiver<()>,
}

impl OldVersion {
    fn start(host: &Namespace, key: PrivateKey, exit_key: &str) -> Self {
        let exit_key = exit_key.parse().unwrap();
        let ((stop, stopping), (said, ready), (leaves, stopped)) = (channel(), channel(), channel());
        host.enter(move || {
            runtime().block_on(async move {
                let mut client = LibraryClient::start(key, exit_key, 1);
                client.until("the session begins", |client| client.attached() == 1).await;
                said.send(()).unwrap();
                while stopping.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    client.run(Duration::from_millis(20)).await;
                }
                client.leave().await;
                drop(leaves);
            });
        });
        ready.recv_timeout(seconds(40)).unwrap();
        Self { stop: Some(stop), stopped }
    }
}

impl Drop for OldVersion {
    fn drop(&mut self) {
        self.stop = None;
        let _: Result<(), _> = self.stopped.recv_timeout(seconds(10));
    }
}
