//! Code for all userspace implementations of WireGuard: keys, and the configuration through the control socket (WireGuard's
//! cross-platform userspace interface).

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use aws_lc_rs::{
    agreement::{PrivateKey, X25519},
    rand,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::tunnel::{CLIENT, EXIT, RemovedFile, Start, Tunnel, UP};
use crate::{
    namespace::Namespace,
    vpn::{
        process::Process,
        topology::{Topology, WIREGUARD_SOCKETS, device_name, wait_for},
    },
};

/// The MTU that wg-quick sets on a path of 1,500 bytes.
const MTU: u16 = 1_420;
const PORT: u16 = 51_820;

/// Brings up a tunnel. Each end runs `program ARGUMENTS DEVICE`.
pub(super) fn start(start: &Start<'_>, arguments: &[&str]) -> anyhow::Result<Tunnel> {
    let Start { topology, interrupt, .. } = start;
    let (client_key, exit_key) = (Key::generate()?, Key::generate()?);

    let exit = End::start(start, &topology.exit, 'e', arguments)?;
    exit.configure(&configuration(&exit_key, Some(PORT), &client_key, None, &format!("{CLIENT}/32")))?;
    exit.up(EXIT, MTU)?;

    // As with all peers, the exit's start does not count as setup time.
    let began = Instant::now();
    let client = End::start(start, &topology.client, 'c', arguments)?;
    let endpoint = format!("{}:{PORT}", Topology::EXIT);
    client.configure(&configuration(&client_key, None, &exit_key, Some(&endpoint), "0.0.0.0/0"))?;
    client.up(CLIENT, MTU)?;
    interrupt.check()?;

    let files = vec![RemovedFile(exit.socket.clone()), RemovedFile(client.socket.clone())];
    let tunnel = start.tunnel(began, client.process, exit.process)?;
    Ok(Tunnel { _files: files, ..tunnel })
}

/// Brings up a client by its configuration for wg-quick, which has one IPv4 address. The server is another program.
pub(super) fn start_client(
    start: &Start<'_>,
    program: &str,
    arguments: &[&str],
    file: &str,
) -> anyhow::Result<(Process, RemovedFile)> {
    let client = End::of(start, program, &start.topology.client, 'c', arguments)?;
    client.configure(&set_operation(file)?)?;
    client.up(CLIENT, value(file, "MTU").and_then(|mtu| Ok(mtu.parse()?))?)?;
    Ok((client.process, RemovedFile(client.socket)))
}

/// Formats a `set` operation from a configuration for wg-quick. The allowed IPs of the peer are 0.0.0.0/0.
fn set_operation(file: &str) -> anyhow::Result<String> {
    let key = |name| {
        let bytes = STANDARD.decode(value(file, name)?);
        anyhow::Ok(hex(&bytes.with_context(|| format!("{name} is not in Base64"))?))
    };
    let (private, public) = (key("PrivateKey")?, key("PublicKey")?);
    let preshared = key("PresharedKey").map_or(String::new(), |key| format!("preshared_key={key}\n"));
    let endpoint = value(file, "Endpoint")?;
    Ok(format!(
        "set=1\nprivate_key={private}\nreplace_peers=true\npublic_key={public}\n{preshared}endpoint={endpoint}\n\
         replace_allowed_ips=true\nallowed_ip=0.0.0.0/0\n\n"
    ))
}

/// Returns the value of a key that occurs once in a configuration for wg-quick.
fn value<'a>(file: &'a str, name: &str) -> anyhow::Result<&'a str> {
    let pairs = file.lines().filter_map(|line| line.split_once('='));
    let found = pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name);
    found.map(|(_, value)| value).with_context(|| format!("the configuration of WireGuard has no {name}"))
}

/// A running WireGuard process at one end.
struct End<'a> {
    host: &'a Namespace,
    device: String,
    socket: PathBuf,
    process: Process,
}

impl<'a> End<'a> {
    fn start(start: &Start<'_>, host: &'a Namespace, end: char, arguments: &[&str]) -> anyhow::Result<Self> {
        Self::of(start, start.installed.program(0)?, host, end, arguments)
    }

    fn of(
        start: &Start<'_>,
        program: &str,
        host: &'a Namespace,
        end: char,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let device = device_name(end);
        let socket = Path::new(WIREGUARD_SOCKETS).join(format!("{device}.sock"));
        // The previous visit used the same device name, and may have left a socket.
        let _ = std::fs::remove_file(&socket);
        let mut command = host.command(program);
        // LOG_LEVEL is for wireguard-go, WG_LOG_LEVEL for boringtun.
        command.args(arguments).arg(&device).env("LOG_LEVEL", "error").env("WG_LOG_LEVEL", "error");
        let mut process = Process::start(&device, start.topology.path(), &mut command)?;
        wait_for("the control socket of a WireGuard device", UP, start.interrupt, || {
            process.check()?;
            Ok(UnixStream::connect(&socket).is_ok().then_some(()))
        })?;
        Ok(Self { host, device, socket, process })
    }

