//! The kill switch: what leaves a client's host in every state. Only `down` and `cleanup` open it.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::support::{
    Attempts, Client, Exit, LeakCounter, Net, Profile, Running, asked, eventually, fewest_attempts, seconds,
};

#[test]
fn nothing_leaves_outside_the_tunnel_in_any_state() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let client = Client::with(&net, &guarded(exit.enrol("laptop")).with("tun", "name", "warren0"));
    let leaks = LeakCounter::start(&net);
    leaks.assert_all("down");

    net.black_hole();
    let profile = client.warren.config("home.toml");
    let mut daemon = client.warren.start(&format!("client run {}", profile.display()));
    eventually(seconds(15), "the client tries to connect", || leaks.carried() > 0);
    leaks.assert_none("connecting");

    net.unfilter();
    wait_until_up(&client);
    leaks.assert_none("up");
    let let_out = client.sh("nft list table inet warren-kill-switch_home");
    assert!(
        let_out.contains("198.51.100.2 . 443") && !let_out.contains(". 53"),
        "no query is let out if there is no name to look up: {let_out}"
    );
    assert_eq!(client.status().0["kill_switch"], true);
    assert_eq!(client.sh("curl -sS --max-time 20 http://203.0.113.2/address"), Net::EXIT_V4);
    let sockets = client.sh(&format!("ss -H -uanpe | grep pid={}, | grep -v 127.0.0.1", daemon.pid()));
    assert!(sockets.lines().all(|socket| socket.contains("fwmark:0x5761")), "{sockets}");

    client.lose_device_to_another();
    eventually(seconds(10), "the client notices", || client.status().text("/state") == "error");
    leaks.assert_none("error");
    client.sh("ip link delete warren0");
    wait_until_up(&client);

    exit.stop(Signal::TERM);
    eventually(seconds(40), "the client notices", || client.status().text("/state") == "reconnecting");
    leaks.assert_none("reconnecting");

    exit.run();
    wait_until_up(&client);
    let before = leaks.leaked();
    let (mut while_stopping, mut afterwards) = (0, 0);
    // A stop takes a tenth of a second, so the test repeats it.
    for _ in 0..30 {
        let (during, after) = stop_under_attempts(&net, &mut daemon);
        while_stopping += during;
        afterwards += after;
        daemon = client.warren.start(&format!("client run {}", profile.display()));
        wait_until_up(&client);
        if while_stopping >= fewest_attempts() {
            break;
        }
    }
    assert!(while_stopping >= fewest_attempts(), "only {while_stopping} attempts during the stops");
    assert_eq!(leaks.leaked(), before, "packets left during or after a stop");
    println!("measured: stopping: 0 of {while_stopping}, and afterwards 0 of {afterwards}");

    exit.warren.run("exit client remove laptop").ok();
    eventually(seconds(15), "the client is refused", || client.status().text("/state") == "refused");
    leaks.assert_none("the exit has refused the client");
    assert_eq!(client.status().0["kill_switch"], true);

    assert!(!client.warren.run("up home").succeeded());
    leaks.assert_none("`up` has failed");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(seconds(15)), Some(0), "{}", daemon.output());
    leaks.assert_none("a refused daemon has ended");
    assert!(client.warren.run("status home").stderr.contains("its kill switch is closed"));
    assert!(!client.warren.run("up home").succeeded());
    leaks.assert_none("`up` has failed without a daemon");

    client.down();
    leaks.assert_all("down again");
}

/// Tells a daemon to stop. Returns the number of attempts to send packets until it had ended, and in the second after that.
fn stop_under_attempts(net: &Net, daemon: &mut Running) -> (usize, usize) {
    let attempts = Attempts::start(&net.client, 1.5);
    let made_before = attempts.made();
    daemon.signal(Signal::TERM);
    let mut while_stopping = 0;
    eventually(seconds(10), "the daemon stops", || {
        // The attempts are counted before the check, so that all of them were made while the daemon was running.
        let made = attempts.made() - made_before;
        let is_running = daemon.is_running();
        if is_running {
            while_stopping = made;
        }
        !is_running
    });
    (while_stopping, attempts.end() - made_before - while_stopping)
}

#[test]
fn a_killed_daemon_leaves_it_closed_whatever_routes_come() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    let leaks = LeakCounter::start(&net);
    let hostile_routes = [
        "ip route add 203.0.113.2/32 via 192.0.2.1; ip -6 route add 2001:db8:3::2/128 via 2001:db8:1::1",
        "ip route add 0.0.0.0/1 via 192.0.2.1; ip route add 128.0.0.0/1 via 192.0.2.1; \
         ip -6 route add 2000::/3 via 2001:db8:1::1",
        "ip route replace default via 192.0.2.1 metric 5; ip -6 route replace default via 2001:db8:1::1 metric 5",
    ];
    let undo_routes = "ip route del 203.0.113.2/32; ip -6 route del 2001:db8:3::2/128; ip route del 0.0.0.0/1; \
                       ip route del 128.0.0.0/1; ip -6 route del 2000::/3; ip route del default metric 5; \
                       ip -6 route del default metric 5";

    client.up();
    client.signal(Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || net.client.pids().is_empty());
    leaks.assert_all("no kill switch was asked for");
    client.down();

    client.warren.run("up home --kill-switch").ok();
    client.signal(Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || net.client.pids().is_empty());
    leaks.assert_none("the daemon was killed");
    if asked::<f32>("WARREN_ATTEMPTS").is_some() {
        // Scorecard K2 waits this long.
        std::thread::sleep(seconds(30));
        leaks.assert_none("half a minute after the daemon was killed");
    }
    for routes in hostile_routes {
        client.sh(routes);
        leaks.assert_none(routes);
    }
    net.client.sh(undo_routes);

    // A closed kill switch stays closed, even if the profile does not ask for it.
    client.up();
    leaks.assert_none("up again");
    client.sh("ip link delete warren0");
    leaks.assert_none("the device was deleted");
    client.signal(Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || net.client.pids().is_empty());
    leaks.assert_none("the daemon was killed again");

    client.warren.run("cleanup").ok();
    client.assert_host_unchanged();
    leaks.assert_all("cleanup was run");
}

