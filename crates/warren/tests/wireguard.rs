//! WireGuard clients of an exit: wireguard-go through the same rules as Warren's own clients.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use warren_wireguard::PrivateKey;

use crate::support::terminal::Terminal;
use crate::support::wireguard_go::{self, WireGuardGo, values};
use crate::support::{Client, Exit, ExitOptions, Namespace, Net, eventually, seconds};

const PORT: u16 = 51_820;

/// An exit that serves WireGuard too.
fn exit_with_wireguard(net: &Net) -> Exit<'_> {
    let mut exit = Exit::init(net, &ExitOptions::default());
    serve_wireguard(&exit);
    exit.run();
    exit
}

fn serve_wireguard(exit: &Exit<'_>) {
    exit.configure(|config| config.with("wireguard", "listen", vec!["0.0.0.0:51820", "[::]:51820"]));
}

/// Enrols a client. Returns its configuration.
fn enrol(exit: &Exit<'_>, name: &str) -> String {
    exit.warren.run(&format!("exit client add {name} --wireguard")).ok()
}

fn connected(exit: &Exit<'_>) -> usize {
    exit.status().list("/sessions").len()
}

#[test]
fn wireguard_go_reaches_the_internet_through_the_exit_over_both_versions() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let file = enrol(&exit, "phone");
    assert_eq!(values(&file, "Endpoint"), [format!("{}:{PORT}", Net::EXIT_V4)]);
    let digest = |host: &Namespace| {
        let of = |of| host.sh(&format!("curl -sS --max-time 60 http://{of}/bytes/20000000 | sha256sum")).ok();
        (of("203.0.113.2"), of("[2001:db8:3::2]"))
    };
    let direct = digest(&net.client);

    let phone = WireGuardGo::up(&net.client, &file);

    let seen = |of| phone.sh(&format!("curl -sS --max-time 20 http://{of}/address"));
    assert_eq!((seen("203.0.113.2"), seen("[2001:db8:3::2]")), (Net::EXIT_V4.into(), Net::EXIT_V6.into()));
    assert_eq!(phone.sh("dig +short @203.0.113.2 www.internet.test A"), Net::INTERNET_V4);
    // The downloads need the MSS that the exit writes into each SYN: without it, the internet host's packets would be too large.
    assert_eq!(digest(&net.client), direct);
    let _server = net.internet.iperf3(5_201);
    phone.sh(&format!("iperf3 --client {} --bytes 30M", Net::INTERNET_V4));
    assert!(phone.pings(Net::INTERNET_V4) && phone.pings(Net::INTERNET_V6));

    let status = exit.status();
    // Packets that the phone's system sends on its own link do not count as an attack.
    assert!(phone.sh("ip -6 address show").contains("inet6 fe80::"));
    let of = |reason| status.drop("tun", reason);
    assert!(of("spoofed_source") == 0 && of("link_local") > 0, "{status:?}");
    assert_eq!(status.text("/sessions/0/name"), "phone");
    assert_eq!(status.0.pointer("/connections/0/wireguard").unwrap(), true);
    assert!(status.text("/connections/0/remote").starts_with(Net::CLIENT_V4), "{status:?}");
    assert_eq!(status.text("/wireguard/public_key"), values(&file, "PublicKey")[0]);
    eventually(seconds(10), "the counters' sums hold", || {
        let status = exit.status();
        let total = |name: &str| status.number(&format!("/totals/{name}"));
        total("carrier_received_packets") == total("tun_written_packets") + status.drops("tun")
            && total("tun_read_packets") == total("carrier_sent_packets") + status.drops("carrier")
    });
    let shown = exit.warren.run("exit client show phone").ok();
    assert!(shown.contains("WireGuard") && shown.contains("connected"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&exit.warren.run("exit client show phone --json").ok()).unwrap();
    assert!(json["sent_bytes"].as_u64().unwrap() > 40_000_000, "{json}");
    // Each system call carries many packets, both ways, so WireGuard clients get the offloads.
    let (writes, packets) = status.writes_and_packets();
    assert!(packets > writes, "{packets} packets in {writes} writes");
    let sends = status.0.pointer("/occupancy/segments_per_send").unwrap().as_array().unwrap();
    let many: u64 = sends.iter().skip(10).filter_map(serde_json::Value::as_u64).sum();
    assert!(many > 100, "{sends:?}");
}

