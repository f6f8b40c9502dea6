//! `warren exec`: a program inside the tunnel while the host is outside, and the other way round. None of the program's
//! packets leaves on the wrong side while the tunnel is up, while it goes down, or after the daemon was killed.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::dns::{CountsQueries as _, ask_every_way, asks, exit_with_resolver, local_resolver};
use crate::support::counters::packets_of_one;
use crate::support::{Attempts, Client, Exit, LeakCounter, Net, eventually, seconds};

/// The least number of attempts that a check must make.
const MANY: usize = 1_000;
const ADDRESS: &str = "curl -sS --max-time 20 http://203.0.113.2/address";
const ADDRESS_V6: &str = "curl -sS --max-time 20 http://[2001:db8:3::2]/address";

#[test]
fn program_inside_never_leaves_outside_up_going_down_or_killed() {
    let Some(net) = Net::new() else { return };
    if net.client.own_cgroups().is_none() {
        return;
    }
    let _local = local_resolver(&net);
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let leaks = LeakCounter::start(&net);

    // Brings the profile up only for programs of `warren exec`.
    let first = client.warren.run(&format!("exec home -- {ADDRESS}"));
    assert_eq!((first.stdout.trim_end(), first.code), (Net::EXIT_V4, Some(0)), "{}", first.stderr);
    assert!(first.stderr.contains("this host stays outside"), "{}", first.stderr);
    assert_eq!(client.warren.run(&format!("exec -- {ADDRESS_V6}")).ok(), Net::EXIT_V6);
    assert_eq!(client.sh(ADDRESS), Net::CLIENT_V4);
    // Control: the same attempts leave outside if the program is not inside.
    leaks.assert_all("not inside");
    let outside = Counted::outside(&net);
    let before = outside.packets();
    Attempts::start(&net.client, 0.6).end();
    assert!(outside.packets() > before + 100, "control");

    assert_inside(&client, &outside, "up");
    names_are_asked_inside(&net, &client);

    let (attempts, leaked) = while_inside(&client, &outside, || {
        let down = client.warren.run("down home");
        assert!(down.succeeded() && down.stderr.contains("cut off"), "{down:?}");
    });
    println!("measured: going down: {leaked} of {attempts}");
    assert_eq!(leaked, 0, "of {attempts} while it went down");
    client.warren.run("cleanup home").ok();
    client.assert_host_unchanged();

    client.warren.run("exec home -- true").ok();
    let (attempts, leaked) = while_inside(&client, &outside, || {
        client.signal(Signal::KILL);
        std::thread::sleep(seconds(1));
        // The program stays without network access, no matter which command cleans up after the daemon.
        client.warren.run("cleanup --keep").ok();
    });
    println!("measured: killed: {leaked} of {attempts}");
    assert_eq!(leaked, 0, "of {attempts} after the daemon was killed");

    // When the next daemon runs, programs from the time of an earlier daemon are inside again.
    let mut waiting = client.warren.start("exec home -- sleep 3600");
    eventually(seconds(20), "it is inside", || {
        client
            .sh("cat /sys/fs/cgroup/warren.slice/warren-home.slice/exec/cgroup.procs")
            .contains(&waiting.pid().to_string())
    });
    client.signal(Signal::KILL);
    eventually(seconds(5), "the daemon is gone", || client.warren.status().is_none());
    client.warren.run("up home").ok();
    assert_inside(&client, &outside, "up again, with the host inside");
    waiting.signal(Signal::KILL);
    waiting.wait(seconds(5));
    client.down();
}

