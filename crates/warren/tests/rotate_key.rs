//! The exit changes its key, while clients that pin the old one keep their tunnels.

use warren_quic::key::PrivateKey;

use crate::support::{Client, Exit, Net, eventually, seconds};

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
    // The client learns the new key without a restart.
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
    assert_eq!(exit.status().0["old_public_key"], serde_json::Value::Null);
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
