//! Collects facts about the host. A fact that cannot be determined is `None` or empty, and not evaluated.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use warren_host::dns::nameservers;
use warren_host::exit_plan;
use warren_host::facts::lan_beside;
use warren_host::kill_switch::{Standing, look};
use warren_host::{Bypass, RulePlace, Tunnel, published};
use warren_quic::socket::{self, SocketConfig, UdpOffload};

use super::path::{self, Path};
use super::read;
use crate::proc_net::{self, egress_device, networks_of_this_host};
use crate::runtime::block_on;
use warren_client::{ExitAnswer, check_exit, kill_switch, known_exits};
use warren_config::{ClientProfile, ExitSettings, RemoteExit, load_exit, load_profile, profile_names};
use warren_control::ask_status;
use warren_control::status::Status;
use warren_daemon::daemon_directory::{self, DaemonDirectory, EXIT};
use warren_daemon::directories::Directories;
use warren_daemon::sandbox;
use warren_exit::DEVICE as TUN;
use warren_exit::other_firewalls::{self, InTheWay};

/// Maximum time that a daemon takes to recreate its kill switch.
const TIME_TO_CLOSE: Duration = Duration::from_secs(2);

/// All facts that the checks evaluate.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) kernel: KernelFacts,
    pub(super) sockets: SocketFacts,
    pub(super) clock: ClockFacts,
    pub(super) cores: CoreFacts,
    pub(super) files: FileFacts,
    pub(super) daemons: DaemonFacts,
    pub(super) network: NetworkFacts,
    /// Each exit of each profile, and whether it answers.
    pub(super) exits: Vec<KnownExit>,
    /// Rules of other programs that would make a profile's traffic bypass its tunnel.
    pub(super) rules_in_front: Vec<RuleInFront>,
    /// The exit that is set up here. `None` if there is none.
    pub(super) exit: Option<ExitFacts>,
}

/// The kernel's features, and the tools that set them up.
#[derive(Debug, Default)]
pub(super) struct KernelFacts {
    pub(super) version: Option<(u32, u32)>,
    pub(super) has_tun: bool,
    pub(super) has_nft: bool,
    /// Whether the kernel can restrict a daemon to its own files.
    pub(super) has_landlock: Option<bool>,
}

/// The properties of a daemon's UDP sockets.
#[derive(Debug, Default)]
pub(super) struct SocketFacts {
    /// Bytes of buffer for receiving and for sending.
    pub(super) buffers: Option<(usize, usize)>,
    pub(super) offload: Option<UdpOffload>,
}

/// This host's clock.
#[derive(Debug, Default)]
pub(super) struct ClockFacts {
    /// Seconds since 1970.
    pub(super) seconds: u64,
    pub(super) is_synchronised: Option<bool>,
}

/// This host's processor cores.
#[derive(Debug, Default)]
pub(super) struct CoreFacts {
    /// The name of the deepest enabled idle state of the first core, and the time in microseconds to leave the state.
    pub(super) deepest_idle: Option<(String, u64)>,
    pub(super) is_virtual: bool,
}

/// The configuration directory.
#[derive(Debug, Default)]
pub(super) struct FileFacts {
    /// Problems with files.
    pub(super) broken: Vec<String>,
    /// Files that this user may not read.
    pub(super) unreadable: Vec<String>,
    /// Settings in files that have no effect.
    pub(super) without_effect: Vec<String>,
    pub(super) has_profiles: bool,
}

/// Warren's daemons on this host, running or not.
#[derive(Debug, Default)]
pub(super) struct DaemonFacts {
    /// Daemons that were killed and left changes on the host.
    pub(super) killed: Vec<String>,
    /// Kill switches that were closed.
    pub(super) closed: Vec<ClosedKillSwitch>,
    /// Problems that running clients report.
    pub(super) troubles: Vec<TunnelTrouble>,
}