#[test]
fn program_outside_never_gets_into_the_tunnel_and_a_kill_switch_refuses_it() {
    let Some(net) = Net::new() else { return };
    if net.client.own_cgroups().is_none() {
        return;
    }
    let _local = local_resolver(&net);
    std::fs::write(net.client.etc().join("resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &profile);
    let leaks = LeakCounter::start(&net);
    let through = Counted::through_exit(&net);
    client.up();

    assert_eq!(client.sh(ADDRESS), Net::EXIT_V4);
    for (line, address) in [(ADDRESS, Net::CLIENT_V4), (ADDRESS_V6, Net::CLIENT_V6)] {
        assert_eq!(client.warren.run(&format!("exec --outside home -- {line}")).ok(), address);
    }
    let getent = |options: &str, name: &str| {
        client.warren.run(&format!("exec {options} home -- timeout 10 getent ahostsv4 {name}")).succeeded()
    };
    let before = net.exit_queries();
    assert!(getent("--outside", "www.router.test"), "the network's own resolver answers");
    assert!(!getent("--outside", "www.internet.test"), "the exit's resolver is not asked");
    assert_eq!(net.exit_queries(), before, "no query went into the tunnel");
    assert!(getent("", "www.internet.test") && asks(&net.client, "www.internet.test"));

    // Control: programs of the host go through the tunnel.
    let counted = through.packets();
    Attempts::start(&net.client, 0.6).end();
    assert!(through.packets() > counted + 20, "control");
    for when in ["up", "going down", "killed"] {
        let counted = through.packets();
        let before = leaks.leaked();
        let attempts =
            Attempts::by(client.warren.start(&format!("exec --outside home -- {}", Attempts::words(4.0))));
        std::thread::sleep(seconds(1));
        match when {
            "going down" => drop(client.warren.run("down home").ok()),
            "killed" => client.signal(Signal::KILL),
            _ => {}
        }
        let attempts = attempts.end();
        println!("measured: outside, {when}: {} of {attempts} in the tunnel", through.packets() - counted);
        assert_eq!(through.packets(), counted, "{when}: packets in the tunnel, of {attempts}");
        assert!(attempts >= MANY && leaks.leaked() - before >= attempts / 2, "{when}: {attempts} attempts");
        if when == "going down" {
            client.up();
        }
    }
    client.down();

    let guarded = profile.with("kill_switch", "enabled", true);
    client.warren.write("home.toml", 0o600, &guarded.text());
    let closed = client.warren.run("exec home -- true");
    assert!(closed.stderr.contains("its kill switch is for the whole host"), "{}", closed.stderr);
    client.up();
    let refused = client.warren.run(&format!("exec --outside home -- {ADDRESS}"));
    assert!(!refused.succeeded() && refused.stderr.contains("allow_exec_outside = true"), "{refused:?}");
    assert_eq!(client.warren.run(&format!("exec home -- {ADDRESS}")).ok(), Net::EXIT_V4);
    leaks.assert_none("the kill switch is closed");
    let allowed = guarded.with("kill_switch", "allow_exec_outside", true);
    client.warren.write("home.toml", 0o600, &allowed.text());
    client.warren.run("reload home").ok();
    assert_eq!(client.warren.run(&format!("exec --outside home -- {ADDRESS}")).ok(), Net::CLIENT_V4);
    leaks.assert_none("a program may be outside, and no other");
    client.down();
}

#[test]
fn users_and_units_are_put_inside_as_the_profile_allows() {
    let Some(net) = Net::new() else { return };
    let Some(cgroups) = net.client.own_cgroups() else { return };
    let exit = exit_with_resolver(&net, Net::INTERNET_V4);
    let profile = exit.enrol("laptop").with("routes", "include", vec!["10.9.0.0/16"]);
    // With forwards, answers to visitors have a routing table of their own too.
    let profile = profile.with("forwards", "allow", vec!["tcp/8443"]);
    let client = Client::with(&net, &profile);
    client.sh(&format!("chmod 755 {}", client.warren.config("..").display()));
    client.up();
    let refused = client.warren.run_as_nobody(&format!("exec home -- {ADDRESS}"));
    assert!(!refused.succeeded() && refused.stderr.contains("lets only root use"), "{refused:?}");
    client.down();

    let of_another = profile.clone().with("exec", "users", vec!["4711"]);
    client.warren.write("home.toml", 0o600, &of_another.text());
    client.up();
    let refused = client.warren.run_as_nobody(&format!("exec home -- {ADDRESS}"));
    assert!(!refused.succeeded() && refused.stderr.contains("user 65534 may use neither"), "{refused:?}");
    client.down();

    client.warren.write("home.toml", 0o600, &profile.with("exec", "users", vec!["nobody"]).text());
    client.up();
    assert_eq!(client.sh(ADDRESS), Net::CLIENT_V4, "a split tunnel leaves the host outside");
    let inside = client.warren.run_as_nobody(&format!("exec home -- {ADDRESS}"));
    assert_eq!(inside.stdout.trim_end(), Net::EXIT_V4, "{inside:?}");
    assert_eq!(client.warren.run_as_nobody("exec -- id -u").ok(), "65534");

    // Root runs a program inside as another user.
    let as_nobody = client.warren.run(&format!("exec --user nobody home -- {ADDRESS}"));
    assert_eq!(as_nobody.stdout.trim_end(), Net::EXIT_V4, "{as_nobody:?}");
    let shown = |command: &str| client.warren.run(&format!("exec --user nobody home -- {command}")).ok();
    assert_eq!((shown("id -u"), shown("id -g")), ("65534".to_owned(), "65534".to_owned()));
    assert_eq!(shown("printenv USER HOME"), "nobody\n/nonexistent");
    let process = shown("cat /proc/self/cgroup /proc/self/status");
    assert!(
        process.contains("warren-home.slice") && process.contains("CapEff:\t0000000000000000"),
        "{process}"
    );
    let unknown = client.warren.run("exec --user nobody2 home -- true");
    assert!(unknown.stderr.contains("does not list the user \"nobody2\""), "{unknown:?}");
    let refused = client.warren.run_as_nobody("exec --user nobody home -- true");
    assert!(refused.code == Some(2) && refused.stderr.contains("--user is for root"), "{refused:?}");
    // In a login session, systemd would move the program out of the tunnel.
    let warned = client.warren.run("exec home -- su --version");
    assert!(warned.succeeded() && warned.stderr.contains("su may open a login session"), "{warned:?}");

    // systemd puts a unit with `Slice=warren-home.slice` into this cgroup.
    let unit = cgroups.path("warren.slice/warren-home.slice/web.service");
    std::fs::create_dir(&unit).unwrap();
    let mut program =
        net.client.start(&["sh", "-c", &format!("echo begun; sleep 1; {ADDRESS}; {ADDRESS_V6}")]);
    program.wait_for_output("begun");
    std::fs::write(unit.join("cgroup.procs"), program.pid().to_string()).unwrap();
    assert_eq!(program.wait(seconds(40)), Some(0));
    assert_eq!(program.output(), format!("begun\n{}\n{}\n", Net::EXIT_V4, Net::EXIT_V6));
    std::fs::remove_dir(unit).unwrap();
    client.down();
}

#[test]
fn strangers_neither_keep_users_out_nor_fill_the_log_and_a_profile_that_is_down_is_not_named() {
    let Some(net) = Net::new() else { return };
    if net.client.own_cgroups().is_none() {
        return;
    }
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop").with("routes", "include", vec!["10.9.0.0/16"]);
    let client = Client::with(&net, &profile.with("exec", "users", vec!["nobody"]));
    client.sh(&format!("chmod 755 {}", client.warren.config("..").display()));
    let daemon = client.run("info");
    let socket = client.warren.config("../runtime/.home.exec");
    assert!(socket.exists(), "{}", socket.display());
    let connect = |user: u32, times: usize| {
        let (user, times) = (user.to_string(), times.to_string());
        net.client.start(&["python3", "-uc", CONNECT, socket.to_str().unwrap(), &user, &times])
    };

    let mut stranger = connect(4_711, 200);
    stranger.wait_for_output("connected");
    assert_eq!(client.warren.run_as_nobody("exec home -- id -u").ok(), "65534");
    assert!(stranger.is_running(), "it still has its connections");
    let said = stranger.output();
    assert!(said.contains("200 answers") && said.contains("user 4711 may use neither"), "{said}");
    let lines = daemon.output().matches("was refused").count();
    assert_eq!(lines, 1, "{}", daemon.output());

    // One allowed user cannot keep other users out.
    let mut other = connect(65_534, 40);
    other.wait_for_output("connected");
    assert!(other.output().contains("user 65534 are asking at this moment"), "{}", other.output());
    assert_eq!(client.warren.run("exec home -- id -u").ok(), "0");
    drop((stranger, other));

    client.warren.run("down home").ok();
    assert!(!socket.exists());
    let nothing = client.warren.run_as_nobody("exec -- true");
    assert!(nothing.stderr.contains("no profile allows users"), "{nothing:?}");
}

/// Opens many connections, sends nothing, and keeps them open. Prints how many are answered.
const CONNECT: &str = r#"
import os, socket, sys, time
held = []
os.setgroups([])
os.setuid(int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.settimeout(0.05)
    held.append(one)
answers = []
for one in held:
    try:
        answers.append(one.recv(4096))
    except TimeoutError:
        pass
print(len(answers), "answers", answers[-1])
print("connected")
time.sleep(60)
"#;

#[test]
fn an_nft_that_fails_leaves_nothing_behind_accuses_nobody_and_is_tried_again() {
    let Some(net) = Net::new() else { return };
    let Some(cgroups) = net.client.own_cgroups() else { return };
    let exit = Exit::start(&net);
    let files = net.client.own_files();
    files.program("nft", FAILING);
    let fails = |what: &str| std::fs::write(files.run().join("nft-fails"), what).unwrap();
    let profile = exit.enrol("laptop").with("routes", "include", vec!["10.9.0.0/16"]);
    let client = Client::with(&net, &profile);
    let tables = || client.sh("/usr/sbin/nft list tables");

    // nft fails to list the table although it exists. The daemon must remember the table, or `down` would leave it behind.
    fails("list table inet warren-exec_home");
    let daemon = client.run("info");
    client.warren.run("exec home -- true").ok();
    assert!(tables().contains("warren-exec_home"), "the control: the table is there");
    fails("nothing");
    client.warren.run("down home").ok();
    assert!(!tables().contains("warren-exec_home"), "{}", tables());
    drop(daemon);

    // nft fails to load the table after its cgroup was recreated.
    let daemon = client.run("info");
    assert_eq!(client.warren.run(&format!("exec home -- {ADDRESS}")).ok(), Net::EXIT_V4);
    fails("table inet warren-exec_home {");
    std::fs::remove_dir(cgroups.path("warren.slice/warren-home.slice/exec")).unwrap();
    std::fs::remove_dir(cgroups.path("warren.slice/warren-home.slice")).unwrap();
    eventually(seconds(20), "the load fails", || daemon.output().contains("nft cannot load the table"));
    fails("nothing");
    assert_eq!(client.warren.run(&format!("exec home -- {ADDRESS}")).ok(), Net::EXIT_V4);
    std::thread::sleep(seconds(2));
    assert!(!daemon.output().contains("somebody has changed"), "{}", daemon.output());
    // The control: another program does change the table.
    client.sh("/usr/sbin/nft flush table inet warren-exec_home");
    eventually(seconds(20), "that is said", || daemon.output().contains("somebody has changed the table"));
    client.warren.run("down home").ok();
    drop(daemon);

    // The kill switch lets the program out at the second attempt.
    let guarded = exit.enrol("guarded").with("kill_switch", "enabled", true);
    let guarded = guarded.with("kill_switch", "allow_exec_outside", true);
    client.warren.write("home.toml", 0o600, &guarded.text());
    client.up();
    fails("table inet warren-kill-switch_home {");
    let failed = client.warren.run("exec --outside home -- true");
    assert!(!failed.succeeded(), "the control: {failed:?}");
    fails("nothing");
    assert_eq!(client.warren.run(&format!("exec --outside home -- {ADDRESS}")).ok(), Net::CLIENT_V4);
    client.warren.run("down home").ok();
}

/// An nft that fails if its options or its input contain the text in `/run/nft-fails`.
const FAILING: &str = r#"#!/bin/sh
case " $* " in *' -i '*) echo 'This binary was built without it.'; exit 1;; esac
what=$(cat /run/nft-fails 2>/dev/null)
case "$*" in *"${what:-nothing}"*) echo 'Error: no'; exit 1;; esac
case " $* " in *' -f '*) ;; *) exec /usr/sbin/nft "$@";; esac
input=$(cat)
case "$input" in *"${what:-nothing}"*) echo 'Error: no'; exit 1;; esac
printf '%s
' "$input" | /usr/sbin/nft "$@"
"#;

