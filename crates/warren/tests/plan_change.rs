//! Another exit assigns other addresses. The host changes from one plan to the next without a gap.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::{Client, Exit, ExitOptions, Net, Probing, eventually, seconds};

#[test]
fn nothing_leaves_outside_while_one_exit_s_plan_becomes_another_s() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let mut first = Exit::start(&net);
    let mut second = Exit::init_on(&other_host, &ExitOptions::second());
    // The second exit has no IPv6, which needs different routes.
    other_host.sh(&format!("sed -i '/^ipv6/d' {}", second.warren.config("exit.toml").display())).ok();
    second.run();
    let profile = first.enrol("laptop");
    let public = first.warren.public_key(profile.value("client", "private_key"));
    // There is no kill switch, so the plan alone must prevent leaks.
    let client = Client::with(&net, &profile.with_failover_to(&second.enrol_key("laptop", &public)));
    let left = Probing::counter(&net);
    client.up();
    let is_on = |endpoint: &str| {
        let status = client.status();
        status.text("/exit/endpoint") == endpoint && status.text("/state") == "up"
    };
    let addresses = client.inner_addresses();
    assert!(is_on("198.51.100.2:443"));

    let probing = Probing::start(&net.client);
    first.stop(Signal::TERM);
    eventually(seconds(30), "the client is on the other exit", || is_on("192.0.3.2:443"));
    assert_ne!(client.inner_addresses(), addresses);
    assert!(client.inner_addresses().1.is_null(), "the other exit assigns no IPv6");
    client.sh("ping -c 3 -i 0.2 -W 2 203.0.113.2");
    first.run();
    second.stop(Signal::TERM);
    eventually(seconds(30), "the client is back on the first exit", || is_on("198.51.100.2:443"));
    client.sh("ping -c 3 -i 0.2 -W 2 203.0.113.2 && ping -c 3 -i 0.2 -W 2 2001:db8:3::2");
    let sent = probing.end();
    println!("{} of {sent} probes left outside", left());
    assert!(sent > 40, "{sent} probes");
    assert_eq!(left(), 0);

    // The control: without a tunnel the counter sees the probes.
    client.down();
    let sent = { Probing::start(&net.client) }.for_a_while();
    assert!(left() >= sent / 2 && sent > 10, "{} of {sent}", left());
}

#[test]
fn nothing_leaves_while_the_next_plan_cannot_be_made_and_it_is_made_once_it_can() {
    let Some(net) = Net::new() else { return };
    let other_host = net.second_client();
    let mut first = Exit::start(&net);
    let mut second = Exit::init_on(&other_host, &ExitOptions::second());
    second.run();
    let profile = first.enrol("laptop");
    let public = first.warren.public_key(profile.value("client", "private_key"));
    let own = net.client.own_files();
    let fails = own.run().join("nft-fails");
    own.program(
        "nft",
        "#!/bin/sh\nif test -e /run/nft-fails; then echo 'Error: the firewall is busy' >&2; exit 1; fi\nexec /usr/sbin/nft \"$@\"\n",
    );
    let client = Client::with(&net, &profile.with_failover_to(&second.enrol_key("laptop", &public)));
    // On a first start, this failure ends the client.
    std::fs::write(&fails, "").unwrap();
    let failed = client.warren.run("up home");
    assert!(failed.code == Some(1) && failed.stderr.contains("the firewall is busy"), "{failed:?}");
    std::fs::remove_file(&fails).unwrap();
    client.assert_host_unchanged();
    let left = Probing::counter(&net);
    let mut daemon = client.run("info");

    let probing = Probing::start(&net.client);
    std::fs::write(&fails, "").unwrap();
    first.stop(Signal::TERM);
    eventually(seconds(30), "the client says why", || {
        assert!(daemon.is_running(), "the client ended: {}", daemon.output());
        let status = client.status();
        status.text("/state") == "error" && status.text("/last_error").contains("the firewall is busy")
    });
    // Leaves time for some more attempts.
    std::thread::sleep(seconds(8));
    assert!(daemon.is_running(), "the client ended: {}", daemon.output());
    assert!(client.status().text("/error").contains("the firewall is busy"));
    std::fs::remove_file(&fails).unwrap();
    eventually(seconds(40), "the client is on the other exit", || {
        let status = client.status();
        status.text("/exit/endpoint") == "192.0.3.2:443" && status.text("/state") == "up"
    });
    client.sh("ping -c 1 -W 5 203.0.113.2");
    let sent = probing.end();
    assert!(sent > 40, "{sent} probes");
    assert_eq!(left(), 0);

    // The control: without a tunnel the counter sees the probes.
    client.down();
    let sent = { Probing::start(&net.client) }.for_a_while();
    assert!(left() >= sent / 2 && sent > 10, "{} of {sent}", left());
}