/// This host's network.
#[derive(Debug, Default)]
pub(super) struct NetworkFacts {
    pub(super) egress: Option<Egress>,
    /// The packet sizes that the path to the internet carries.
    pub(super) path: Option<Path>,
    /// Networks to which this host has a route or in which it has an address.
    pub(super) networks: Vec<IpNet>,
    pub(super) resolvers: Vec<IpAddr>,
    /// Offloads of a running exit's TUN, and whether each is on.
    pub(super) tun_features: BTreeMap<String, bool>,
    /// Whether clients' packets are forwarded.
    pub(super) forwarding_ipv4: Option<bool>,
    pub(super) forwarding_ipv6: Option<bool>,
    /// Settings by which somebody else has turned on forwarding between all devices.
    pub(super) forwarding_for_all: Vec<&'static str>,
    /// The number of entries of the connection tracking table, and its maximum.
    pub(super) conntrack: Option<(u64, u64)>,
}

/// A problem that a running client reports.
#[derive(Debug)]
pub(super) struct TunnelTrouble {
    pub(super) profile: String,
    pub(super) sentence: String,
}

/// A kill switch that was closed and has not been opened since.
#[derive(Debug)]
pub(super) struct ClosedKillSwitch {
    pub(super) profile: String,
    /// Whether the profile's daemon runs.
    pub(super) is_running: bool,
    /// The kill switch's state according to the kernel.
    pub(super) standing: Result<Standing, String>,
}

/// A rule of another program that makes a profile's traffic bypass its tunnel unless Warren's rules take precedence.
#[derive(Debug)]
pub(super) struct RuleInFront {
    pub(super) profile: String,
    pub(super) rule: String,
    pub(super) remedy: String,
    /// Whether no free priority is left in front of the rule, so that Warren's rules cannot take precedence.
    pub(super) is_first: bool,
}

/// The link of the default route.
#[derive(Debug, Default)]
pub(super) struct Egress {
    pub(super) device: String,
    pub(super) mtu: Option<u32>,
    pub(super) features: BTreeMap<String, bool>,
    pub(super) qdisc: Option<String>,
}

/// An exit in a profile on this host.
#[derive(Debug)]
pub(super) struct KnownExit {
    pub(super) profile: String,
    pub(super) endpoint: String,
    pub(super) answer: Result<ExitAnswer, String>,
}

/// The exit that is set up here.
#[derive(Debug, Default)]
pub(super) struct ExitFacts {
    pub(super) is_running: bool,
    pub(super) ports: Vec<u16>,
    /// The ports in `ports` on which a program listens.
    pub(super) ports_in_use: Vec<u16>,
    pub(super) pools: Vec<IpNet>,
    pub(super) resolvers: Vec<IpAddr>,
    /// Pools whose packets leave for the internet without NAT.
    pub(super) untranslated: Vec<IpNet>,
    /// Chains of other programs that block clients from the exit or from the internet.
    pub(super) in_the_way: Vec<InTheWay>,
    /// Rules of the host's NAT that may publish ports which cannot be determined.
    pub(super) unread_ports: Vec<String>,
    /// Whether the host lets new devices have IPv6 addresses.
    pub(super) takes_ipv6: bool,
    /// Whether the running exit's table contains NAT rules.
    pub(super) translates: Option<bool>,
}