/// Runs a program inside that tries to send in every way. Fails if any packet leaves outside the tunnel.
#[track_caller]
fn assert_inside(client: &Client<'_>, outside: &Counted<'_>, when: &str) {
    let (attempts, leaked) = while_inside(client, outside, || {});
    println!("measured: inside, {when}: {leaked} of {attempts}");
    assert_eq!(leaked, 0, "of {attempts} while {when}");
}

/// Runs `act` while a program inside tries to send in every way. Returns the numbers of attempts and of packets that left
/// outside.
#[track_caller]
fn while_inside(client: &Client<'_>, outside: &Counted<'_>, act: impl FnOnce()) -> (usize, u64) {
    let before = outside.packets();
    let attempts = Attempts::by(client.warren.start(&format!("exec home -- {}", Attempts::words(5.0))));
    std::thread::sleep(seconds(1));
    act();
    let attempts = attempts.end();
    assert!(attempts >= MANY, "only {attempts} attempts");
    (attempts, outside.packets() - before)
}

/// Names are looked up at the tunnel's resolver, whichever resolver a program asks, even one on this host.
fn names_are_asked_inside(net: &Net, client: &Client<'_>) {
    let finds = |name: &str| {
        client.warren.run(&format!("exec home -- timeout 10 getent ahostsv4 {name}")).succeeded()
    };
    let resolv_conf = net.client.etc().join("resolv.conf");
    let listed = std::fs::read_to_string(&resolv_conf).unwrap();
    for servers in ["192.0.2.1", "127.0.0.53"] {
        std::fs::write(&resolv_conf, format!("nameserver {servers}\n")).unwrap();
        let before = net.client_queries();
        assert!(finds("www.internet.test"), "the tunnel's resolver answers in place of {servers}");
        assert!(!finds("www.router.test"), "{servers} is not asked");
        assert_eq!(net.client_queries(), before, "no query left outside");
    }
    // Control: a program of the host asks a resolver outside.
    let before = net.client_queries();
    ask_every_way(&net.client, "192.0.2.1");
    assert!(net.client_queries().udp > before.udp);
    std::fs::write(resolv_conf, listed).unwrap();
}