#[test]
fn a_second_implementation_connects_over_both_versions_roams_and_is_cut_off() {
    let Some(net) = Net::new() else { return };
    let Some(line) = wireguard_go::gotatun() else { return };
    let exit = exit_with_wireguard(&net);

    let phone = WireGuardGo::up_by(&line, &net.client, &enrol(&exit, "phone"));

    let seen = |of| phone.sh(&format!("curl -sS --max-time 20 http://{of}/address"));
    assert_eq!((seen("203.0.113.2"), seen("[2001:db8:3::2]")), (Net::EXIT_V4.into(), Net::EXIT_V6.into()));
    assert_eq!(connected(&exit), 1);
    let _server = net.internet.iperf3(5_201);
    for way in ["", "--reverse"] {
        phone.sh(&format!("iperf3 --client {} --bytes 10M {way}", Net::INTERNET_V4));
    }
    move_and_expect_an_answer(&net, &exit, &phone);

    exit.warren.run("exit client remove phone").ok();
    let removed = Instant::now();
    eventually(seconds(10), "it is cut off", || !phone.pings(Net::INTERNET_V4));
    assert!(removed.elapsed() < Duration::from_secs(4), "after {:?}", removed.elapsed());
    assert!(!phone.pings(Net::INTERNET_V6) && connected(&exit) == 0);
}

#[test]
fn a_client_that_changes_its_address_is_answered_there_and_keeps_its_session() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let phone = WireGuardGo::up(&net.client, &enrol(&exit, "phone"));
    assert!(phone.pings(Net::INTERNET_V4));
    move_and_expect_an_answer(&net, &exit, &phone);
}

/// Gives the client's host another address, and expects that the session continues.
fn move_and_expect_an_answer(net: &Net, exit: &Exit<'_>, phone: &WireGuardGo<'_>) {
    let session = exit.status().number("/sessions/0/id");

    let moves = "ip address delete 192.0.2.2/24 dev eth0 && ip address add 192.0.2.77/24 dev eth0";
    net.client.sh(&format!("{moves} && ip route replace default via 192.0.2.1")).ok();

    eventually(seconds(20), "the client is answered at its new address", || phone.pings(Net::INTERNET_V4));
    let status = exit.status();
    assert!(status.text("/connections/0/remote").starts_with("192.0.2.77:"), "{status:?}");
    assert_eq!(status.number("/sessions/0/id"), session);
}

#[test]
fn a_wireguard_client_is_limited_isolated_and_cut_off_like_any_other() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let other_host = net.second_client();
    let phone_file = enrol(&exit, "phone --rate-limit 64kbit");
    let phone = WireGuardGo::up(&net.client, &phone_file);
    let tablet_file = enrol(&exit, "tablet");
    let tablet = WireGuardGo::up(&other_host, &tablet_file);
    eventually(seconds(10), "both are up", || {
        phone.pings(Net::INTERNET_V4) && tablet.pings(Net::INTERNET_V4)
    });

    // The client's rate limit applies in both directions.
    let flood = |host: &Namespace| {
        host.enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..400 {
                drop(socket.send_to(&[7; 1_172], (Net::INTERNET_V4, 9)));
            }
        })
        .join()
        .unwrap();
    };
    eventually(seconds(20), "what the phone sends is limited", || {
        flood(&net.client);
        exit.status().drop("tun", "rate_limit") >= 100
    });
    exit.warren.run("exit client set phone --rate-limit off").ok();
    let limited = exit.status().drop("tun", "rate_limit");
    flood(&net.client);
    flood(&other_host);
    assert_eq!(exit.status().drop("tun", "rate_limit"), limited, "nobody has a limit any more");

    // Clients are isolated until the operator turns isolation off.
    let tablet_address = values(&tablet_file, "Address")[0].trim_end_matches("/32").to_owned();
    assert!(!phone.pings(&tablet_address));
    assert!(exit.status().drop("tun", "isolated") > 0);
    exit.configure(|config| config.with("clients", "isolation", false));
    exit.warren.run("reload exit").ok();
    assert!(phone.pings(&tablet_address), "the control: it was isolation");

    // Packets with a foreign source address are dropped.
    let spoofed = exit.status().drop("tun", "spoofed_source");
    let device = phone.sh("ip -o route get 203.0.113.2 | sed 's/.* dev \\([^ ]*\\).*/\\1/'");
    phone.sh(&format!("ip address add 10.66.9.9/32 dev {}", device.trim()));
    net.client.sh(&format!("ping -c 1 -W 1 -I 10.66.9.9 {}", Net::INTERNET_V4));
    assert!(exit.status().drop("tun", "spoofed_source") > spoofed);

    // Each client is cut off within two seconds. The other client is the control.
    for (command, name) in [("exit client disable phone", "phone"), ("exit client remove tablet", "tablet")] {
        let (client, host) = if name == "phone" { (&phone, &net.client) } else { (&tablet, &other_host) };
        assert!(client.pings(Net::INTERNET_V4), "{name} is up before");
        exit.warren.run(command).ok();
        let cut = Instant::now();
        std::thread::sleep(Duration::from_millis(500));
        assert!(!client.pings(Net::INTERNET_V4) && cut.elapsed() < seconds(2), "{name}: {:?}", cut.elapsed());
        let came_again = (0..5).any(|_| host.sh("ping -c 1 -W 1 203.0.113.2").succeeded());
        assert!(!came_again, "{name} comes in again");
        assert!(exit.status().drop("tun", "unauthenticated") > 0);
    }
    assert_eq!(connected(&exit), 0);
    exit.warren.run("exit client enable phone").ok();
    eventually(seconds(30), "an enabled client is let in again", || phone.pings(Net::INTERNET_V4));
}

