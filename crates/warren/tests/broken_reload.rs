//! Broken configurations offered to running daemons. Each is refused, the message names the place in the file, and nothing
//! changes.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::support::{Client, Exit, HostState, Net, Profile, daemon::Warren, eventually, seconds};

/// Scorecard U2, including B12's 40 broken files per daemon.
#[test]
fn forty_broken_files_each_leave_a_running_exit_and_a_running_client_as_they_were() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let profile = exit.enrol("laptop");
    let client = Client::with(&net, &with_key_file(&profile));
    client.warren.write("home.key", 0o600, profile.value("client", "private_key"));
    client.up();
    let session = client.status().number("/session/id");
    let pinging = client.warren.host.start(&["ping", "-q", "-i", "0.01", "-w", "300", Net::INTERNET_V4]);
    let (exit_host, client_host) = (HostState::of(&net.exit), HostState::of(&net.client));

    let of_exit = Daemon {
        warren: &exit.warren,
        name: "exit",
        file: exit.warren.config("exit.toml"),
        key: exit.warren.config("exit.key"),
    };
    let of_client = Daemon {
        warren: &client.warren,
        name: "home",
        file: client.warren.config("home.toml"),
        key: client.warren.config("home.key"),
    };
    let mut refused = of_exit.refuses_all(EXIT) + of_exit.refuses_what_is_no_text();
    refused += of_client.refuses_all(CLIENT) + of_client.refuses_what_is_no_text();
    for (text, says) in CLIENTS {
        refused += of_exit.refuses_in(&exit.warren.state("exit/clients.toml"), text, says);
    }

    exit_host.assert_same(&HostState::of(&net.exit));
    client_host.assert_same(&HostState::of(&net.client));
    assert_eq!((client.status().number("/session/id"), client.status().number("/reconnects")), (session, 0));
    pinging.signal(Signal::INT);
    eventually(seconds(10), "ping prints its summary", || pinging.output().contains("packet loss"));
    let pings = pinging.output();
    let (sent, received) = (counted(&pings, " packets transmitted"), counted(&pings, " received"));
    // On a busy machine, packets may be dropped because they wait in a queue for too long. These drops are subtracted.
    let stale = [&client.status(), &exit.status()].map(|status| status.drop("carrier", "queue_delay"));
    let lost = sent - received;
    // One lost ping is allowed, because the last one may still have been in flight.
    assert!(
        sent > 100 && lost <= stale.iter().sum::<u64>() + 1,
        "{lost} of {sent} lost, {stale:?} of them waited too long: {pings}"
    );
    println!("measured: {refused} broken files refused, {lost} of {sent} packets lost meanwhile");
    assert!(refused >= 80, "{refused}");
}

/// A change to a good file, and the expected part of the error message. The change sets a section's value, or adds
/// lines after its last value.
type Breakages = &'static [(&'static str, &'static str)];

const EXIT: Breakages = &[
    ("[exit]\nlisten = []", "listen in [exit]"),
    ("[exit]\nlisten = [\"443\"]", "listen in [exit]"),
    ("[exit]\nlisten = [\"0.0.0.0:444\"]", "listen in [exit] changed"),
    ("[exit]\nlisten = [\"[::]:443\", \"[::]:443\"]", "twice"),
    ("[exit]\nprivate_key_file = \"\"", "is empty"),
    ("[exit]\nprivate_key_file = \"other.key\"", "cannot read"),
    ("[exit]\nprivate_key = \"x\"", "unknown key"),
    ("[exit]\nendpoint = \"a:0\"", "endpoint in [exit]"),
    ("[addresses]\nipv4 = \"10.66.0.0/99\"", "ipv4 in [addresses]"),
    ("[addresses]\nipv4 = \"10.66.0.0/31\"", "ipv4 in [addresses]"),
    ("[addresses]\nipv4 = \"10.66.0.1/16\"", "ipv4 in [addresses]"),
    ("[addresses]\nipv4 = \"fd00::/64\"", "ipv4 in [addresses]"),
    ("[addresses]\nipv4 = \"10.99.0.0/16\"", "ipv4 in [addresses] changed"),
    ("[addresses]\nipv6 = \"fe80::/64\"", "ipv6 in [addresses]"),
    ("[addresses]\nipv6 = \"10.0.0.0/8\"", "ipv6 in [addresses]"),
    ("[nat]\nenabled = \"maybe\"", "enabled in [nat]"),
    ("[nat]\ninterface = \"a/b\"", "interface in [nat]"),
    ("[clients]\nisolated = true", "unknown key"),
    ("[clients]\nisolation = 1", "isolation in [clients]"),
    ("[clients]\nfile = \"\"", "file in [clients]"),
    ("[access]\nallow = [\"192.168.1.1/24\"]", "allow in [access]"),
    ("[access]\nallow = [\"10.0.0.0/8\", \"10.0.0.0/8\"]", "twice"),
    ("[access]\nsilent = \"very\"", "silent in [access]"),
    ("[dns]\nservers = [\"9.9.9\"]", "servers in [dns]"),
    ("[metrics]\nlisten = \"127.0.0.1:0\"", "listen in [metrics]"),
    ("[web]\nlisten = \"127.0.0.1:0\"", "listen in [web]"),
    ("[transport]\nworkers = 0", "workers in [transport]"),
    ("[transport]\ncongestion = \"reno\"", "congestion in [transport]"),
    ("[transport]\nmax_transmit_segments = 129", "max_transmit_segments in [transport]"),
    ("[transport]\nfoo = 1", "unknown key"),
    ("[tun]\nname = \"a\"", "unknown section"),
    ("[tranport]\nworkers = 1", "unknown section"),
    ("\nthis is no TOML\n", "is not TOML"),
    ("\n[exit\n", "is not TOML"),
    ("\n[[exit]]\n", "set twice"),
];

