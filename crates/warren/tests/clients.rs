//! Enrolling clients and cutting them off on a running exit.

use std::os::unix::fs::PermissionsExt as _;

use rustix::fs::{FlockOperation, flock};

use crate::support::{Client, Exit, ExitOptions, Net, Profile, eventually, flows, seconds};

#[test]
fn a_client_enrolled_on_a_running_exit_connects_at_once() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);

    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();

    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);
    let status = exit.status();
    assert_eq!((status.number("/clients/enrolled"), status.number("/clients/connected")), (1, 1));
    assert_eq!(status.text("/sessions/0/name"), "laptop");
}

#[test]
fn a_removed_client_is_cut_off_within_two_seconds_for_good() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let host = net.second_client();
    let other = Client::on(&host, &exit.enrol("other"));
    let mut daemon = client.run("info");
    other.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);

    exit.warren.run("exit client remove laptop").ok();

    eventually(seconds(2), "the client is refused", || client.status().text("/state") == "refused");
    assert!(daemon.output().contains("removed this client"), "{}", daemon.output());
    client.down();
    assert_eq!(daemon.wait(seconds(2)), Some(0), "{}", daemon.output());
    for _ in 0..20 {
        let again = client.warren.run("up home");
        assert_eq!(again.code, Some(4), "{}", again.stderr);
    }
    // The other client has lost nothing.
    assert_eq!(flows::echo_from_each(&host, 20_000..20_001), 1);
    assert_eq!(other.status().number("/reconnects"), 0);
}

#[test]
fn the_list_shows_every_client_with_and_without_a_running_exit() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.enrol("laptop");
    let names = |exit: &Exit<'_>| {
        let list: serde_json::Value =
            serde_json::from_str(&exit.warren.run("exit client list --json").ok()).unwrap();
        let list = list.as_array().unwrap().clone();
        list.iter().map(|client| client["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&exit), ["laptop"]);

    exit.run();
    exit.enrol("phone");
    assert_eq!(names(&exit), ["laptop", "phone"]);
    assert!(exit.warren.run("exit client show phone").ok().contains("phone"));
    exit.warren.run("exit client remove laptop").ok();

    exit.stop(rustix::process::Signal::TERM);
    assert_eq!(names(&exit), ["phone"], "live changes are kept");
    let gone = exit.warren.run("exit client show laptop");
    assert_eq!(gone.code, Some(1));
    assert!(gone.stderr.contains("laptop"), "{}", gone.stderr);
}

#[test]
fn a_name_or_key_that_is_taken_is_refused_and_nothing_is_written() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = net.exit.sh("mktemp -d /tmp/wt-XXXXXX").ok() + "/laptop.toml";
    exit.warren.run(&format!("exit client add laptop --output {profile}")).ok();
    let mode = std::fs::metadata(&profile).unwrap().permissions().mode() & 0o777;
    std::fs::remove_dir_all(std::path::Path::new(&profile).parent().unwrap()).unwrap();
    assert_eq!(mode, 0o600, "the profile holds a private key");

    let again = exit.warren.run("exit client add laptop");
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), ""), "{}", again.stderr);
    assert!(again.stderr.contains("laptop"), "{}", again.stderr);
    let mut lost = exit.warren.start_under(&["sh", "-c", "exec \"$@\" >&-", "sh"], "exit client add phone");
    assert_eq!(
        lost.wait(seconds(10)),
        Some(1),
        "the command fails if nobody can read the new key: {}",
        lost.output()
    );
    let own = exit.warren.run("exit client add office --prefix 127.0.0.0/8");
    assert!(own.stderr.contains("loopback"), "{own:?}");
    let outside = exit.warren.run("exit client add phone --ipv4 192.0.2.9");
    assert_eq!((outside.code, outside.stdout.as_str()), (Some(1), ""), "{}", outside.stderr);
    assert_eq!(exit.status().number("/clients/enrolled"), 1);
}

