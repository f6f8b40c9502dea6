//! An exit's configuration: `/etc/warren/exit.toml`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use warren_quic::key::{PrivateKey, PublicKey};

use super::document::{Document, Located};
use super::endpoint::Endpoint;
use super::fleet::{FleetSettings, read_fleet};
use super::key::{ExitKeys, KeySetting};
use super::metrics::MetricsSettings;
use super::network::{ipv4_pool, ipv6_pool};
use super::transport::Transport;
use super::value::{self, boolean, list, network, socket_address};
use super::web::{WebListen, read_web};
use super::wireguard::{WireGuardSettings, read_wireguard};
use super::{ConfigError, file};

/// All settings of an exit. There are 17 fields because each is a setting or a section of the file.
#[derive(Debug)]
pub struct ExitSettings {
    /// The path of the file with these settings.
    pub path: PathBuf,
    /// UDP addresses to listen on: at least one, without duplicates.
    pub listen: Vec<SocketAddr>,
    /// The exit's keys.
    pub keys: ExitKeys,
    /// The endpoint that the exit writes into its clients' profiles. It has no other use.
    pub endpoint: Option<Endpoint>,
    /// The IPv4 pool of inner addresses. At least one of the two pools is set.
    pub ipv4: Option<Ipv4Net>,
    /// The IPv6 pool of inner addresses.
    pub ipv6: Option<Ipv6Net>,
    /// `[nat]`.
    pub nat: NatSettings,
    /// The registry's file, relative to the state directory.
    pub clients_file: PathBuf,
    /// Whether clients cannot reach each other.
    pub isolation: bool,
    /// Whether a peer that does not know the exit's key gets no answer at all.
    pub silent: bool,
    /// Networks on the exit's side that clients may reach besides the internet.
    pub allow: Vec<IpNet>,
    /// Resolvers that clients are told to use.
    pub dns: Vec<IpAddr>,
    /// `[metrics]`.
    pub metrics: MetricsSettings,
    /// Where the web page for operators is served. `None` if there is no page.
    pub web: Option<WebListen>,
    /// `[wireguard]`, if the exit also serves WireGuard clients.
    pub wireguard: Option<WireGuardSettings>,
    /// `[fleet]`, if the exit belongs to one.
    pub fleet: Option<FleetSettings>,
    /// `[transport]`.
    pub transport: Transport,
}

impl ExitSettings {
    /// The current key and, if there is one, the old key.
    pub fn private_keys(&self) -> Vec<PrivateKey> {
        [Some(self.keys.current.clone()), self.keys.old.clone()].into_iter().flatten().collect()
    }

    /// The keys that clients may pin, the newest first.
    pub fn public_keys(&self) -> Vec<PublicKey> {
        self.private_keys().iter().map(PrivateKey::public).collect()
    }

    /// The UDP ports that clients reach.
    pub fn ports(&self) -> Vec<u16> {
        let wireguard = self.wireguard.iter().flat_map(|wireguard| &wireguard.listen);
        self.listen.iter().chain(wireguard).map(SocketAddr::port).collect()
    }

    /// The client registry's path.
    pub fn clients_path(&self, state_directory: &Path) -> PathBuf {
        state_directory.join(&self.clients_file)
    }
}

/// How clients' packets leave for the internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatSettings {
    /// Whether clients' IPv4 packets are masqueraded.
    pub ipv4: bool,
    /// Whether clients' IPv6 packets are masqueraded. By default, they are masqueraded only if the IPv6 pool is a private prefix.
    /// Any other prefix is routed to this host.
    pub ipv6: bool,
    /// The interface towards the internet.
    pub interface: NatInterface,
}

/// The interface through which clients' traffic leaves to the internet. NAT gives it the interface's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatInterface {
    /// The interface of the route to the internet.
    Auto,
    /// The device of this name.
    Name(String),
}

/// Reads an exit's configuration.
///
/// # Errors
///
/// If anything is wrong with the file or its key file. The error names the line and says what to do.
pub fn load_exit(path: &Path) -> Result<ExitSettings, ConfigError> {
    let file::ConfigText { text, .. } =
        file::read(path, "set up an exit with: warren exit init --endpoint HOST")?;
    parse(path, &text)
}

