//! `warren network`: says which network this host is in, and what to write in a profile to trust it.

use std::fmt::Write as _;
use std::time::Duration;

use warren_host::current_network::{CurrentNetwork, TrustedNetwork};

use warren_config::{load_profile, profile_names};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

/// Prints the network.
///
/// # Errors
/// Why it cannot be recognised.
pub(crate) async fn run(directories: &Directories, name: &str) -> anyhow::Result<()> {
    let current = look().await?;
    let Some(setting) = current.as_setting(name) else {
        anyhow::bail!(
            "the hardware address of the router {} on {} is not known; run this as root, so that Warren can ask for it, or check the \
             connection",
            current.router,
            current.device
        );
    };
    if let Err(()) = setting.parse::<TrustedNetwork>() {
        let sentence = format!("{name:?} is not a name for a network; use letters, digits, `-`, `_` and `.`");
        return Err(Failure::new(ExitCode::Usage, sentence).into());
    }
    let mut text = String::new();
    for (profile, trusted) in trusting(directories, &current) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "the profile {profile} trusts this network as {trusted}");
    }
    let _ = writeln!(
        text,
        "network   {}\nrouter    {} on {}\n\nTo let a profile's tunnel rest here, write:\n\n[on_demand]\ntrusted = [\"{setting}\"]",
        current.networks.first().map(|network| network.trunc().to_string()).unwrap_or_default(),
        current.router,
        current.device
    );
    output::print(&text)
}

/// Returns the network, after waiting until its router has answered.
async fn look() -> anyhow::Result<CurrentNetwork> {
    let mut found = None;
    for _ in 0..ATTEMPTS {
        found = CurrentNetwork::look().await?;
        match &found {
            Some(current) if current.hardware.is_none() => tokio::time::sleep(PAUSE).await,
            _ => break,
        }
    }
    match found {
        Some(current) => Ok(current),
        None => anyhow::bail!(
            "this host has no network that could be recognised: Warren recognises a network by its router, a mobile modem has none, \
             and IPv4 and IPv6 must use the same device"
        ),
    }
}

/// Returns the profiles that trust the network, each with its name for the network. Profiles that this user cannot read are left
/// out.
fn trusting(directories: &Directories, current: &CurrentNetwork) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for profile in profile_names(&directories.config).unwrap_or_default() {
        let file = directories.config.join(format!("{profile}.toml"));
        let Ok(settings) = load_profile(&file) else { continue };
        let trusted = settings.on_demand.trusted.iter().find(|trusted| current.is(trusted));
        found.extend(trusted.map(|trusted| (profile.to_string(), trusted.name.clone())));
    }
    found
}

const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(150);
