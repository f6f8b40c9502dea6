//! A client's profile: `/etc/warren/NAME.toml`.

use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use warren_host::Ports;
use warren_host::dns::Servers;
use warren_quic::key::{PrivateKey, PublicKey};
use warren_quic::settings::WorkerPlace;
use warren_session::MAX_PREFIXES;

use super::dns::DnsSettings;
use super::document::{Document, Located};
use super::endpoint::Endpoint;
use super::exec::ExecSettings;
use super::find::ProfileName;
use super::forwards::read_forwards;
use super::ineffective::IneffectiveSetting;
use super::key::{KeySetting, public_keys};
use super::kill_switch::KillSwitchSettings;
use super::on_demand::OnDemandSettings;
use super::transport::Transport;
use super::value::{
    Problem, Value, auto_or, auto_or_device_name, boolean, boolean_or_auto, endpoint, list, network, number,
    server_name,
};
use super::wording::quoted;
use super::{ConfigError, file};

/// All settings of a profile.
#[derive(Debug)]
pub struct ClientProfile {
    /// The file's name without `.toml`.
    pub name: ProfileName,
    /// The client's own key.
    pub private_key: PrivateKey,
    /// The key's file, if it is in one.
    pub key_file: Option<PathBuf>,
    /// The exit to connect to.
    pub exit: RemoteExit,
    /// Exits to use while the first does not answer, in order.
    pub other_exits: Vec<RemoteExit>,
    /// `[tun]`.
    pub tun: TunSettings,
    /// `[routes]`.
    pub routes: RouteSettings,
    /// `[kill_switch]`.
    pub kill_switch: KillSwitchSettings,
    /// `[on_demand]`.
    pub on_demand: OnDemandSettings,
    /// `[exec]`.
    pub exec: ExecSettings,
    /// Ports of this host that may be reached through the tunnel.
    pub allowed_forwards: Vec<Ports>,
    /// `[dns]`.
    pub dns: DnsSettings,
    /// Whether the daemon follows the roster of its exits' fleet.
    pub follows_fleet: bool,
    /// `[transport]`.
    pub transport: Transport,
    /// Settings in the file that have no effect in this version.
    pub ineffective: Vec<IneffectiveSetting>,
}

impl ClientProfile {
    /// All exits, in order.
    pub fn exits(&self) -> impl Iterator<Item = &RemoteExit> {
        std::iter::once(&self.exit).chain(&self.other_exits)
    }

    /// Changes the profile so that the host's own routes and resolvers stay as they are. Only `warren exec`
    /// then uses the tunnel.
    pub fn leave_host_outside(&mut self) {
        self.routes.include.clear();
        self.routes.of_exit = false;
        self.routes.exclude.clear();
        self.routes.lan = Lan::Closed;
        self.dns.domains.clear();
        let servers = std::mem::replace(&mut self.dns.servers, Servers::Listed(Vec::new()));
        self.exec.servers = Some(servers);
    }

    /// Moves an exit to the front, so that it is tried first. `name` is its endpoint, or only its host. Returns false if there is
    /// no such exit.
    pub fn put_first(&mut self, name: &str) -> bool {
        let is_named = |exit: &RemoteExit| exit.is_called(name);
        if is_named(&self.exit) {
            return true;
        }
        let Some(place) = self.other_exits.iter().position(is_named) else { return false };
        let first = self.other_exits.remove(place);
        self.other_exits.insert(0, std::mem::replace(&mut self.exit, first));
        true
    }
}

/// A profile's TUN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunSettings {
    /// The device's name. `None` for the first free one of warren0, warren1 and so on.
    pub device: Option<String>,
    /// The device's MTU. `None` to let the exit choose.
    pub mtu: Option<u16>,
}

/// A profile's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// Networks that go through the tunnel. Empty if the exit names them.
    pub include: Vec<IpNet>,
    /// Whether the exit names the networks that go through the tunnel, and may change them during a session.
    pub of_exit: bool,
    /// Networks that stay outside of the tunnel, although `include` covers them.
    pub exclude: Vec<IpNet>,
    /// Whether private networks on this host's links stay reachable.
    pub lan: Lan,
    /// Networks behind this host that the exit should route to it.
    pub prefixes: Vec<IpNet>,
    /// What happens to the routes once every exit has refused this client.
    pub when_refused: WhenRefused,
}

/// Whether private networks on this host's links stay reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lan {
    /// Private networks are not reachable. This is also the value for profiles without the setting, because
    /// earlier versions treated a missing setting as false.
    Closed,
    /// Private networks stay reachable, with or without a kill switch.
    Reachable,
    /// Private networks stay reachable unless the kill switch is closed. New profiles have this value.
    UnlessKillSwitch,
}

impl Lan {
    /// Whether local networks are reachable in the given state of the kill switch.
    pub fn is_reachable(self, is_kill_switch_closed: bool) -> bool {
        match self {
            Self::Closed => false,
            Self::Reachable => true,
            Self::UnlessKillSwitch => !is_kill_switch_closed,
        }
    }
}