#[test]
fn a_failed_up_opens_only_what_it_closed() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &guarded(exit.enrol("laptop")));
    let leaks = LeakCounter::start(&net);
    net.black_hole();

    let failed = client.warren.run("up home --timeout 1s");
    assert_eq!(failed.code, Some(5), "{}", failed.stderr);
    client.assert_host_unchanged();
    leaks.assert_all("`up` has failed with an open kill switch");

    client.warren.run("client close home").ok();
    leaks.assert_none("closed without a daemon");
    let failed = client.warren.run("up home --timeout 1s");
    assert_eq!(failed.code, Some(5), "{}", failed.stderr);
    assert!(failed.stderr.contains("the kill switch of home is closed"), "{}", failed.stderr);
    leaks.assert_none("`up` has failed with a closed kill switch");
    client.down();
}

#[test]
fn two_profiles_do_not_shut_each_other_in() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &guarded(exit.enrol("laptop")));
    let work = guarded(exit.enrol("work"))
        .with_exit("endpoint", format!("[{}]:443", Net::EXIT_V6))
        .with("tun", "name", "warren1")
        .with("routes", "include", vec!["203.0.113.0/24"]);
    client.warren.write("work.toml", 0o600, &work.text());
    let leaks = LeakCounter::start(&net);
    let passes = || client.sh("curl -sS --max-time 20 http://203.0.113.2/address");

    client.up();
    client.warren.run("up work").ok();
    assert_eq!(passes(), Net::EXIT_V4);
    assert!(client.sh("ip route get 203.0.113.2").contains("warren1"));
    assert_eq!(client.sh("curl -sS --max-time 20 http://[2001:db8:3::2]/address"), Net::EXIT_V6);
    leaks.assert_none("both tunnels are up");

    client.warren.run("down work").ok();
    assert_eq!(passes(), Net::EXIT_V4);
    leaks.assert_none("one tunnel is up");
    client.down();
}

#[test]
fn who_is_shut_in_by_another_profile_s_is_told_whose_it_is_and_what_to_do() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &guarded(exit.enrol("laptop")));
    client.warren.write("work.toml", 0o600, &exit.enrol("work").text());
    client.warren.run("client close home").ok();

    let refused = client.warren.run("up work --timeout 1s");
    let mut daemon = client.warren.start("--log info client run work");
    daemon
        .wait_for_output("this host lets nothing out to 198.51.100.2:443: the kill switch of home is closed");
    let doctor = client.warren.run("doctor").stdout.split_whitespace().collect::<Vec<_>>().join(" ");

    let named = "the kill switch of home is closed";
    assert!(
        refused.stderr.contains(named) && refused.stderr.contains("`warren down home`"),
        "{}",
        refused.stderr
    );
    assert!(
        doctor.contains(&format!("{named}, and home is not up")) && !doctor.contains("was killed"),
        "{doctor}"
    );
    assert!(!doctor.contains("does not answer"), "{doctor}");
    client.warren.run("down work").ok();
    client.warren.run("up work --kill-switch").ok();
    client.warren.run("down --all").ok();
    client.assert_host_unchanged();
}

#[test]
fn only_allowed_ports_answer_from_outside_and_containers_are_shut_in_too() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = guarded(exit.enrol("laptop")).with("kill_switch", "allow_inbound", vec!["tcp/2222"]);
    let client = Client::with(&net, &profile);
    let leaks = LeakCounter::start(&net);
    let _allowed = net.client.start(&["python3", "-m", "http.server", "2222"]);
    let _other = net.client.start(&["python3", "-m", "http.server", "2223"]);
    let container = net.container_behind_client();
    let reached = |port| {
        let line = format!("curl -sS -o /dev/null --max-time 2 http://192.0.2.2:{port}/");
        net.internet.host.sh(&line).succeeded()
    };
    let leaves = || {
        let before = leaks.leaked();
        container.sh("ping -c 3 -i 0.2 -W 1 203.0.113.2; ping -c 3 -i 0.2 -W 1 2001:db8:3::2");
        leaks.leaked() - before
    };
    eventually(seconds(10), "both ports answer while it is open", || reached(2222) && reached(2223));
    assert!(leaves() >= 6, "the container's packets leave while it is open");

    client.warren.run("client close home").ok();

    assert!(reached(2222) && !reached(2223));
    assert_eq!(leaves(), 0);
    client.warren.run("cleanup").ok();
    assert!(reached(2223));
}

/// The profile with the kill switch on.
fn guarded(profile: Profile) -> Profile {
    profile.with("kill_switch", "enabled", true)
}

#[track_caller]
fn wait_until_up(client: &Client<'_>) {
    eventually(seconds(30), "the tunnel is up", || {
        client.warren.status().is_some_and(|status| status.text("/state") == "up")
    });
}
