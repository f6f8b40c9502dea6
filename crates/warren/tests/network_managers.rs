//! Programs that manage a host's network leave Warren's devices alone, and Warren works beside them: the real systemd-networkd, with
//! a file that matches every device, and the real NetworkManager, which manages the host's own device, routes and resolvers.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::Path;

use crate::support::daemon::repository;
use crate::support::{Exit, Files, Net, Systemd, eventually, seconds};
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
        // systemd-networkd waits for udev, which this host does not have, unless /sys is read-only as in a container.
        client.sh("mount -o remount,ro /sys && systemctl start systemd-networkd").ok();
        client.sh("warren up home").ok();
        let other = client.sh("ip link add dummy7 type dummy && ip link set dummy7 up");
        let is_configured = |device: &str| {
            client.sh(&format!("ip -4 address show dev {device}")).stdout.contains("10.123.0.1")
        };
        // The control: systemd-networkd does configure a device that is not Warren's.
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

/// The host's own connection, as a person makes it in NetworkManager. It has a resolver of the LAN.
const LAN: &str = "[connection]\nid=lan\ntype=ethernet\ninterface-name=eth0\n\n\
    [ipv4]\nmethod=manual\naddress1=192.0.2.2/24,192.0.2.1\ndns=192.0.2.53;\n\n\
    [ipv6]\nmethod=manual\naddress1=2001:db8:1::2/64,2001:db8:1::1\n";

#[test]
fn networkmanager_leaves_warrens_device_alone_and_gets_its_resolvers_back() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let Some(packages) = unpacked_networkmanager() else { return };
    let exit = Exit::start(&net);
    for (name, is_packaged) in [("control", false), ("laptop", true)] {
        let files = units();
        packages.iter().for_each(|package| copy_into(package, &files));
        let profile = exit.enrol(name).with("dns", "servers", vec![Net::INTERNET_V4]);
        files.write_private("etc/warren/home.toml", &profile.text());
        files.write_private("etc/NetworkManager/system-connections/lan.nmconnection", LAN);
        if is_packaged {
            let text = std::fs::read_to_string(repository_file("warren.networkmanager")).unwrap();
            files.write("usr/lib/NetworkManager/conf.d/50-warren.conf", &text);
        }
        let client = Systemd::boot(&net.client, files);
        // With a read-only /sys, NetworkManager does not wait for udev, which this host does not have.
        client.sh("mount -o remount,ro /sys && systemctl start dbus.socket dbus.service").ok();
        client.sh("systemctl start NetworkManager").ok();
        let resolvers = || client.sh("grep ^nameserver /etc/resolv.conf").stdout;
        eventually(seconds(20), "it configures the host", || resolvers() == "nameserver 192.0.2.53\n");
        client.sh("warren up home").ok();
        let state = || client.sh("nmcli -g GENERAL.STATE device show warren0").stdout;
        let works = || client.sh(&format!("ping -c 1 -W 5 {}", Net::INTERNET_V4)).succeeded();

        if !is_packaged {
            eventually(seconds(20), "the control: it takes Warren's device", || {
                state().contains("connected")
            });
            client.sh("warren down home").ok();
            continue;
        }
        eventually(seconds(20), "it leaves Warren's device alone", || state().contains("unmanaged"));
        let ours = format!("nameserver {}\n", Net::INTERNET_V4);
        assert_eq!(resolvers(), ours);
        // When the connection comes up again, as after a cable was plugged in, NetworkManager writes its own routes and
        // resolvers.
        client.sh("nmcli connection down lan && nmcli connection up lan").ok();
        eventually(seconds(30), "Warren's resolvers are back", || resolvers() == ours);
        eventually(seconds(30), "the tunnel works", works);
        assert!(client.sh("ip -4 route get 203.0.113.2").stdout.contains("warren0"));
        assert!(state().contains("unmanaged"), "{}", state());
        client.sh("warren down home").ok();
        // NetworkManager may be writing the file at this moment.
        eventually(seconds(10), "the host's own resolvers are back", || {
            resolvers() == "nameserver 192.0.2.53\n"
        });
        assert!(
            works() && client.sh("nmcli -g GENERAL.STATE connection show lan").stdout.contains("activated")
        );
    }
}

/// The directories into which `scripts/setup` unpacks NetworkManager and the libraries that it needs.
fn unpacked_networkmanager() -> Option<Vec<std::path::PathBuf>> {
    let names = ["network-manager", "libnm0", "libndp0", "libteamdctl0", "libbluetooth3", "libmm-glib0"];
    let packages: Vec<_> = names.iter().map(|name| repository().join("target/packages").join(name)).collect();
    if let Some(missing) = packages.iter().find(|package| !package.exists()) {
        println!("skipped: {} is missing; scripts/setup unpacks it", missing.display());
        return None;
    }
    Some(packages)
}

/// Puts a package's files onto a host, on which /lib is /usr/lib.
fn copy_into(package: &Path, files: &Files) {
    for (from, to) in [("etc", "etc"), ("usr", "usr"), ("lib", "usr/lib")] {
        let (from, to) = (package.join(from), files.path(to));
        if from.exists() {
            std::fs::create_dir_all(&to).unwrap();
            let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
            assert!(copied.unwrap().success(), "{} cannot be copied", from.display());
        }
    }
}