/// Counts packets of the client's programs at the router.
struct Counted<'net> {
    net: &'net Net,
    name: &'static str,
}

impl<'net> Counted<'net> {
    /// Counts packets that come out of the tunnel at the exit, on their way to the internet host.
    fn through_exit(net: &'net Net) -> Self {
        let (v4, v6) = (Net::INTERNET_V4, Net::INTERNET_V6);
        Self::new(
            net,
            "inner",
            "to-exit",
            &format!("ip daddr {v4} counter name inner; ip6 daddr {v6} counter name inner"),
        )
    }

    /// Counts packets that leave the client outside the tunnel. After the client's daemon was killed, the client's kernel answers
    /// the exit with ICMP errors. These errors are not counted, because no program sends them.
    fn outside(net: &'net Net) -> Self {
        let (v4, v6) = (Net::EXIT_V4, Net::EXIT_V6);
        let rules = format!(
            "udp sport 40000-40999 counter name outer accept; ip daddr {v4} udp dport 443 accept; ip6 daddr {v6} udp dport 443 \
             accept; icmp type destination-unreachable accept; icmpv6 type {{ 1, 131, 132, 133, 135, 136, 143 }} accept; meta \
             protocol {{ ip, ip6 }} counter name outer"
        );
        Self::new(net, "outer", "to-client", &rules)
    }

    fn new(net: &'net Net, name: &'static str, device: &str, rules: &str) -> Self {
        let hook = format!("type filter hook ingress device {device} priority -400");
        let table =
            format!("table netdev {name} {{ counter {name} {{ }}; chain received {{ {hook}; {rules}; }}; }}");
        net.router.sh(&format!("nft '{table}'")).ok();
        Self { net, name }
    }

    fn packets(&self) -> u64 {
        let Self { net, name } = self;
        packets_of_one(&net.router.sh(&format!("nft list counter netdev {name} {name}")).ok())
    }
}