/// An exit as its clients know it.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteExit {
    /// The address at which the exit listens.
    pub endpoint: Endpoint,
    /// The exit's keys, at least one. There are several while the exit's key is being rotated.
    pub public_keys: Vec<PublicKey>,
    /// The name in the SNI extension of the TLS ClientHello, which anybody on the path can read. None by default.
    pub server_name: Option<String>,
}

impl RemoteExit {
    /// Whether `name` means this exit: `name` is the exit's endpoint or only its host.
    pub fn is_called(&self, name: &str) -> bool {
        self.endpoint.host() == name || self.endpoint.to_string() == name
    }
}

/// Reads a profile.
///
/// # Errors
///
/// If anything is wrong with the file or its key file. The error names the line and says what to do.
///
/// ```
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("home.toml");
/// std::fs::write(&path, "[client]\nprivate_key_fil = \"home.key\"\n")?;
/// let error = warren_config::load_profile(&path).unwrap_err().to_string();
/// assert!(error.contains("home.toml:2"), "{error}");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn load_profile(path: &Path) -> Result<ClientProfile, ConfigError> {
    let name = ProfileName::of_file(path)?;
    let file = file::read(path, "check the name, or ask the exit's operator for a profile")?;
    parse(name, path, &file.text, file.mode())
}

/// Checks the text of a profile that is not written yet. `path` is the file that it is for.
///
/// # Errors
///
/// As [`load_profile`].
pub fn check_profile(path: &Path, text: &str) -> Result<(), ConfigError> {
    parse(ProfileName::of_file(path)?, path, text, 0o600).map(drop)
}

/// Reads a profile's text. `mode` is the mode of its file.
pub(super) fn parse(
    name: ProfileName,
    path: &Path,
    text: &str,
    mode: u32,
) -> Result<ClientProfile, ConfigError> {
    let mut document = Document::parse(path, text)?;
    let exits = read_exits(&mut document)?;
    let (tun, queues) = read_tun(&mut document)?;
    let routes = read_routes(&mut document)?;
    let dns = DnsSettings::read(&mut document, &routes.include)?;
    let kill_switch = KillSwitchSettings::read(&mut document, routes.of_exit)?;
    let on_demand = OnDemandSettings::read(&mut document, kill_switch.enabled)?;
    let exec = ExecSettings::read(&mut document)?;
    let allowed_forwards = read_forwards(&mut document)?;
    let follows_fleet = read_follow(&mut document)?;
    let transport = Transport::read_client(&mut document)?;
    let ineffective = queues.filter(|(queues, _)| *queues != transport.workers()).map(|(_, warning)| warning);
    let mut client = document.section("client")?;
    let key = KeySetting::read(&mut client, true)?;
    client.finish()?;
    let key_file = key.path().map(Path::to_owned);
    // Unknown sections are reported before this error, because a missing section may be a misspelt one.
    let private_key = key.resolve(&client, mode);
    document.finish()?;

    let private_key = private_key?;
    let (exit, other_exits) = check_exits(path, exits, &private_key)?;
    Ok(ClientProfile {
        name,
        private_key,
        key_file,
        exit,
        other_exits,
        tun,
        routes,
        dns,
        kill_switch,
        on_demand,
        exec,
        allowed_forwards,
        follows_fleet,
        transport,
        ineffective: ineffective.into_iter().collect(),
    })
}

/// Reads `[fleet]`.
fn read_follow(document: &mut Document<'_>) -> Result<bool, ConfigError> {
    let mut section = document.section("fleet")?;
    let follows = section.or("follow", true, boolean)?;
    section.finish()?;
    Ok(follows)
}

fn read_exits(document: &mut Document<'_>) -> Result<Vec<Located<RemoteExit>>, ConfigError> {
    let mut exits = Vec::new();
    for mut section in document.sections("exit")? {
        let endpoint = section.optional("endpoint", endpoint)?;
        let keys = section.optional("public_key", public_keys)?;
        let server_name = section.optional("server_name", server_name)?.map(|name| name.value);
        section.finish()?;
        let Some(endpoint) = endpoint else {
            return Err(section
                .missing("endpoint", "write the exit's host and port, such as \"exit.example.net:443\""));
        };
        let Some(keys) = keys else {
            return Err(section.missing("public_key", "write the key that \"warren exit init\" printed"));
        };
        let exit = RemoteExit { endpoint: endpoint.value, public_keys: keys.value, server_name };
        exits.push(Located { value: exit, line: keys.line });
    }
    Ok(exits)
}

/// The first exit and the others.
fn check_exits(
    path: &Path,
    exits: Vec<Located<RemoteExit>>,
    private_key: &PrivateKey,
) -> Result<(RemoteExit, Vec<RemoteExit>), ConfigError> {
    let own = private_key.public();
    // A profile that contains the client's own key as the exit's key is a mistake, because no exit can prove that key.
    if let Some(exit) = exits.iter().find(|exit| exit.value.public_keys.contains(&own)) {
        let sentence =
            "public_key in [[exit]] is this client's own; write the key that \"warren exit init\" printed";
        return Err(ConfigError::at_line(path, exit.line, sentence));
    }
    let mut exits = exits.into_iter().map(|exit| exit.value);
    let Some(first) = exits.next() else {
        let sentence = "no exit is named; add an [[exit]] section with its endpoint and public_key";
        return Err(ConfigError::at_line(path, 1, sentence));
    };
    Ok((first, exits.collect()))
}

