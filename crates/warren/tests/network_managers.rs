//! Programs that manage a host's network devices leave Warren's alone: the real systemd-networkd, with a file that matches every device.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::Path;

use crate::support::{Exit, Net, Systemd, eventually, seconds};
use crate::systemd::{repository_file, units};

#[test]
fn systemd_networkd_configures_no_device_of_warrens() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    if !Path::new("/lib/systemd/systemd-networkd").exists() {
        println!("skipped: this test needs systemd-networkd");
        return;
    }
    let exit = Exit::start(&net);
    for (name, is_packaged) in [("control", false), ("laptop", true)] {
        let files = units();
        files.write_private("etc/warren/home.toml", &exit.enrol(name).text());
        files.write(
            "etc/systemd/network/90-all.network",
            "[Match]\nName=!eth0 lo\n\n[Network]\nAddress=10.123.0.1/24\n",
        );
        if is_packaged {
            let text = std::fs::read_to_string(repository_file("warren.network")).unwrap();
            files.write("usr/lib/systemd/network/10-warren.network", &text);
        }
        let client = Systemd::boot(&net.client, files);
        // It waits for udev, which this host does not have, unless /sys is read-only as in a container.
        client.sh("mount -o remount,ro /sys && systemctl start systemd-networkd").ok();
        client.sh("warren up home").ok();
        let other = client.sh("ip link add dummy7 type dummy && ip link set dummy7 up");
        let is_configured = |device: &str| {
            client.sh(&format!("ip -4 address show dev {device}")).stdout.contains("10.123.0.1")
        };
        // A device of nobody shows that it is at work.
        if other.succeeded() {
            eventually(seconds(20), "the program configures devices", || is_configured("dummy7"));
        } else {
            client.sh("ip link add other7 type veth peer name other8 && ip link set other7 up").ok();
            eventually(seconds(20), "the program configures devices", || is_configured("other7"));
        }
        if is_packaged {
            assert!(!is_configured("warren0"), "{}", client.sh("networkctl").stdout);
            client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4)).ok();
        } else {
            eventually(seconds(20), "the control: it takes Warren's device", || is_configured("warren0"));
        }
        client.sh("warren down home").ok();
        client.sh("ip link delete dummy7; ip link delete other7");
    }
}