/// Asks the host.
pub(super) fn gather(directories: &Directories) -> Facts {
    let mut facts = Facts {
        kernel: KernelFacts {
            version: text("/proc/sys/kernel/osrelease").as_deref().and_then(read::kernel),
            has_tun: std::path::Path::new("/dev/net/tun").exists(),
            has_nft: output_of("nft", &["--version"]).is_some(),
            has_landlock: Some(sandbox::can_confine_files()),
        },
        sockets: SocketFacts { buffers: socket_buffers(), offload: socket::udp_offload().ok() },
        clock: clock(),
        cores: CoreFacts {
            deepest_idle: deepest_idle(),
            is_virtual: text("/proc/cpuinfo").is_some_and(|cpus| cpus.contains(" hypervisor")),
        },
        daemons: daemons(directories),
        network: network(),
        ..Facts::default()
    };
    read_configuration(directories, &mut facts);
    facts.network.path = path_of_exit(&facts);
    facts
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn clock() -> ClockFacts {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let synchronised = output_of("timedatectl", &["show", "--property=NTPSynchronized", "--value"]);
    ClockFacts {
        seconds: since.map_or(0, |since| since.as_secs()),
        is_synchronised: synchronised.map(|answer| answer.trim() == "yes"),
    }
}

fn daemons(directories: &Directories) -> DaemonFacts {
    let mut facts = DaemonFacts::default();
    for (name, directory) in daemon_directory::all(&directories.runtime).unwrap_or_default() {
        facts.troubles.extend(reported_by(&name, &directory));
        // If the lock cannot be checked, the daemon counts as running, so that no wrong problem is reported.
        let is_running = directory.is_running().unwrap_or(true);
        if directory.was_killed() && !is_running {
            facts.killed.push(name.clone());
        }
        facts.closed.extend(closed_kill_switch(&name, &directory, is_running));
    }
    facts
}

fn network() -> NetworkFacts {
    let is_on = |path: &str| text(path).map(|value| value.trim() == "1");
    let number = |path: &str| text(path)?.trim().parse::<u64>().ok();
    let forwarding_for_all = [
        ("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        // A running exit keeps the `default` setting off. If somebody turns on forwarding for all devices, the kernel turns this
        // setting on too.
        ("/proc/sys/net/ipv6/conf/default/forwarding", "net.ipv6.conf.all.forwarding"),
    ];
    NetworkFacts {
        egress: egress(),
        networks: networks_of_this_host(),
        resolvers: text("/etc/resolv.conf").as_deref().map(nameservers).unwrap_or_default(),
        forwarding_ipv4: is_on(&format!("/proc/sys/net/ipv4/conf/{TUN}/forwarding")),
        forwarding_ipv6: is_on("/proc/sys/net/ipv6/conf/all/forwarding"),
        forwarding_for_all: forwarding_for_all
            .into_iter()
            .filter(|(path, _)| is_on(path) == Some(true))
            .map(|(_, key)| key)
            .collect(),
        conntrack: number("/proc/sys/net/netfilter/nf_conntrack_count")
            .zip(number("/proc/sys/net/netfilter/nf_conntrack_max")),
        ..NetworkFacts::default()
    }
}

/// Asks the kernel for the table of a kill switch that was closed.
fn closed_kill_switch(name: &str, directory: &DaemonDirectory, is_running: bool) -> Option<ClosedKillSwitch> {
    if name == EXIT || !kill_switch::is_closed(directory).unwrap_or(false) {
        return None;
    }
    let standing = block_on(async {
        let standing = look(directory.kill_switch(), name).await?;
        if is_running && matches!(standing, Standing::Gone | Standing::Changed) {
            // The daemon may be changing the table at this moment, or be about to recreate it, so this waits and checks again.
            tokio::time::sleep(TIME_TO_CLOSE).await;
            return Ok(look(directory.kill_switch(), name).await?);
        }
        Ok(standing)
    });
    let standing = standing.map_err(|error| error.to_string());
    Some(ClosedKillSwitch { profile: name.to_owned(), is_running, standing })
}

fn read_configuration(directories: &Directories, facts: &mut Facts) {
    let path = directories.config.join("exit.toml");
    if path.exists() && may_read(&path, facts) {
        match load_exit(&path) {
            Ok(config) => {
                facts.exit = Some(exit(directories, &config));
                // The list is empty unless the exit runs, because only then the TUN exists.
                facts.network.tun_features = features(TUN);
            }
            Err(error) => facts.files.broken.push(error.to_string()),
        }
    }
    for name in profile_names(&directories.config).unwrap_or_default() {
        facts.files.has_profiles = true;
        let path = directories.config.join(format!("{name}.toml"));
        if !may_read(&path, facts) {
            continue;
        }
        match load_profile(&path) {
            Ok(profile) => {
                facts.files.without_effect.extend(profile.ineffective.iter().map(ToString::to_string));
                facts.exits.extend(exits_of(directories, &profile));
                facts.rules_in_front.extend(rules_in_front(&profile));
            }
            Err(error) => facts.files.broken.push(error.to_string()),
        }
    }
}

/// Whether this user may read a file. If not, adds the file to the unreadable files.
fn may_read(path: &std::path::Path, facts: &mut Facts) -> bool {
    let is_forbidden =
        fs::File::open(path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
    if is_forbidden {
        facts.files.unreadable.push(path.display().to_string());
    }
    !is_forbidden
}

/// The problems that a running client reports.
fn reported_by(profile: &str, directory: &DaemonDirectory) -> Vec<TunnelTrouble> {
    let asked = block_on(async { Ok(ask_status(&directory.socket()).await?) });
    let Ok(Status { client: Some(client), .. }) = asked else { return Vec::new() };
    let of = |sentence| TunnelTrouble { profile: profile.to_owned(), sentence };
    let refused = client.refused.map(|refused| {
        format!("{}; traffic for the tunnel stays blocked until `warren down {profile}`", refused.message)
    });
    refused.into_iter().chain(client.error).chain(client.warnings).map(of).collect()
}

/// Asks each exit of a profile and of its fleet's roster.
fn exits_of(directories: &Directories, profile: &ClientProfile) -> Vec<KnownExit> {
    let answers = async |exit: &RemoteExit| KnownExit {
        profile: profile.name.to_string(),
        endpoint: exit.endpoint.to_string(),
        answer: check_exit(exit, &profile.private_key).await,
    };
    let all = block_on(async {
        let mut all = Vec::new();
        for known in known_exits(&directories.state, profile) {
            all.push(answers(&known.exit).await);
        }
        Ok(all)
    });
    all.unwrap_or_default()
}

/// Returns the rules of other programs that are in front of a profile's rules, or would be in front of them at the usual
/// priorities.
fn rules_in_front(profile: &ClientProfile) -> Vec<RuleInFront> {
    let place = block_on(async {
        let is_reachable = profile.routes.lan.is_reachable(profile.kill_switch.enabled);
        let lan = match is_reachable {
            true => lan_beside(&profile.routes.include).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let exclude = [profile.routes.exclude.as_slice(), &profile.routes.prefixes, &lan].concat();
        let tunnel = Tunnel { include: profile.routes.include.clone(), exclude, inner: Vec::new() };
        Ok(warren_host::place(&tunnel, 0).await?)
    });
    let Ok(RulePlace { band, bypasses }) = place else { return Vec::new() };
    let of = |bypass: &Bypass| RuleInFront {
        profile: profile.name.to_string(),
        rule: bypass.to_string(),
        remedy: bypass.remedy(),
        is_first: band.is_none(),
    };
    bypasses.iter().map(of).collect()
}

/// Describes the rules that may publish ports but cannot be read. They include the tables of legacy iptables, which are not
/// visible in nftables and which the exit's service cannot read.
fn unread_ports() -> Vec<String> {
    let look = async { Ok(published::look().await) };
    let Ok(published) = block_on(look) else { return Vec::new() };
    let mut unread = published.unread;
    unread.extend(published::legacy_tables());
    unread
}

fn exit(directories: &Directories, config: &ExitSettings) -> ExitFacts {
    let mut ports = config.ports();
    ports.sort_unstable();
    ports.dedup();
    let used: Vec<u16> = ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|text| proc_net::udp_ports(&text))
        .collect();
    ExitFacts {
        is_running: DaemonDirectory::new(&directories.runtime, EXIT).is_running().unwrap_or(false),
        in_the_way: other_firewalls::look(&ports),
        unread_ports: unread_ports(),
        takes_ipv6: warren_host::facts::new_devices_take_ipv6().unwrap_or(true),
        ports_in_use: ports.iter().copied().filter(|port| used.contains(port)).collect(),
        ports,
        pools: [config.ipv4.map(IpNet::V4), config.ipv6.map(IpNet::V6)].into_iter().flatten().collect(),
        untranslated: [
            config.ipv4.map(IpNet::V4).filter(|_| !config.nat.ipv4),
            config.ipv6.map(IpNet::V6).filter(|_| !config.nat.ipv6),
        ]
        .into_iter()
        .flatten()
        .collect(),
        resolvers: config.dns.clone(),
        translates: output_of("nft", &["list", "table", "inet", exit_plan::TABLE])
            .map(|table| table.contains(" masquerade")),
    }
}

/// Measures the packet size on the path to one of the exit's resolvers, or else of this host's own, because resolvers usually
/// answer pings.
fn path_of_exit(facts: &Facts) -> Option<Path> {
    let (exit, egress) = facts.exit.as_ref().zip(facts.network.egress.as_ref())?;
    let mut hosts = [exit.resolvers.as_slice(), &facts.network.resolvers].concat();
    // Probing a resolver on this host would not measure the path.
    hosts.retain(|host| !host.is_loopback());
    path::to_any(&hosts, egress.mtu?)
}

/// Returns the buffer sizes of a socket that is made like a daemon's. Outside containers, a daemon may exceed the limits, because
/// it has CAP_NET_ADMIN. If this process lacks that capability, it cannot determine what a daemon gets.
fn socket_buffers() -> Option<(usize, usize)> {
    const WHOLE_RANGE: &str = "4294967295";
    let users = fs::read_to_string("/proc/self/uid_map").ok()?;
    // Only the initial user namespace maps all user IDs. Any other namespace means a container.
    let is_machine = users.split_whitespace().last() == Some(WHOLE_RANGE);
    if is_machine && !rustix::process::geteuid().is_root() {
        return None;
    }
    let socket = socket::bind(SocketConfig::new((Ipv4Addr::LOCALHOST, 0).into())).ok()?;
    let socket = socket2::SockRef::from(&socket);
    // The kernel reports twice the size that was asked for (socket(7)).
    Some((socket.recv_buffer_size().ok()? / 2, socket.send_buffer_size().ok()? / 2))
}

fn egress() -> Option<Egress> {
    let device = egress_device()?;
    let mtu = fs::read_to_string(format!("/sys/class/net/{device}/mtu")).ok();
    Some(Egress {
        mtu: mtu.and_then(|mtu| mtu.trim().parse().ok()),
        features: features(&device),
        qdisc: output_of("tc", &["qdisc", "show", "dev", &device, "root"]).as_deref().and_then(read::qdisc),
        device,
    })
}

fn features(device: &str) -> BTreeMap<String, bool> {
    output_of("ethtool", &["-k", device]).as_deref().map(read::features).unwrap_or_default()
}

/// The deepest idle state that the first core may enter.
fn deepest_idle() -> Option<(String, u64)> {
    let directory = fs::read_dir("/sys/devices/system/cpu/cpu0/cpuidle").ok()?;
    let state = |entry: fs::DirEntry| {
        let read =
            |name: &str| fs::read_to_string(entry.path().join(name)).ok().map(|text| text.trim().to_owned());
        // A disabled state is skipped, because a core does not enter it.
        let is_used = read("disable")? == "0";
        is_used.then_some((read("latency")?.parse::<u64>().ok()?, read("name")?))
    };
    // The deepest state takes longest to leave. `max` compares the latency first.
    let deepest = directory.filter_map(Result::ok).filter_map(state).max();
    deepest.map(|(latency, name)| (name, latency))
}

/// Returns the output of a program, if it is installed and succeeds.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    // The parsers expect the English output.
    let ended = Command::new(program).args(arguments).env("LC_ALL", "C").output().ok()?;
    ended.status.success().then(|| String::from_utf8_lossy(&ended.stdout).into_owned())
}
