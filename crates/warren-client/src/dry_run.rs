//! `warren up --dry-run`: prints what `up` would do on this host, as commands that a person would type.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use warren_host::dns::Servers;
use warren_host::{CARRIER_MARK, Step};
use warren_session::AttachToken;
use warren_session::client::SessionGrant;

use super::host::{HostSetup, Preview, firewall_warning};
use super::kill_switch;
use warren_config::{ClientProfile, load_profile};
use warren_daemon::daemon_directory::DaemonDirectory;
use warren_daemon::device_watch;
use warren_daemon::directories::Directories;
use warren_daemon::output;

// Examples of an exit's grants, with addresses for documentation (RFC 5737, RFC 3849).
const EXAMPLE_IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const EXAMPLE_IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const EXAMPLE_RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const EXAMPLE_MTU: u16 = 1380;

/// Prints what `up` would do with this profile on this host now. Changes nothing.
///
/// # Errors
/// When the profile or the host's state cannot be read.
pub async fn dry_run(directories: &Directories, file: &Path, kill_switch: bool) -> anyhow::Result<()> {
    let profile = load_profile(file)?;
    for setting in &profile.ineffective {
        output::warn(setting.to_string());
    }
    if let Some(device) = &profile.tun.device
        && device_watch::exists(device)?
    {
        output::warn(format!(
            "a network device named {device} exists already, so `up` would be refused now; stop what uses it, or set another `name` in [tun]"
        ));
    }
    let directory = DaemonDirectory::new(&directories.runtime, profile.name.as_str());
    if directory.has_lock_file() && directory.is_running()? {
        output::warn(format!(
            "{name} is up, so `up` would be refused now; `warren down {name}` takes it down",
            name = profile.name
        ));
    }
    if let Some(sentence) = firewall_warning::missing(&profile.routes.include) {
        output::warn(sentence);
    }
    let welcome = example(&profile);
    let mut text = head(&profile, &welcome);
    let closes = kill_switch || profile.kill_switch.enabled;
    let closed = match closes {
        true => Some(kill_switch::rules(&profile).await?.step(profile.name.as_str())),
        false => None,
    };
    let host = {
        // `up` does not open a closed kill switch, even if the profile has none.
        let is_closed = closes || kill_switch::is_closed(&directory).unwrap_or(false);
        HostSetup::new(&profile, is_closed, directory.journal(), directories.state.clone(), None)
    };
    let slot = warren_host::free_slot().await?;
    let slot = slot.context("256 tunnels are up on this host; take one down first")?;
    let preview = host.preview(&welcome, slot).await?;
    for bypass in &preview.bypasses {
        output::warn(format!(
            "{bypass} unless Warren's rules are put in front of it, as here; {}",
            bypass.remedy()
        ));
    }
    // Writing to a string cannot fail.
    let _ = write_preview(&mut text, closed.as_ref(), &preview);
    output::print(&text)
}

fn head(profile: &ClientProfile, welcome: &SessionGrant) -> String {
    let mut unknown = vec![format!(
        "the inner addresses, {EXAMPLE_IPV4} and {EXAMPLE_IPV6} (without an address, an IP version gets an unreachable \
         route)"
    )];
    if profile.tun.mtu.is_none() {
        unknown.push(format!("the MTU, {}", welcome.mtu));
    }
    if let (Servers::Exit, Some(resolver)) = (&profile.dns.servers, welcome.dns.first()) {
        unknown.push(format!(
            "the exit's resolver, {resolver} (if the exit names none, the host's DNS stays as it is)"
        ));
    }
    if profile.routes.of_exit {
        unknown.push("the tunnel's networks: the exit names them, so the plan below has none".to_owned());
    }
    let unknown: String = unknown.iter().map(|what| format!("#   {what}\n")).collect();
    format!(
        "# What `warren up {}` would do on this host as it is now. Nothing was changed.\n\
         # The exit's values are not known yet. These are examples:\n{unknown}\
         \n# carrier: {} UDP sockets to {}, with the mark {CARRIER_MARK:#x}\n",
        profile.name,
        profile.transport.connections(),
        profile.exit.endpoint
    )
}

fn write_preview(text: &mut String, closed: Option<&Step>, preview: &Preview) -> std::fmt::Result {
    if let Some(closed) = closed {
        writeln!(
            text,
            "\n# kill switch, which later also lets the carrier reach the exit's address\n{closed}"
        )?;
    }
    writeln!(text, "\n# devices\nip tuntap add dev {} mode tun vnet_hdr", preview.device)?;
    writeln!(text, "ip tuntap add dev {} mode tun vnet_hdr", preview.void)?;
    let mut last = "devices";
    for step in &preview.plan.steps {
        let heading = heading(step);
        if heading != last {
            writeln!(text, "\n# {heading}")?;
            last = heading;
        }
        writeln!(text, "{step}")?;
    }
    match &preview.dns {
        Some(dns) => write!(text, "\n# resolvers\n{dns}"),
        None => writeln!(text, "\n# resolvers: left as they are"),
    }
}

fn heading(step: &Step) -> &'static str {
    match step {
        Step::Address { .. } => "addresses",
        Step::LinkUp { .. } => "devices",
        Step::Route(_) => "routes",
        Step::Rule(_) => "rules",
        Step::Sysctl { .. } | Step::ForwardIpv6 => "settings",
        Step::Nftables { .. } => "firewall",
    }
}

fn example(profile: &ClientProfile) -> SessionGrant {
    SessionGrant {
        session: 0,
        attach_token: AttachToken::new([0; AttachToken::LENGTH]),
        ipv4: Some((EXAMPLE_IPV4, 24)),
        ipv6: Some((EXAMPLE_IPV6, 64)),
        gateway_ipv4: None,
        gateway_ipv6: None,
        mtu: EXAMPLE_MTU,
        dns: vec![example_resolver(&profile.routes.include)],
        routes: Vec::new(),
        exit_keys: Vec::new(),
        connections: profile.transport.connections(),
        keep_alive: Duration::ZERO,
        features: profile.transport.features(),
        prefixes: Vec::new(),
    }
}

/// An example resolver inside the tunnel's networks, because `up` would not use any other.
fn example_resolver(include: &[IpNet]) -> IpAddr {
    let example = IpAddr::from(EXAMPLE_RESOLVER);
    if include.iter().any(|network| network.contains(&example)) {
        return example;
    }
    include.first().and_then(|network| network.hosts().next()).unwrap_or(example)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolver_of_the_example_is_one_that_the_tunnel_leads_to() {
        let split: Vec<IpNet> = vec!["10.1.0.0/16".parse().unwrap()];
        let full: Vec<IpNet> = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];

        assert_eq!(example_resolver(&split), "10.1.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(example_resolver(&full), EXAMPLE_RESOLVER);
    }
}