    fn configure(&self, configuration: &str) -> anyhow::Result<()> {
        let ask = || {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(configuration.as_bytes())?;
            let (mut answer, mut buffer) = (String::new(), [0; 1_024]);
            // An empty line ends an answer.
            while !answer.contains("\n\n") {
                match stream.read(&mut buffer)? {
                    0 => break,
                    length => {
                        answer.push_str(&String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()))
                    }
                }
            }
            std::io::Result::Ok(answer)
        };
        check(&ask().with_context(|| format!("cannot configure {}", self.device))?)
    }

    fn up(&self, address: &str, mtu: u16) -> anyhow::Result<()> {
        self.host.ip(&format!("address add {address}/24 dev {}", self.device))?;
        self.host.ip(&format!("link set {} mtu {mtu} up", self.device))
    }
}

/// Formats a `set` operation with one peer.
fn configuration(own: &Key, port: Option<u16>, peer: &Key, endpoint: Option<&str>, allowed: &str) -> String {
    let mut text = format!("set=1\nprivate_key={}\n", hex(&own.private));
    if let Some(port) = port {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "listen_port={port}");
    }
    let _ = write!(text, "replace_peers=true\npublic_key={}\n", hex(&peer.public));
    if let Some(endpoint) = endpoint {
        let _ = writeln!(text, "endpoint={endpoint}");
    }
    let _ = write!(text, "replace_allowed_ips=true\nallowed_ip={allowed}\n\n");
    text
}

/// Checks a device's answer to `set`, which is `errno=0` if the device accepted the configuration.
fn check(answer: &str) -> anyhow::Result<()> {
    match answer.lines().find_map(|line| line.strip_prefix("errno=")) {
        Some("0") => Ok(()),
        Some(number) => bail!("a WireGuard device refused its configuration with error number {number}"),
        None => bail!("a WireGuard device did not answer its configuration"),
    }
}

struct Key {
    private: [u8; 32],
    public: Vec<u8>,
}

impl Key {
    fn generate() -> anyhow::Result<Self> {
        let mut private = [0; 32];
        rand::fill(&mut private).context("cannot get random bytes")?;
        let public = public_key(&private)?;
        Ok(Self { private, public })
    }
}

fn public_key(private: &[u8; 32]) -> anyhow::Result<Vec<u8>> {
    let key = PrivateKey::from_private_key(&X25519, private).context("cannot use a private key")?;
    let public = key.compute_public_key().context("cannot compute a public key")?;
    Ok(public.as_ref().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748 section 6.1, Alice's keys.
    #[test]
    fn public_key_belongs_to_the_private_one() {
        let private = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
            0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        assert_eq!(hex(&public_key(&private).unwrap()), public);
    }

    #[test]
    fn configuration_is_one_set_operation() {
        let key = |byte| Key { private: [byte; 32], public: vec![byte + 1; 32] };
        let text = configuration(&key(1), None, &key(3), Some("192.0.2.1:51820"), "0.0.0.0/0");
        let expected = format!(
            "set=1\nprivate_key={}\nreplace_peers=true\npublic_key={}\nendpoint=192.0.2.1:51820\n\
             replace_allowed_ips=true\nallowed_ip=0.0.0.0/0\n\n",
            "01".repeat(32),
            "04".repeat(32),
        );
        assert_eq!(text, expected);
        assert!(
            configuration(&key(1), Some(51_820), &key(3), None, "10.0.0.2/32")
                .contains("listen_port=51820\n")
        );
    }

    #[test]
    fn file_for_wg_quick_becomes_a_set_operation() {
        let (private, public) = (STANDARD.encode([1; 32]), STANDARD.encode([2; 32]));
        let file = format!(
            "[Interface]\nPrivateKey = {private}\nAddress = 10.98.0.2/32\nMTU = 1380\n[Peer]\nPublicKey = {public}\n\
             Endpoint = 192.0.2.1:51820\n"
        );
        let text = set_operation(&file).unwrap();
        assert!(text.starts_with(&format!("set=1\nprivate_key={}\n", "01".repeat(32))), "{text}");
        let peer = format!("public_key={}\nendpoint=192.0.2.1:51820\n", "02".repeat(32));
        assert!(text.contains(&peer), "{text}");
        let keyed = set_operation(&(file + "PresharedKey = " + &private + "\n")).unwrap();
        assert!(keyed.contains(&format!("preshared_key={}\nendpoint=", "01".repeat(32))), "{keyed}");
        assert!(set_operation("").unwrap_err().to_string().contains("PrivateKey"));
    }

    #[test]
    fn refusal_is_told_with_its_number() {
        assert!(check("errno=0\n\n").is_ok());
        assert!(check("errno=-22\n\n").unwrap_err().to_string().contains("-22"));
        assert!(check("").unwrap_err().to_string().contains("did not answer"));
    }
}