const CLIENT: Breakages = &[
    ("[client]\nprivate_key = \"x\"", "private_key in [client]"),
    ("[client]\nprivate_key_file = \"\"", "is empty"),
    ("[client]\nprivate_key_file = \"other.key\"", "cannot read"),
    ("[client]\nprivat_key = \"x\"", "unknown key"),
    ("[tun]\nname = 5", "name in [tun]"),
    ("[tun]\nname = \"sixteen_bytes_xx\"", "name in [tun]"),
    ("[tun]\nname = \"other\"", "name in [tun] changed"),
    ("[tun]\nmtu = 1279", "mtu in [tun]"),
    ("[tun]\nqueues = 257", "queues in [tun]"),
    ("[routes]\ninclude = \"0.0.0.0/0\"", "include in [routes]"),
    ("[routes]\ninclude = [\"10.0.0.0/33\"]", "include in [routes]"),
    ("[routes]\ninclude = [\"10.0.0.1/8\"]", "include in [routes]"),
    ("[routes]\ninclude = [\"::/0\", \"::/0\"]", "twice"),
    ("[routes]\nexclude = [\"10.0.0.1\"]", "exclude in [routes]"),
    ("[routes]\nlan = 1", "lan in [routes]"),
    ("[routes]\nprefixes = [\"0.0.0.0/0\"]", "prefixes in [routes]"),
    ("[routes]\nprefixes = [\"10.1.0.0/16\"]", "prefixes in [routes] changed"),
    ("[dns]\nservers = \"local\"", "servers in [dns]"),
    ("[dns]\nservers = [\"9.9.9\"]", "servers in [dns]"),
    ("[kill_switch]\nenabled = \"yes\"", "enabled in [kill_switch]"),
    ("[kill_switch]\nallow_inbound = [\"22\"]", "allow_inbound in [kill_switch]"),
    ("[kill_switch]\nallow_inbound = [\"tcp/0\"]", "allow_inbound in [kill_switch]"),
    ("[transport]\nconnections = 0", "connections in [transport]"),
    ("[transport]\nconnections = 2", "connections in [transport] changed"),
    ("[transport]\nconections = 4", "unknown key"),
    ("[transport]\nudp_gso = true", "udp_gso in [transport]"),
    ("[transport]\nmax_transmit_datagrams = 1025", "max_transmit_datagrams in [transport]"),
    ("[transport]\ndriver = \"quinn\"", "driver in [transport]"),
    ("[transport]\ncongestion = \"reno\"", "congestion in [transport]"),
    ("[trasport]\nconnections = 4", "unknown section"),
    ("[addresses]\nipv4 = \"10.0.0.0/8\"", "unknown section"),
    ("\n[[exit]]\nendpoint = \"a\"\n", "public_key is missing"),
    ("\n[[exit]]\nendpoint = \"1.2.3\"\npublic_key = \"x\"\n", "endpoint in [exit]"),
    ("\nthis is no TOML\n", "is not TOML"),
    ("\n[client\n", "is not TOML"),
];

