//! Tests of a copier between namespaces that the tests make. They need root.

use std::process::Command;

use super::*;

#[test]
fn packets_cross_unchanged_and_nothing_is_left() {
    let Ok(client) = Namespace::create("client") else {
        eprintln!("skipped: this needs root");
        return;
    };
    let exit = Namespace::create("exit").unwrap();
    let copier = Copier::start(&client, &exit, 1380).unwrap();

    for target in ["10.98.0.1", "fd98::1"] {
        let ping = client.command("ping").args(["-c3", "-i0.01", "-W2", "-s1300", target]).output().unwrap();
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
    }

    let report = copier.stop().unwrap();
    assert!(report.up.super_packets >= 6 && report.down.super_packets >= 6, "{report:?}");
    assert_eq!((report.up.refused, report.down.refused), (0, 0));
    let devices = client.command("ip").args(["-o", "link"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&devices.stdout).contains(DEVICE));
    let names = [client.name().to_owned(), exit.name().to_owned()];
    drop((client, exit));
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout);
    assert!(names.iter().all(|name| !listed.contains(name.as_str())), "{listed}");
}
