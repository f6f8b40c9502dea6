//! `warren import wireguard`: a WireGuard client's file and an invitation make a profile that connects.
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::support::{Client, Exit, Net};

const FILE: &str = "\
[Interface]
PrivateKey = QEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEA=
Address = 10.8.0.2/24
DNS = 203.0.113.2, internet.test
MTU = 1420

[Peer]
PublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=
AllowedIPs = 203.0.113.0/24, 2001:db8:3::/48
Endpoint = 198.51.100.2:51820
PersistentKeepalive = 25
";

#[test]
fn file_of_a_wireguard_client_and_an_invitation_make_a_profile_that_connects() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.own_files();
    let client = Client::bare(&net.client);
    let file = client.warren.write("wg0.conf", 0o600, FILE);
    let file = file.display();

    let dry = client.warren.run(&format!("import wireguard {file} --dry-run"));
    assert!(dry.stdout.contains("include = [\"203.0.113.0/24\", \"2001:db8:3::/48\"]"), "{dry:?}");
    assert!(dry.stdout.contains("domains = [\"internet.test\"]"), "{dry:?}");
    assert!(dry.stderr.contains("MTU is not imported"), "{dry:?}");
    assert!(!client.warren.config("home.toml").exists());
    assert_eq!(client.warren.run(&format!("import wireguard {file}")).code, Some(2), "without an invitation");

    let line = exit.warren.run("exit invite laptop").ok();
    let invite = line.split_whitespace().find(|word| word.starts_with("warren1:")).unwrap();
    // A file whose profile could not be read does not use the invitation up.
    let unusable = client.warren.write("domain.conf", 0o600, &FILE.replace("internet.test", "b/c"));
    for what in ["--dry-run".to_owned(), format!("--invite {invite} --name home")] {
        let refused = client.warren.run(&format!("import wireguard {} {what}", unusable.display()));
        assert!(refused.code == Some(1) && refused.stderr.contains("DNS has \"b/c\""), "{refused:?}");
    }
    assert!(!client.warren.config("home.toml").exists());
    let command = format!("import wireguard {file} --invite {invite} --name home");
    let imported = client.warren.run(&command);
    assert!(imported.stdout.contains("Enrolled as laptop") && imported.code == Some(0), "{imported:?}");
    let text = std::fs::read_to_string(client.warren.config("home.toml")).unwrap();
    assert!(text.contains("domains = [\"internet.test\"]") && !text.contains("QEBAQEBA"), "{text}");

    client.warren.run("up home").ok();
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);
    assert!(client.sh("ip route get 192.0.2.1").contains("dev eth0"));
    assert!(client.sh("getent ahostsv4 www.internet.test").contains(Net::INTERNET_V4));
    client.down();

    // The invitation cannot be used again, and the profile stays unchanged.
    let again = client.warren.run(&command);
    assert!(again.stdout.contains("is the profile"), "{again:?}");
    let wrong = client.warren.write("wrong.conf", 0o600, "[Peer]\nAllowedIPs = everything\n");
    let refused = client.warren.run(&format!("import wireguard {} --dry-run", wrong.display()));
    assert!(
        refused.code == Some(1) && refused.stderr.contains("wrong.conf:2: AllowedIPs has"),
        "{refused:?}"
    );
}