#[test]
fn an_import_waits_until_another_one_has_ended_and_leaves_its_file_alone() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    exit.enrol("laptop");
    let file = exit.warren.config("exported");
    exit.warren.run(&format!("exit client export {}", file.display())).ok();
    let staged = exit.warren.state("exit/clients.toml.import");
    // This test stands for another import that has written its file and waits for the exit.
    let lock = std::fs::File::create(exit.warren.state("exit/clients.toml.import.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    std::fs::write(&staged, "of another import").unwrap();

    let mut import = exit.warren.start(&format!("exit client import {} --dry-run", file.display()));
    std::thread::sleep(seconds(1));

    assert!(import.is_running(), "{}", import.output());
    assert_eq!(std::fs::read_to_string(&staged).unwrap(), "of another import");
    drop(lock);
    assert_eq!(import.wait(seconds(10)), Some(0), "{}", import.output());
    assert!(import.output().contains("Nothing was changed") && !staged.exists(), "{}", import.output());
}

#[test]
fn an_exit_with_other_networks_names_all_clients_that_do_not_fit_and_the_command_that_helps() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    for (name, addresses) in
        [("laptop", "--ipv4 10.66.0.9 --ipv6 fd66:6666::9"), ("phone", "--ipv4 10.66.0.8")]
    {
        exit.warren.run(&format!("exit client add {name} {addresses}")).ok();
    }
    exit.configure(|config| config.with("addresses", "ipv4", "10.77.0.0/16"));

    let refused = exit.warren.run("exit run");
    assert!(!refused.succeeded(), "{refused:?}");
    for said in [
        "the fixed addresses of 2 clients: laptop (10.66.0.9), phone (10.66.0.8)",
        "warren exit client set laptop --ipv4 auto",
    ] {
        assert!(refused.stderr.contains(said), "{refused:?}");
    }

    exit.warren.run("exit client set laptop --ipv4 auto").ok();
    exit.warren.run("exit client set phone --ipv4 auto").ok();
    exit.run();
}

#[test]
fn peers_of_a_wireguard_server_connect_with_their_addresses() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let peer = |name: &str, host: u8| {
        format!("### Client {name}\n[Peer]\nPublicKey = x\nAllowedIPs = 10.66.0.{host}/32\n")
    };
    let file = exit.warren.write("wg0.conf", 0o600, &(peer("laptop", 9) + &peer("phone", 9)));
    let line = format!("exit import wireguard {}", file.display());
    let clash = exit.warren.run(&line);
    assert_eq!(clash.code, Some(1), "{clash:?}");
    assert!(clash.stderr.contains("wg0.conf:6: client \"phone\" cannot have the address"), "{clash:?}");
    assert_eq!(exit.status().number("/clients/enrolled"), 0);

    exit.warren.write("wg0.conf", 0o600, &(peer("laptop", 9) + &peer("phone", 10)));
    exit.warren.run(&line).ok();

    assert_eq!(exit.status().number("/clients/enrolled"), 2);
    let profile = std::fs::read_to_string(exit.warren.config("clients/phone.toml")).unwrap();
    let client = Client::with(&net, &Profile::parse(&profile));
    client.up();
    assert_eq!(client.inner_addresses().0, "10.66.0.10/16");
    client.down();
}

#[test]
fn a_client_was_last_seen_at_its_latest_packet_and_the_list_has_limit_and_traffic() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    exit.warren.run("exit client set laptop --rate-limit 50mbit").ok();
    client.sh(&format!("ping -c 5 -i 0.2 -s 1000 {}", Net::INTERNET_V4));
    let seconds_since = || {
        let shown = exit.warren.run("exit client show laptop --json").ok();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let seen = humantime::parse_rfc3339(shown["last_seen"].as_str().unwrap()).unwrap();
        (std::time::SystemTime::now().duration_since(seen).unwrap().as_secs(), shown["connected"].clone())
    };

    // The control: while packets arrive, the client was last seen a moment ago.
    let mut ping = client.warren.host.start(&["ping", "-i", "0.2", "-c", "20", Net::INTERNET_V4]);
    ping.wait(seconds(20));
    assert!(seconds_since().0 <= 3, "{:?}", seconds_since());

    let pid = client.status().number("/pid");
    client.signal(rustix::process::Signal::STOP);
    eventually(seconds(20), "the client is silent but connected", || {
        let (since, connected) = seconds_since();
        assert_eq!(connected, true, "the idle timeout is longer");
        since >= 5
    });
    let list = exit.warren.run("exit client list").ok();
    let line = list.lines().find(|line| line.starts_with("laptop")).unwrap();
    assert!(line.contains("50mbit") && line.contains(" kB") && line.ends_with(" s ago"), "{list}");

    client.sh(&format!("kill -CONT {pid}"));
    client.down();
}