/// Broken texts of a whole `clients.toml` to import.
const CLIENTS: Breakages = &[
    ("[[client]]\n", "clients.toml"),
    ("[[client]]\nname = \"a\"\npublic_key = \"x\"\ncreated = \"2026-01-01T00:00:00Z\"\n", "clients.toml"),
    ("nonsense\n", "clients.toml"),
    ("", "clients.toml names no client; remove it, or write `client = []` into it"),
];

/// Returns the sum of the numbers before `what` in ping's output.
fn counted(output: &str, what: &str) -> u64 {
    let number = |line: &str| line.split_once(what)?.0.rsplit(' ').next()?.parse::<u64>().ok();
    output.lines().filter_map(number).sum()
}

/// A running daemon and the files that it reads.
struct Daemon<'net> {
    warren: &'net Warren<'net>,
    name: &'static str,
    file: PathBuf,
    key: PathBuf,
}

impl Daemon<'_> {
    fn refuses_all(&self, breakages: Breakages) -> usize {
        let good = std::fs::read_to_string(&self.file).unwrap();
        let count = |(broken, says): &(&str, &str)| {
            let text = match broken.strip_prefix('\n') {
                Some(lines) => format!("{good}\n{lines}"),
                None => merged(&good, broken),
            };
            self.refuses_in(&self.file, &text, says)
        };
        breakages.iter().map(count).sum()
    }

    /// Writes `text` to one of the daemon's files, expects a refusal, and restores the good file.
    fn refuses_in(&self, file: &Path, text: &str, says: &str) -> usize {
        let good = std::fs::read(file).ok();
        std::fs::write(file, text).unwrap();
        self.refuses(says);
        match good {
            Some(good) => std::fs::write(file, good).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        1
    }

    /// Puts objects at the file's path that are not text or cannot be read as a file.
    fn refuses_what_is_no_text(&self) -> usize {
        let away = self.file.with_extension("away");
        let name = self.file.file_name().unwrap().to_str().unwrap();
        let offers: [(&dyn Fn(), &str); 6] = [
            (&|| std::fs::write(&self.file, vec![b'#'; 10_000_000]).unwrap(), "larger than 1 MiB"),
            (&|| std::fs::write(&self.file, b"\0\0\0").unwrap(), "NUL"),
            (&|| std::fs::write(&self.file, b"\xff\xfe").unwrap(), "UTF-8"),
            (&|| std::fs::write(&self.file, "").unwrap(), name),
            (&|| std::fs::create_dir(&self.file).unwrap(), "is a directory"),
            (&|| {}, "does not exist"),
        ];
        std::fs::rename(&self.file, &away).unwrap();
        for (offer, says) in &offers {
            offer();
            self.refuses(says);
            // The object is a file or a directory.
            drop(std::fs::remove_file(&self.file));
            drop(std::fs::remove_dir(&self.file));
        }
        std::fs::rename(&away, &self.file).unwrap();

        let mode = |mode| std::fs::set_permissions(&self.key, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        self.refuses("chmod 600");
        mode(0o600);
        offers.len() + 1 + self.refuses_in(&self.key, "no key\n", "private_key_file")
    }

    /// Expects the reload to fail with one sentence, which the status then contains too.
    fn refuses(&self, says: &str) {
        let refused = self.warren.run(&format!("reload {}", self.name));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let said = refused.stderr.trim_end();
        assert!(said.contains(says) && said.lines().count() == 1, "{says:?} is not in: {said}");
        let status =
            self.warren.status().unwrap_or_else(|| panic!("{} does not answer after {said}", self.name));
        assert!(said.contains(status.text("/reload_error")), "{said}\n{}", status.text("/reload_error"));
        let shown = self.warren.run(&format!("status {}", self.name)).ok();
        assert!(shown.lines().any(|line| line.trim_start().starts_with("reload")), "{shown}");
    }
}

/// The good file with the values in `broken` set.
fn merged(good: &str, broken: &str) -> String {
    let broken: toml::Table = broken.parse().unwrap();
    let mut profile = Profile::parse(good);
    for (section, values) in &broken {
        for (key, value) in values.as_table().unwrap() {
            profile = profile.with(section, key, value.clone());
        }
    }
    profile.text()
}

/// The profile with its private key in a separate file.
fn with_key_file(profile: &Profile) -> Profile {
    let text: Vec<String> =
        profile.text().lines().filter(|line| !line.starts_with("private_key")).map(str::to_owned).collect();
    Profile::parse(&text.join("\n")).with("client", "private_key_file", "home.key")
}