/// Reads the text of an exit's configuration.
pub(super) fn parse(path: &Path, text: &str) -> Result<ExitSettings, ConfigError> {
    let mut document = Document::parse(path, text)?;
    let (ipv4, ipv6) = read_addresses(&mut document)?;
    let nat = read_nat(&mut document, ipv6)?;
    let (clients_file, isolation) = read_clients(&mut document)?;
    let (silent, allow) = read_access(&mut document)?;
    let dns = read_dns(&mut document)?;
    let metrics = MetricsSettings::read(&mut document)?;
    let web = read_web(&mut document)?;
    let wireguard = read_wireguard(&mut document)?;
    let fleet = read_fleet(&mut document)?;
    let transport = Transport::read_exit(&mut document)?;
    // Unknown sections are reported before this error, because a missing section may be a misspelt one.
    let identity = read_identity(&mut document);
    document.finish()?;
    let Identity { listen, keys, endpoint } = identity?;

    if ipv4.is_none() && ipv6.is_none() {
        let sentence =
            "no inner prefix is set; write ipv4 = \"10.66.0.0/16\" in [addresses], or another prefix";
        return Err(ConfigError::at_line(path, 1, sentence));
    }
    let is_shared = |address: &&SocketAddr| listen.iter().any(|other| other.port() == address.port());
    if let Some(shared) = wireguard.iter().flat_map(|wireguard| &wireguard.listen).find(is_shared) {
        let sentence = format!(
            "listen in [wireguard] and in [exit] both name UDP port {}; give WireGuard another, such as 51820",
            shared.port()
        );
        return Err(ConfigError::of_file(path, sentence));
    }
    Ok(ExitSettings {
        path: path.to_path_buf(),
        listen,
        keys,
        endpoint,
        ipv4,
        ipv6,
        nat,
        clients_file,
        isolation,
        silent,
        allow,
        dns,
        metrics,
        web,
        wireguard,
        fleet,
        transport,
    })
}

struct Identity {
    listen: Vec<SocketAddr>,
    keys: ExitKeys,
    endpoint: Option<Endpoint>,
}

fn read_identity(document: &mut Document<'_>) -> Result<Identity, ConfigError> {
    const LIST: &str = "a list of addresses such as [\"0.0.0.0:443\", \"[::]:443\"]";
    let mut section = document.section("exit")?;
    let listen = section.optional("listen", list(LIST, socket_address))?;
    let endpoint = section.optional("endpoint", value::endpoint)?;
    let key = KeySetting::read(&mut section, false)?;
    section.finish()?;
    let listen = match listen {
        Some(Located { value, line }) if value.is_empty() => {
            return Err(section.error(line, format!("listen in [exit] is empty, but must be {LIST}")));
        }
        Some(listen) => listen.value,
        None => default_listen(),
    };
    let keys = key.resolve_exit(&section)?;
    Ok(Identity { listen, keys, endpoint: endpoint.map(|endpoint| endpoint.value) })
}

fn default_listen() -> Vec<SocketAddr> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    let port = super::DEFAULT_PORT;
    vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))]
}

fn read_addresses(document: &mut Document<'_>) -> Result<(Option<Ipv4Net>, Option<Ipv6Net>), ConfigError> {
    let mut section = document.section("addresses")?;
    let ipv4 = section.optional("ipv4", |value| {
        let text = value.text("a network such as \"10.66.0.0/16\"")?;
        ipv4_pool(text).map_err(|sentence| value.problem(sentence))
    })?;
    let ipv6 = section.optional("ipv6", |value| {
        let text = value.text("a network such as \"fd66:6666::/64\"")?;
        ipv6_pool(text).map_err(|sentence| value.problem(sentence))
    })?;
    section.finish()?;
    Ok((ipv4.map(|ipv4| ipv4.value), ipv6.map(|ipv6| ipv6.value)))
}

fn read_nat(document: &mut Document<'_>, pool: Option<Ipv6Net>) -> Result<NatSettings, ConfigError> {
    let mut section = document.section("nat")?;
    let enabled = section.or("enabled", true, boolean)?;
    // A public prefix is routed to this host, so clients with its addresses need no NAT.
    let is_private = pool.is_none_or(|pool| pool.addr().is_unique_local());
    let ipv6 = section.or("ipv6", is_private, boolean)?;
    let interface = section.or("interface", "auto".to_owned(), value::device_name)?;
    section.finish()?;
    let interface = if interface == "auto" { NatInterface::Auto } else { NatInterface::Name(interface) };
    Ok(NatSettings { ipv4: enabled, ipv6: enabled && ipv6, interface })
}

fn read_clients(document: &mut Document<'_>) -> Result<(PathBuf, bool), ConfigError> {
    let mut section = document.section("clients")?;
    let file = section.or("file", PathBuf::from("exit/clients.toml"), |value| {
        let text = value.text("a file name such as \"clients.toml\"")?;
        // A path that ends like this refers to a directory, which a new file cannot replace.
        if text.is_empty() || text.ends_with('/') || text.ends_with("..") {
            return Err(value.problem("must be a file name such as \"clients.toml\""));
        }
        Ok(PathBuf::from(text))
    })?;
    let isolation = section.or("isolation", true, boolean)?;
    section.finish()?;
    Ok((file, isolation))
}

fn read_access(document: &mut Document<'_>) -> Result<(bool, Vec<IpNet>), ConfigError> {
    let mut section = document.section("access")?;
    let silent = section.or("silent", true, boolean)?;
    let allow =
        section.or("allow", Vec::new(), list("a list of networks such as [\"192.168.1.0/24\"]", network))?;
    section.finish()?;
    Ok((silent, allow))
}

fn read_dns(document: &mut Document<'_>) -> Result<Vec<IpAddr>, ConfigError> {
    let mut section = document.section("dns")?;
    let servers = section.or(
        "servers",
        Vec::new(),
        list("a list of addresses such as [\"9.9.9.9\"]", value::address),
    )?;
    section.finish()?;
    Ok(servers)
}