/// The settings, and a number of queues with the warning to print if it differs from the number of workers.
type Tun = (TunSettings, Option<(u8, IneffectiveSetting)>);

fn read_tun(document: &mut Document<'_>) -> Result<Tun, ConfigError> {
    let mut section = document.section("tun")?;
    let device = section.or("name", None, auto_or_device_name)?;
    let mtu = section.or("mtu", None, auto_or(number(1280..=65_535_u16)))?;
    let queues = section.optional("queues", auto_or(number(1..=WorkerPlace::MAX)))?;
    section.finish()?;
    // "auto" always matches the number of workers, so it needs no warning.
    let queues = queues.and_then(|Located { value, line }| {
        let consequence = "the device has one queue for each worker (`workers` in [transport])";
        Some((value?, IneffectiveSetting::new(&section, "queues in [tun]", line, consequence)))
    });
    Ok((TunSettings { device, mtu }, queues))
}

/// What a client does with its host once every exit has refused it for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenRefused {
    /// The tunnel's traffic stays blocked until somebody takes the tunnel down.
    Closed,
    /// The daemon ends, and traffic leaves outside the tunnel, as it did before `up`.
    Open,
}

fn when_refused(value: Value<'_>) -> Result<WhenRefused, Problem> {
    const EXPECTED: &str = "\"closed\" or \"open\"";
    match value.text(EXPECTED)? {
        "closed" => Ok(WhenRefused::Closed),
        "open" => Ok(WhenRefused::Open),
        other => Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(other)))),
    }
}

fn lan(value: Value<'_>) -> Result<Lan, Problem> {
    Ok(match boolean_or_auto(value)? {
        Some(true) => Lan::Reachable,
        Some(false) => Lan::Closed,
        None => Lan::UnlessKillSwitch,
    })
}

fn read_routes(document: &mut Document<'_>) -> Result<RouteSettings, ConfigError> {
    // Without `include`, all traffic goes through the tunnel.
    let everything = vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    let mut section = document.section("routes")?;
    let include = section.or("include", Some(everything), included)?;
    let of_exit = include.is_none();
    let include = include.unwrap_or_default();
    let exclude = section.or("exclude", Vec::new(), |value| networks_left_out(value, &include))?;
    let lan = section.or("lan", Lan::Closed, lan)?;
    let prefixes = section.or("prefixes", Vec::new(), networks_behind)?;
    let when_refused = section.or("when_refused", WhenRefused::Closed, when_refused)?;
    section.finish()?;
    Ok(RouteSettings { include, of_exit, exclude, lan, prefixes, when_refused })
}

const ANY_NETWORKS: &str = "a list of networks such as [\"10.0.0.0/8\"]";

/// The networks that go through the tunnel. `None` if the exit names them.
fn included(value: Value<'_>) -> Result<Option<Vec<IpNet>>, Problem> {
    const EXPECTED: &str = "\"exit\" or a list of networks such as [\"10.0.0.0/8\"]";
    if value.is_list() {
        return list(EXPECTED, network)(value).map(Some);
    }
    match value.text(EXPECTED)? {
        "exit" => Ok(None),
        other => Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(other)))),
    }
}

/// Networks to exclude. No network may also be in `include`, because one of the two entries would be ignored.
fn networks_left_out(value: Value<'_>, include: &[IpNet]) -> Result<Vec<IpNet>, Problem> {
    let networks = list(ANY_NETWORKS, network)(value)?;
    let is_included = |network: &IpNet| include.iter().any(|included| included.trunc() == network.trunc());
    match networks.iter().copied().find(is_included) {
        Some(both) => Err(value.problem(format!(
            "contains {both}, but include contains that network too (by default, include contains everything); remove it from \
             one of the two"
        ))),
        None => Ok(networks),
    }
}

/// Reads the networks behind the client. A default route or too many networks are errors, because the exit would refuse them too.
/// Host bits are cleared.
fn networks_behind(value: Value<'_>) -> Result<Vec<IpNet>, Problem> {
    const LIST: &str = "a list of networks such as [\"192.168.7.0/24\"]";
    let networks = list(LIST, network)(value)?;
    if let Some(default) = networks.iter().find(|network| network.prefix_len() == 0) {
        return Err(value.problem(format!("has {default}, but must name the networks behind this host")));
    }
    if networks.len() > MAX_PREFIXES {
        return Err(
            value.problem(format!("has {} networks, but can have at most {MAX_PREFIXES}", networks.len()))
        );
    }
    Ok(networks.iter().map(IpNet::trunc).collect())
}