#[test]
fn twenty_peers_of_a_wireguard_server_are_imported_and_connect_with_their_old_files() {
    let Some(net) = wireguard_go::net() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    serve_wireguard(&exit);
    let server_key = PrivateKey::new([77; 32]);
    let mut server = format!(
        "[Interface]\nAddress = 10.66.0.1/16, fd66:6666::1/64\nListenPort = {PORT}\nPrivateKey = {}\n",
        *server_key.to_base64()
    );
    let mut files = Vec::new();
    for number in 2..22_u8 {
        let key = PrivateKey::new([number; 32]);
        let preshared = PrivateKey::new([100 + number; 32]);
        let (mut secret, mut of_client) = (String::new(), String::new());
        // Every second peer has a preshared key.
        if number % 2 == 0 {
            secret = format!("PresharedKey = {}\n", *preshared.to_base64());
            of_client.clone_from(&secret);
        }
        server += &format!(
            "\n# phone-{number}\n[Peer]\nPublicKey = {}\n{secret}AllowedIPs = 10.66.0.{number}/32, fd66:6666::{number}/128\n",
            key.public()
        );
        files.push(format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.66.0.{number}/32, fd66:6666::{number}/128\n\n[Peer]\nPublicKey = {}\n{of_client}\
             AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = {}:{PORT}\nPersistentKeepalive = 25\n",
            *key.to_base64(),
            server_key.public(),
            Net::EXIT_V4,
        ));
    }
    let path = exit.warren.write("wg0.conf", 0o600, &server);
    // The exit has been started with a key of its own, which no client uses yet.
    exit.run();
    let dry = exit.warren.run(&format!("exit import wireguard {} --dry-run", path.display())).ok();
    assert!(dry.contains("20 clients would be enrolled"), "{dry}");
    let imported = exit.warren.run(&format!("exit import wireguard {}", path.display()));
    assert!(imported.stdout.contains("connect with their existing files"), "{imported:?}");
    assert!(imported.stderr.contains("restart it") && imported.stderr.contains("repair"), "{imported:?}");
    exit.stop(rustix::process::Signal::TERM);
    exit.run();

    let hosts = net.clients_beside(20);
    let phones: Vec<_> = hosts.iter().zip(&files).map(|(host, file)| WireGuardGo::up(host, file)).collect();

    eventually(seconds(60), "all twenty are connected", || {
        phones.iter().filter(|phone| phone.pings(Net::INTERNET_V4)).count() == 20 && connected(&exit) == 20
    });
    for phone in &phones {
        assert!(phone.pings(Net::INTERNET_V4) && phone.pings(Net::INTERNET_V6));
        // Large packets pass too, although the files contain WireGuard's default MTU and the exit's MTU is smaller.
        assert_eq!(
            phone.sh("curl -sS --max-time 20 http://203.0.113.2/bytes/300000 | wc -c").trim(),
            "300000"
        );
    }
    // A second import changes nothing.
    let again = exit.warren.run(&format!("exit import wireguard {}", path.display())).ok();
    assert!(
        again.starts_with("20 clients are enrolled already") && again.contains("Nothing was changed"),
        "{again}"
    );
    assert_eq!(connected(&exit), 20);
    // The files contain a port on which the exit does not listen.
    let elsewhere =
        exit.warren.write("wg1.conf", 0o600, &server.replace("ListenPort = 51820", "ListenPort = 51999"));
    let warned = exit.warren.run(&format!("exit import wireguard {} --dry-run", elsewhere.display()));
    assert!(warned.succeeded() && warned.stderr.contains("listens on UDP port 51999"), "{warned:?}");
    exit.warren.run("exit client remove phone-4").ok();
    let taken = exit.warren.run(&format!("exit import wireguard {} --dry-run", elsewhere.display()));
    assert!(!taken.succeeded() && taken.stderr.contains("was taken from client \"phone-4\""), "{taken:?}");
}

