//! `warren portal`: opens a hotel's login page under a closed kill switch. Only one user's browser can send packets outside, to
//! the web and to the network's resolver.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use rustix::process::Signal;

use crate::dns::local_resolver;
use crate::support::counters::packets_of_one;
use crate::support::{
    Attempts, Client, Exit, LeakCounter, Net, Profile, Running, eventually, seconds, signal,
};

const PAGE: &str = "curl -sS --max-time 10 http://203.0.113.2/address";

/// Scorecard K1 and K2, with a portal.
#[test]
fn only_the_browser_of_one_user_gets_out_and_only_to_the_web_and_the_networks_resolver() {
    let Some(net) = Net::new() else { return };
    if net.client.own_cgroups().is_none() {
        return;
    }
    let _local = local_resolver(&net);
    let resolv_conf = net.client.etc().join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 192.0.2.1\n").unwrap();
    let exit = Exit::start(&net);
    let client = Client::with(&net, &guarded(exit.enrol("laptop")));
    let leaks = LeakCounter::start(&net);
    let counted = Counted::start(&net);
    // Control: with an open kill switch, the same attempts reach all of these.
    let before = counted.all();
    Attempts::start(&net.client, 1.0).end();
    let [web, names, other] = since(before, counted.all());
    assert!(web > 0 && names > 0 && other > 0, "control: {web} {names} {other}");

    net.black_hole();
    client.warren.run("client close home").ok();
    leaks.assert_none("closed");

    let before = counted.all();
    let attempts = inside(&client, &Attempts::words(2.0)).end();
    let [web, names, other] = since(before, counted.all());
    println!(
        "measured: in a portal: {web} to the web, {names} to the resolver, {other} elsewhere, of {attempts}"
    );
    assert!(web > 0 && names > 0, "the browser gets out");
    assert_eq!(other, 0, "of {attempts}");

    // Another user's program in the same cgroup is blocked. The control is the same program as the calling user.
    client.sh(&format!("chmod 755 {}", client.warren.config("..").display()));
    let script = client.warren.write("attempts.sh", 0o755, ATTEMPTS);
    let tried = |user: &str| {
        let before = leaks.leaked();
        // The command's own request for a login page is blocked, because its port is neither 80 nor 443.
        let line = format!("portal --url http://203.0.113.2:1/ home -- {user} bash {}", script.display());
        client.warren.run(&line).ok();
        leaks.leaked() - before
    };
    assert!(tried("env") >= MANY, "the control");
    assert_eq!(tried("setpriv --reuid=65534 --regid=65534 --clear-groups"), 0, "another user");

    let open = client.warren.start("portal home -- sleep 60");
    wait_until_open(&client);
    leaks.assert_none("a portal is open, for other programs");
    let second = client.warren.run("portal home -- true");
    assert!(second.stderr.contains("is open already"), "one at a time: {second:?}");
    open.signal(Signal::INT);
    eventually(seconds(10), "it is closed", || !is_open(&client));
    drop(open);
    leaks.assert_none("the portal is closed");

    assert_eq!(client.warren.run(&format!("portal home -- {PAGE}")).ok(), Net::CLIENT_V4);
    for servers in ["192.0.2.1", "127.0.0.53", "10.66.0.1"] {
        std::fs::write(&resolv_conf, format!("nameserver {servers}\nnameserver 192.0.2.1\n")).unwrap();
        let found = client.warren.run("portal home -- timeout 10 getent ahostsv4 www.router.test");
        assert!(found.succeeded() || servers == "10.66.0.1", "{servers}: {found:?}");
    }
    std::fs::write(&resolv_conf, "nameserver 192.0.2.1\n").unwrap();
    leaks.assert_none("all portals are closed");

    client.down();
    leaks.assert_all("down again");
    let off = guarded(exit.enrol("other")).with("kill_switch", "portal", "off");
    client.warren.write("home.toml", 0o600, &off.text());
    let refused = client.warren.run("portal home -- true");
    assert!(refused.stderr.contains("portal = \"off\""), "{refused:?}");
}

