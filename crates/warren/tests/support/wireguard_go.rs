//! wireguard-go on a client's host, configured by a file for wg-quick.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Namespace, Net, Running, eventually, seconds};

/// Where wireguard-go has its control sockets.
const SOCKETS: &str = "/var/run/wireguard";

/// The version that is built if there is no wireguard-go yet.
const VERSION: &str = "v0.0.0-20260522210424-ecfc5a8d5446";

/// A device of wireguard-go. Dropping it ends the program, which removes the device.
#[derive(Debug)]
pub struct WireGuardGo<'net> {
    host: &'net Namespace,
    device: String,
    _process: Running,
}

impl<'net> WireGuardGo<'net> {
    /// Starts the program and configures it by the file. Packets to the internet host and other clients go through it.
    pub fn up(host: &'net Namespace, file: &str) -> Self {
        let program = program().unwrap().to_str().unwrap();
        Self::up_by(&["env", "LOG_LEVEL=verbose", program, "--foreground"], host, file)
    }

    /// Like [`Self::up`], with another program that has the same control socket. The device's name is added to the program's
    /// arguments.
    pub fn up_by(program: &[&str], host: &'net Namespace, file: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // The device's name must be unique, because the control sockets of all hosts are in one directory.
        let device = format!("wg{}x{}", std::process::id() % 100_000, COUNT.fetch_add(1, Ordering::Relaxed));
        let process = host.start(&[program, &[device.as_str()]].concat());
        let this = Self { host, device, _process: process };
        eventually(seconds(20), "the program has a control socket", || {
            UnixStream::connect(this.socket()).is_ok()
        });
        this.ask(&configuration(file));
        for address in values(file, "Address") {
            host.sh(&format!("ip address add {address} dev {}", this.device)).ok();
        }
        let mtu = values(file, "MTU").pop().unwrap_or_else(|| "1420".into());
        host.sh(&format!("ip link set {} mtu {mtu} up", this.device)).ok();
        let routes = [Net::INTERNET_V4, Net::INTERNET_V6, "10.66.0.0/16", "fd66:6666::/64"];
        for route in routes {
            // Errors are ignored, because without an IPv6 address in the tunnel, an IPv6 route cannot be added.
            host.sh(&format!("ip route add {route} dev {}", this.device));
        }
        this
    }

    /// Seconds since the epoch of the latest handshake; 0 if there was none.
    pub fn latest_handshake(&self) -> u64 {
        let state = self.ask("get=1\n\n");
        let found = state.lines().find_map(|line| line.strip_prefix("last_handshake_time_sec="));
        found.and_then(|seconds| seconds.parse().ok()).unwrap_or_default()
    }

    /// Whether the internet host answers a ping, within a few seconds.
    pub fn pings(&self, address: &str) -> bool {
        self.host.sh(&format!("ping -c 1 -W 1 {address}")).succeeded()
    }

    pub fn sh(&self, line: &str) -> String {
        self.host.sh(line).ok()
    }

    fn socket(&self) -> PathBuf {
        Path::new(SOCKETS).join(format!("{}.sock", self.device))
    }

    fn ask(&self, question: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        let (mut answer, mut buffer) = (String::new(), [0; 4_096]);
        while !answer.contains("\n\n") {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                length => answer.push_str(&String::from_utf8_lossy(&buffer[..length])),
            }
        }
        assert!(answer.contains("errno=0"), "{answer}");
        answer
    }
}

impl Drop for WireGuardGo<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket());
    }
}

/// A net to test WireGuard clients in. Returns `None` without root, and if there is neither wireguard-go nor Go to build it with.
pub fn net() -> Option<Net> {
    let net = Net::new()?;
    if program().is_none() {
        println!("skipped: this test needs wireguard-go, or Go to build it with");
        return None;
    }
    Some(net)
}

/// wireguard-go, built once by one of the tests.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
        let bin = Path::new(&home).join(".cache/warren-peers/wireguard-go/bin");
        let program = bin.join("wireguard");
        if !program.exists() {
            let module = format!("golang.zx2c4.com/wireguard@{VERSION}");
            let built =
                Command::new("go").args(["install", &module]).env("GOBIN", &bin).current_dir("/").status();
            built.ok().filter(|status| status.success())?;
        }
        Some(program)
    };
    PROGRAM.get_or_init(build).as_deref()
}

/// The command line of gotatun, Mullvad's implementation of WireGuard in Rust. If it is missing, prints how to get it.
pub fn gotatun() -> Option<[&'static str; 3]> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
        Path::new(&home).join(".cache/warren-peers/gotatun/bin/gotatun")
    });
    if program.exists() {
        return Some([program.to_str()?, "--foreground", "--disable-drop-privileges"]);
    }
    println!(
        "skipped: this test needs gotatun; run `cargo install --locked gotatun-cli --root ~/.cache/warren-peers/gotatun`"
    );
    None
}

/// Translates the file into the language of the control socket.
fn configuration(file: &str) -> String {
    let key = |name: &str| values(file, name).pop().map(|key| hex(&STANDARD.decode(key).unwrap()));
    let mut text = format!("set=1\nprivate_key={}\nreplace_peers=true\n", key("PrivateKey").unwrap());
    text += &format!("public_key={}\n", key("PublicKey").unwrap());
    if let Some(preshared) = key("PresharedKey") {
        text += &format!("preshared_key={preshared}\n");
    }
    text += &format!("endpoint={}\n", values(file, "Endpoint")[0]);
    for keep_alive in values(file, "PersistentKeepalive") {
        text += &format!("persistent_keepalive_interval={keep_alive}\n");
    }
    text += "replace_allowed_ips=true\n";
    for network in values(file, "AllowedIPs") {
        text += &format!("allowed_ip={network}\n");
    }
    text + "\n"
}

/// The values of a key, of which each line may list several.
pub fn values(file: &str, key: &str) -> Vec<String> {
    let of_key = |line: &str| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.to_owned())
    };
    let lines = file.lines().filter_map(of_key);
    lines.flat_map(|line| line.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