#[test]
fn a_client_is_upgraded_to_warren_and_its_wireguard_key_is_refused_from_then_on() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let file = enrol(&exit, "laptop");
    let old = WireGuardGo::up(&net.client, &file);
    assert!(old.pings(Net::INTERNET_V4));
    let host = net.second_client();
    // The upgraded client uses any profile of this exit, with the new key.
    let profile = exit.enrol("other");
    let private = exit.warren.run("keygen").ok();
    let public = exit.warren.public_key(private.trim());
    exit.warren.run(&format!("exit client set laptop --public-key {public}")).ok();
    assert!(old.pings(Net::INTERNET_V4), "the old key works until the new one is used");

    let upgraded = profile.with("client", "private_key", private.trim());
    let laptop = Client::on(&host, &upgraded);
    laptop.up();

    let address = values(&file, "Address")[0].replace("/32", "/16");
    assert_eq!(laptop.inner_addresses().0, address, "it keeps its addresses");
    assert!(!old.pings(Net::INTERNET_V4));
    let shown = exit.warren.run("exit client show laptop").ok();
    assert!(shown.contains("protocol:   Warren"), "{shown}");
    laptop.down();
}

#[test]
fn an_invitation_turns_a_wireguard_client_into_a_warren_client_with_all_that_it_has() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let file = enrol(&exit, "laptop --rate-limit 50mbit");
    exit.warren.run("exit client forward add laptop tcp/8443 --to 443").ok();
    let old = WireGuardGo::up(&net.client, &file);
    assert!(old.pings(Net::INTERNET_V4));

    let invited = exit.warren.run("exit invite laptop");
    assert!(invited.stderr.contains("laptop is a WireGuard client"), "{invited:?}");
    // Another change to the client does not withdraw the invitation.
    exit.warren.run("exit client set laptop --rate-limit 60mbit").ok();
    let host = net.second_client();
    let laptop = Client::bare(&host);
    let joined = laptop.warren.run(invited.stdout.trim().trim_start_matches("warren ")).ok();
    assert!(joined.starts_with("Enrolled as laptop"), "{joined}");
    assert!(old.pings(Net::INTERNET_V4), "the old key works until the new one is used");
    laptop.warren.run("up").ok();

    let address = values(&file, "Address")[0].replace("/32", "/16");
    assert_eq!(laptop.inner_addresses().0, address, "it keeps its addresses");
    assert!(!old.pings(Net::INTERNET_V4));
    let shown = exit.warren.run("exit client show laptop").ok();
    for kept in ["protocol:   Warren", "60mbit", "tcp/8443 to 443"] {
        assert!(shown.contains(kept), "{kept} is missing: {shown}");
    }
    let refused = exit.warren.run("exit invite laptop");
    assert!(!refused.succeeded() && refused.stderr.contains("there is a client"), "{refused:?}");
    laptop.warren.run("down").ok();
}

#[test]
fn a_lost_key_is_not_replaced_while_clients_need_it() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    serve_wireguard(&exit);
    enrol(&exit, "phone");
    let key = exit.warren.state("exit/wireguard.key");
    let before = std::fs::read_to_string(&key).unwrap();
    std::fs::remove_file(&key).unwrap();

    let refused = exit.warren.run("exit run");
    assert!(
        !refused.succeeded() && refused.stderr.contains("1 WireGuard client needs this key"),
        "{refused:?}"
    );
    let refused = exit.warren.run("exit client add tablet --wireguard");
    assert!(!refused.succeeded() && !key.exists(), "{refused:?}");

    exit.warren.run("exit client remove phone").ok();
    exit.run();
    assert_ne!(std::fs::read_to_string(&key).unwrap(), before, "nobody needs the lost one any more");
}