#[test]
fn it_is_closed_when_the_tunnel_is_up_and_when_any_process_dies_and_by_the_kernel_in_time() {
    let Some(net) = Net::new() else { return };
    if net.client.own_cgroups().is_none() {
        return;
    }
    let exit = Exit::start(&net);
    let client = Client::with(&net, &guarded(exit.enrol("laptop")));
    let leaks = LeakCounter::start(&net);
    let counted = Counted::start(&net);
    let web = || counted.all()[0];
    let closes = |when: &str| {
        std::thread::sleep(seconds(1));
        let before = web();
        std::thread::sleep(seconds(2));
        assert_eq!(web(), before, "{when}");
    };

    // The first case: there is no daemon, and the command is killed.
    net.black_hole();
    client.warren.run("client close home").ok();
    let open = start_attempts(&client, "portal home", &web);
    open.signal(Signal::KILL);
    closes("the command was killed");
    leaks.assert_none("the command was killed");
    end_programs(&net);

    // All processes that could close the portal are stopped.
    let open = start_attempts(&client, "portal --timeout 4s home", &web);
    let stopped = processes(&net, &["warren", "nft"]);
    assert!(stopped.len() >= 2, "{stopped:?}");
    // The program inside is not stopped and keeps trying.
    stopped.iter().for_each(|pid| signal(*pid, Signal::STOP));
    std::thread::sleep(seconds(4));
    closes("the time is over, by the kernel's clock");
    assert!(is_open(&client), "the table is still there, and lets nothing out");
    leaks.assert_none("the time is over, by the kernel's clock");
    stopped.iter().for_each(|pid| signal(*pid, Signal::CONT));
    drop(open);
    end_programs(&net);
    eventually(seconds(10), "its processes have ended", || processes(&net, &["warren", "nft"]).is_empty());

    // The next case: a daemon has opened the portal, and is killed.
    net.unfilter();
    client.warren.run("up home").ok();
    let connected = client.warren.run("portal home -- true");
    assert!(connected.stderr.contains("home is connected"), "{connected:?}");
    net.black_hole();
    eventually(seconds(60), "it reconnects", || state(&client) == "reconnecting");
    let mut open = start_attempts(&client, "portal home", &web);
    client.signal(Signal::KILL);
    eventually(seconds(10), "the command has ended", || !open.is_running());
    assert!(open.output().contains("the daemon of home has stopped"), "{}", open.output());
    closes("the daemon was killed");
    leaks.assert_none("the daemon was killed");

    // The tunnel comes up.
    net.unfilter();
    client.warren.run("up home").ok();
    net.black_hole();
    eventually(seconds(60), "it reconnects", || state(&client) == "reconnecting");
    let mut open = start_attempts(&client, "portal home", &web);
    net.unfilter();
    eventually(seconds(60), "the command has ended", || !open.is_running());
    assert!(open.output().contains("home is connected; the login page is closed"), "{}", open.output());
    closes("the tunnel is up");
    client.down();
}

#[test]
fn users_open_it_as_the_profile_allows_and_the_browser_runs_as_the_caller_with_a_new_profile() {
    let Some(net) = Net::new() else { return };
    if net.client.own_cgroups().is_none() {
        return;
    }
    let exit = Exit::start(&net);
    let profile = guarded(exit.enrol("laptop"));
    let client = Client::with(&net, &profile);
    // An earlier test that was killed may have left some of these profiles.
    let profiles = client.sh(PROFILES);
    client.sh(&format!("chmod 755 {}", client.warren.config("..").display()));
    client.up();
    net.black_hole();
    eventually(seconds(60), "it reconnects", || state(&client) == "reconnecting");
    let refused = client.warren.run_as_nobody("portal home -- true");
    assert!(!refused.succeeded() && refused.stderr.contains("lets only root"), "{refused:?}");
    net.unfilter();
    client.down();

    // Users who may put their programs outside may also open a portal.
    let allowed =
        profile.with("exec", "users", vec!["nobody"]).with("kill_switch", "allow_exec_outside", true);
    client.warren.write("home.toml", 0o600, &allowed.text());
    let leaks = LeakCounter::start(&net);
    client.up();
    let refused = client.warren.run_as_nobody("portal home -- true");
    assert!(refused.stderr.contains("home is connected"), "{refused:?}");
    net.black_hole();
    eventually(seconds(60), "it reconnects", || state(&client) == "reconnecting");
    let page = client.warren.run_as_nobody(&format!("portal home -- {PAGE}"));
    assert_eq!(page.stdout.trim_end(), Net::CLIENT_V4, "{page:?}");
    eventually(seconds(5), "the daemon closes it", || !is_open(&client));
    leaks.assert_none("the user's portal has ended");

    // With sudo, the browser runs as the calling user.
    let directory = client.warren.config("../browser");
    let program = directory.join("warren");
    client.sh(&format!(
        "mkdir -m 755 {0} && install -m 755 {1} {2} && printf '#!/bin/sh\\nid -u; for word; do echo $word; done; ls -ld ${{1#*=}}\\n' > {0}/chromium && chmod 755 {0}/chromium",
        directory.display(),
        env!("CARGO_BIN_EXE_warren"),
        program.display()
    ));
    let _page = net.router.start(&["python3", "-u", "-c", LOGIN]);
    eventually(seconds(10), "the login page is there", || {
        net.router.sh("curl -sS --max-time 5 http://192.0.2.1/").succeeded()
    });
    let [config, runtime] = ["", "../runtime"].map(|name| client.warren.config(name).display().to_string());
    let shown = client.sh(&format!(
        "SUDO_UID=65534 BROWSER={}/chromium {} --config-dir={config} --runtime-dir={runtime} portal home --url http://192.0.2.1/ 2>&1",
        directory.display(),
        program.display()
    ));
    assert!(shown.contains("the login page is http://login.test/?room=7"), "{shown}");
    assert!(
        shown.contains("\n65534\n--user-data-dir=") && shown.contains("\nhttp://login.test/?room=7\n"),
        "{shown}"
    );
    leaks.assert_none("the browser has ended");
    assert_eq!(client.sh(PROFILES), profiles, "the browser's profile is removed");
    net.unfilter();
    client.down();
}