#[test]
fn a_configuration_that_cannot_work_before_a_restart_says_so() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    serve_wireguard(&exit);
    let early = exit.warren.run("exit client add phone --wireguard");
    assert!(early.succeeded() && early.stderr.contains("restart it"), "{early:?}");
    exit.stop(rustix::process::Signal::TERM);
    assert!(exit.daemon().output().contains("stopping, with 0 sessions open"), "{}", exit.daemon().output());
    exit.run();
    let control = exit.warren.run("exit client add tablet --wireguard");
    assert!(control.succeeded() && !control.stderr.contains("restart"), "{control:?}");
    // Adds the same forward twice, for a client that has no profile.
    let forward = exit.warren.run("exit client forward add phone tcp/8080 --to 80").ok();
    assert!(
        forward.contains("its own firewall alone decides") && !forward.contains("[forwards]"),
        "{forward}"
    );
    let again = exit.warren.run("exit client forward add phone tcp/8080 --to 80").ok();
    assert!(again.contains("already; nothing was changed"), "{again}");
    assert_eq!(exit.daemon().output().matches("forward tcp/8080 to 80 added").count(), 1);
    let removed = exit.warren.run("exit client remove phone").ok();
    for said in [" phone --wireguard", "exit client forward add phone tcp/8080 --to 80"] {
        assert!(removed.contains(said), "{removed}");
    }
    let shown = exit.warren.run("exit client show phone");
    assert!(!shown.succeeded() && shown.stderr.contains("was removed"), "{shown:?}");
}

#[test]
fn a_client_with_a_key_of_its_own_keeps_its_private_key() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    // A key that is not a point on Ed25519's curve. Half of all WireGuard keys are not.
    let is_warrens =
        |key: &PrivateKey| key.public().to_string().parse::<warren_quic::key::PublicKey>().is_ok();
    let key = (1..).map(|number| PrivateKey::new([number; 32])).find(|key| !is_warrens(key)).unwrap();
    let public = key.public();
    let refused = exit.warren.run(&format!("exit client add phone --public-key {public}"));
    assert!(!refused.succeeded() && refused.stderr.contains("--wireguard --public-key"), "{refused:?}");

    let file = enrol(&exit, &format!("phone --public-key {public}"));

    assert!(!file.contains("\nPrivateKey"), "{file}");
    let whole = file.replace("[Interface]\n", &format!("[Interface]\nPrivateKey = {}\n", *key.to_base64()));
    let phone = WireGuardGo::up(&net.client, &whole);
    eventually(seconds(10), "it connects", || phone.pings(Net::INTERNET_V4));
    let twice = exit.warren.run(&format!("exit client add tablet --wireguard --public-key {public}"));
    assert!(!twice.succeeded() && twice.stderr.contains("belongs to \"phone\""), "{twice:?}");
}

#[test]
fn a_terminal_gets_the_qr_code_and_a_file_only_the_configuration() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let piped = enrol(&exit, "piped");
    assert!(piped.starts_with("# piped") && !piped.contains('\u{2588}'), "{piped}");
    let terminal: Terminal = exit.warren.on_terminal("exit client add phone --wireguard");
    terminal.wait_for("the code is drawn", |screen| screen.iter().any(|line| line.contains('\u{2584}')));
    let without = Exit::init_on(&net.client, &ExitOptions::default());
    let refused = without.warren.run("exit client add phone --wireguard");
    assert!(!refused.succeeded() && refused.stderr.contains("[wireguard]"), "{refused:?}");
    assert!(without.warren.run("exit client list").ok().contains("No client"));
}

#[test]
fn an_unauthenticated_flood_costs_no_session_and_little_time() {
    let Some(net) = wireguard_go::net() else { return };
    let mut exit = exit_with_wireguard(&net);
    let file = enrol(&exit, "phone");
    let exit_key: [u8; 32] = {
        use base64::Engine as _;
        let text = &values(&file, "PublicKey")[0];
        base64::engine::general_purpose::STANDARD.decode(text).unwrap().try_into().unwrap()
    };
    let phone = WireGuardGo::up(&net.client, &file);
    assert!(phone.pings(Net::INTERNET_V4));
    let pid = exit.daemon().pid();
    let before = processor_time(pid);
    let attacker = net.second_client();

    let answers = attacker.enter(move || flood(exit_key)).join().unwrap();

    let spent = processor_time(pid) - before;
    let status = exit.status();
    let refused = status.drop("tun", "unauthenticated") + status.drop("tun", "handshake_limit");
    println!("measured: {spent:?} of processor time for {refused} refused datagrams, {answers:?}");
    assert!(refused > 10_000, "the flood arrived: {refused}");
    assert_eq!(connected(&exit), 1);
    let Answers { to_junk, to_stranger, longest } = answers;
    assert_eq!(to_junk, 0, "silence without a right mac1");
    // Under load, the only answer is a cookie, which is shorter than the handshake.
    assert!(to_stranger > 0 && longest == 64);
    // Debug builds are slow; a release build takes a third of the time.
    assert!(spent < seconds(5), "{spent:?}");
    assert!(phone.pings(Net::INTERNET_V4));
}

#[derive(Debug)]
struct Answers {
    to_junk: usize,
    to_stranger: usize,
    longest: usize,
}

/// Sends junk of every kind, then handshakes of a key that is not enrolled.
fn flood(exit_key: [u8; 32]) -> Answers {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((Net::EXIT_V4, PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    for number in 0..40_000_u32 {
        let (kind, length) = [(1, 148), (2, 92), (3, 64), (4, 1_200)][number as usize % 4];
        let mut datagram = vec![0; length];
        datagram[0] = kind;
        datagram[4..8].copy_from_slice(&number.to_le_bytes());
        let _ = socket.send(&datagram);
        if number % 64 == 0 {
            // The pause keeps the sender from filling the exit's socket buffer, which would drop packets.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let mut buffer = [0; 2_048];
    let to_junk = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
    let stranger = x25519::StaticSecret::from([9; 32]);
    let mut tunnel = Tunn::new(stranger, x25519::PublicKey::from(exit_key), None, None, 1, None);
    for _ in 0..2_000 {
        let mut message = [0; 148];
        if let TunnResult::WriteToNetwork(message) = tunnel.format_handshake_initiation(&mut message, true) {
            let _ = socket.send(message);
        }
    }
    let lengths: Vec<usize> = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).collect();
    Answers { to_junk, to_stranger: lengths.len(), longest: lengths.into_iter().max().unwrap_or_default() }
}

/// The processor time that a process has used.
fn processor_time(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split_whitespace().collect();
    let ticks: u64 = fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// WireGuard clients negotiate new keys every two minutes. If both implementations are installed, they run at the same time.
#[test]
#[ignore = "takes eleven minutes; `scripts/torture wireguard` runs it"]
fn five_new_keys_in_real_time_lose_nothing_and_keep_the_session() {
    let Some(net) = wireguard_go::net() else { return };
    let exit = exit_with_wireguard(&net);
    let other_host = net.second_client();
    let mut phones =
        vec![("wireguard-go", &net.client, WireGuardGo::up(&net.client, &enrol(&exit, "phone")))];
    if let Some(line) = wireguard_go::gotatun() {
        phones.push((
            "gotatun",
            &other_host,
            WireGuardGo::up_by(&line, &other_host, &enrol(&exit, "tablet")),
        ));
    }
    assert!(phones.iter().all(|(_, _, phone)| phone.pings(Net::INTERNET_V4)));
    let sessions = || (0..phones.len()).map(|number| exit.status().number(&format!("/sessions/{number}/id")));
    let before: Vec<u64> = sessions().collect();
    let ping = |host: &Namespace| host.start(&["ping", "-i", "0.2", "-w", "630", Net::INTERNET_V4]);
    let pinging: Vec<_> = phones.iter().map(|(_, host, _)| ping(host)).collect();
    let began = Instant::now();
    let mut handshakes: Vec<_> = phones.iter().map(|(_, _, phone)| vec![phone.latest_handshake()]).collect();
    while began.elapsed() < seconds(630) {
        std::thread::sleep(seconds(2));
        for ((_, _, phone), seen) in phones.iter().zip(&mut handshakes) {
            let latest = phone.latest_handshake();
            if seen.last() != Some(&latest) {
                seen.push(latest);
            }
        }
    }
    for (((name, _, _), mut pinging), handshakes) in phones.iter().zip(pinging).zip(&handshakes) {
        pinging.wait(seconds(10));
        let said = pinging.output();
        let summary =
            said.lines().find(|line| line.contains("packets transmitted")).unwrap_or(&said).to_owned();
        println!("measured: {name}: {} new keys; {summary}", handshakes.len() - 1);
        assert!(handshakes.len() > 5, "{name}: {handshakes:?}");
        assert!(summary.contains(" 0% packet loss"), "{name}: {summary}");
    }
    assert_eq!(sessions().collect::<Vec<_>>(), before);
}