/// Lists the throw-away profiles.
const PROFILES: &str = "ls -d /tmp/warren-portal-* 2>/dev/null || true";
const MANY: usize = 500;
/// Tries to reach a resolver 500 times, and a web server ten times.
const ATTEMPTS: &str = "for i in {1..500}; do\n\
                        echo > /dev/udp/192.0.2.1/53\n\
                        (( i % 50 )) || timeout 1 bash -c 'echo > /dev/tcp/203.0.113.2/80'\n\
                        done 2>/dev/null\ntrue\n";

/// Answers every request with a redirection, as a hotel does.
const LOGIN: &str = "
import http.server
class Login(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        self.send_header('Location', 'http://login.test/?room=7')
        self.end_headers()
http.server.HTTPServer(('192.0.2.1', 80), Login).serve_forever()
";

/// Runs a program in a portal that tries to send packets in every way.
fn inside(client: &Client<'_>, words: &str) -> Attempts {
    Attempts::by(client.warren.start(&format!("portal home -- {words}")))
}

/// Opens a portal with a program that tries to send packets in every way. Returns once some of its packets have left.
fn start_attempts(client: &Client<'_>, line: &str, web: &dyn Fn() -> u64) -> Running {
    let before = web();
    let mut open = client.warren.start(&format!("{line} -- {}", Attempts::words(30.0)));
    open.wait_for_output(".");
    eventually(seconds(10), "the program gets out", || web() > before + 3);
    open
}

/// Ends programs whose portal was killed.
fn end_programs(net: &Net) {
    processes(net, &["python3"]).iter().for_each(|pid| signal(*pid, Signal::KILL));
}

/// The processes on the client's host with one of these names.
fn processes(net: &Net, names: &[&str]) -> Vec<i32> {
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    net.client.pids().into_iter().filter(|pid| names.contains(&name(pid).trim_end())).collect()
}

fn wait_until_open(client: &Client<'_>) {
    eventually(seconds(10), "it is open", || is_open(client));
}

fn is_open(client: &Client<'_>) -> bool {
    client.warren.host.sh("nft list table inet warren-portal_home").succeeded()
}

fn state(client: &Client<'_>) -> String {
    client.warren.status().map(|status| status.text("/state").to_owned()).unwrap_or_default()
}

/// The profile with the kill switch on.
fn guarded(profile: Profile) -> Profile {
    profile.with("kill_switch", "enabled", true)
}

fn since(before: [u64; 3], now: [u64; 3]) -> [u64; 3] {
    [0, 1, 2].map(|index| now[index] - before[index])
}

/// Counts the packets that the router receives from the client: to the web, to the router's resolver, and to other destinations.
struct Counted<'net>(&'net Net);

impl<'net> Counted<'net> {
    fn start(net: &'net Net) -> Self {
        let chain = "table netdev portal {
            counter web { }
            counter names { }
            counter other { }
            chain received {
                type filter hook ingress device to-client priority -450;
                udp dport 443 udp sport != 40000-40999 accept
                tcp dport { 80, 443 } counter name web accept
                ip daddr 192.0.2.1 meta l4proto { tcp, udp } th dport 53 counter name names accept
                icmpv6 type { 131, 132, 133, 135, 136, 143 } accept
                meta protocol { ip, ip6 } counter name other
            }
        }";
        net.router.sh(&format!("nft '{chain}'")).ok();
        Self(net)
    }

    fn all(&self) -> [u64; 3] {
        ["web", "names", "other"].map(|name| {
            packets_of_one(&self.0.router.sh(&format!("nft list counter netdev portal {name}")).ok())
        })
    }
}
