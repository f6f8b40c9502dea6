//! `warren exit init`: writes an exit's configuration and key, once.

mod own_address;
mod prefixes;
mod resolvers;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::clients::overlap;

use super::args::ExitInitArgs;
use super::fleet::{self, Joined};
use crate::proc_net::{egress_device, networks_of_this_host};
use warren_config::storage;
use warren_config::{Endpoint, describe};
use warren_daemon::directories::Directories;
use warren_daemon::output;

const KEY_FILE: &str = "exit.key";
const CONFIG_FILE: &str = "exit.toml";

/// Writes `exit.toml` and `exit.key` into the configuration directory. Prints what they contain and the next steps.
///
/// # Errors
/// When an exit exists already, a file cannot be written, or it is unknown where clients reach this host.
pub(crate) fn run(directories: &Directories, args: &ExitInitArgs) -> anyhow::Result<()> {
    run_with(directories, args, resolvers::reachable)
}

fn run_with(
    directories: &Directories,
    args: &ExitInitArgs,
    resolvers: impl FnOnce() -> Vec<IpAddr>,
) -> anyhow::Result<()> {
    let endpoint = match args.endpoint.clone() {
        Some(endpoint) => endpoint,
        None => own_address::endpoint().context(
            "this host has no public address of its own, so it cannot tell where clients reach it; name its address with --endpoint HOST",
        )?,
    };
    let taken = networks_of_this_host();
    warn_of_overlaps(args, &taken);
    // On a host without IPv6, an exit with an IPv6 prefix would not start.
    let host_has_ipv6 = warren_host::facts::new_devices_take_ipv6().unwrap_or(false);
    let joined = match &args.fleet {
        Some(ticket) => Some(join(directories, ticket, host_has_ipv6)?),
        None => None,
    };
    let of_fleet = joined.as_ref().map(|joined| &joined.pools);
    let setup = Setup {
        endpoint: &endpoint,
        // An exit of a fleet gets the fleet's prefixes, because they are the same at all exits.
        ipv4: match (of_fleet, args.ipv4) {
            (Some(pools), _) => pools.ipv4,
            (None, Some(ipv4)) => Some(ipv4),
            (None, None) => Some(prefixes::draw_ipv4(&taken, random)?.context(
                "every private IPv4 network drawn is in use on this host; choose the inner prefix with --ipv4 CIDR",
            )?),
        },
        ipv6: match (of_fleet, args.ipv6) {
            (Some(pools), _) => pools.ipv6,
            (None, Some(ipv6)) => Some(ipv6),
            (None, None) if host_has_ipv6 => Some(prefixes::draw_ipv6(random)?),
            (None, None) => None,
        },
        listen_on_ipv6: host_has_ipv6,
        resolvers: resolvers(),
        fleet: joined.map(|joined| joined.exit),
    };
    let key = PrivateKey::generate()?;
    let files = write(&directories.config, &setup, &key)?;
    let egress = egress_device();
    if egress.is_none() {
        output::warn("this host has no default route, so clients will have no internet; add one");
    }
    if setup.resolvers.is_empty() {
        output::warn(without_resolvers(&files.config));
    }
    output::print(&told(directories, &setup, egress.as_deref(), &files, &key.public()))
}

/// Joins a fleet. If a later step fails, this host may join again with the same ticket.
fn join(directories: &Directories, ticket: &str, host_has_ipv6: bool) -> anyhow::Result<Joined> {
    refuse_existing(&files_in(&directories.config))?;
    let joined = fleet::join(ticket, directories)?;
    if joined.pools.ipv6.is_some() && !host_has_ipv6 {
        bail!(
            "the fleet has an IPv6 prefix, and IPv6 is turned off on this host, so an exit would not start; turn IPv6 on, then run this \
             again with the same ticket"
        );
    }
    Ok(joined)
}

fn files_in(directory: &Path) -> Files {
    Files { config: directory.join(CONFIG_FILE), key: directory.join(KEY_FILE) }
}

/// Refuses to set up an exit where there is one.
fn refuse_existing(files: &Files) -> anyhow::Result<()> {
    for file in [&files.config, &files.key] {
        // Unlike `exists`, this also finds a dangling link.
        if fs::symlink_metadata(file).is_ok() {
            bail!(
                "{} exists already and stays as it is; use it, or move exit.toml and exit.key away to start over \
                 (profiles with the old key stop working)",
                file.display()
            );
        }
    }
    Ok(())
}

/// Describes what was found and written, and the next steps.
fn told(
    directories: &Directories,
    setup: &Setup<'_>,
    egress: Option<&str>,
    files: &Files,
    key: &PublicKey,
) -> String {
    let list = |words: &[String]| match words {
        [] => "none".to_owned(),
        words => words.join(", "),
    };
    let prefixes = [setup.ipv4.map(|ipv4| ipv4.to_string()), setup.ipv6.map(|ipv6| ipv6.to_string())];
    let prefixes: Vec<String> = prefixes.into_iter().flatten().collect();
    let resolvers: Vec<String> = setup.resolvers.iter().map(ToString::to_string).collect();
    let port = setup.endpoint.port();
    format!(
        "Wrote {config} and {key_file}:\n  \
         clients reach it at  {endpoint}\n  \
         internet through     {egress}, with its address (NAT)\n  \
         inner addresses      {prefixes}\n  \
         clients' resolvers   {resolvers}\n\
         Public key: {key}\n\
         Next: open UDP port {port} in the provider's firewall and this host's own, {start}, \
         then {then}.\n",
        config = files.config.display(),
        key_file = files.key.display(),
        endpoint = setup.endpoint,
        egress = egress.unwrap_or("no device yet"),
        prefixes = list(&prefixes),
        resolvers = list(&resolvers),
        start = start(directories, setup.fleet.is_some()),
        then = match setup.fleet {
            Some(_) => {
                format!("check with \"{}\" that the store answers", directories.command("fleet status"))
            }
            None => format!("invite a client with \"{} NAME\"", directories.command("exit invite")),
        },
    )
}

/// The warning that no resolver was found. Private resolvers in this host's network are not used, because clients of an exit
/// reach only the internet.
fn without_resolvers(config: &Path) -> String {
    format!(
        "no resolver on the internet answered this host, so servers in [dns] of {} is empty. Clients with a full tunnel may not be \
         able to resolve names; write a resolver there that this host can reach, such as servers = [\"9.9.9.9\"]",
        config.display()
    )
}

/// The values in `exit.toml`.
struct Setup<'a> {
    endpoint: &'a Endpoint,
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
    listen_on_ipv6: bool,
    resolvers: Vec<IpAddr>,
    /// The exit's name in its fleet, if it belongs to one.
    fleet: Option<String>,
}

impl Setup<'_> {
    fn to_toml(&self) -> String {
        let port = self.endpoint.port();
        let listen_ipv6 = if self.listen_on_ipv6 { format!(", \"[::]:{port}\"") } else { String::new() };
        let ipv4 = self.ipv4.map_or_else(String::new, |ipv4| format!("ipv4 = \"{ipv4}\"\n"));
        let ipv6 = self.ipv6.map_or_else(String::new, |ipv6| format!("ipv6 = \"{ipv6}\"\n"));
        let resolvers: Vec<String> = self.resolvers.iter().map(|address| format!("\"{address}\"")).collect();
        let fleet =
            self.fleet.as_ref().map(|name| format!("\n[fleet]\nname = \"{name}\"\n")).unwrap_or_default();
        format!(
            r#"# An exit of Warren. "warren exit run" reads this file.

[exit]
listen = ["0.0.0.0:{port}"{listen_ipv6}]
private_key_file = "{KEY_FILE}"
endpoint = "{endpoint}"   # written into profiles

[addresses]                # clients get addresses from these
{ipv4}{ipv6}
[nat]
enabled = true
interface = "auto"

[clients]
file = "exit/clients.toml" # in the state directory
isolation = true

[dns]
servers = [{resolvers}]   # clients use these while a tunnel is up
{fleet}"#,
            endpoint = self.endpoint,
            resolvers = resolvers.join(", "),
        )
    }
}

#[derive(Debug)]
struct Files {
    config: PathBuf,
    key: PathBuf,
}

/// Writes both files, or neither.
fn write(directory: &Path, setup: &Setup<'_>, key: &PrivateKey) -> anyhow::Result<Files> {
    let files = files_in(directory);
    refuse_existing(&files)?;
    let made = storage::make_directory(directory).map_err(|error| {
        let reason = describe(&error);
        anyhow!("{} cannot be created: {reason}; choose another --config-dir", directory.display())
    })?;
    // A killed `init` may have left temporary files.
    storage::remove_abandoned(directory);
    let written =
        create_both((&files.key, key.to_line().as_bytes()), (&files.config, setup.to_toml().as_bytes()));
    if written.is_err() && made {
        // If somebody has put another file into the directory, this fails, and the directory stays.
        let _ = fs::remove_dir(directory);
    }
    written.map(|()| files)
}

/// Creates the key, which only its owner can read, and the configuration, which the exit's own user has to read too. If the
/// configuration cannot be created, removes the key again.
fn create_both(key: (&Path, &[u8]), config: (&Path, &[u8])) -> anyhow::Result<()> {
    create(key.0, key.1, 0o600)?;
    create(config.0, config.1, 0o644).inspect_err(|_| {
        let _ = fs::remove_file(key.0);
    })
}

fn create(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    storage::create_new(path, content, mode).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            anyhow!("somebody else has created {} meanwhile; it stays as it is", path.display())
        } else {
            anyhow!("{} cannot be written: {}; check its directory", path.display(), describe(&error))
        }
    })
}

/// Warns of inner prefixes that the operator has chosen and that overlap a network of this host. The prefixes are used
/// nevertheless.
fn warn_of_overlaps(args: &ExitInitArgs, taken: &[IpNet]) {
    for chosen in [args.ipv4.map(IpNet::V4), args.ipv6.map(IpNet::V6)].into_iter().flatten() {
        if let Some(network) = taken.iter().find(|network| overlap(network, &chosen)) {
            output::warn(format!("the inner prefix {chosen} overlaps {network}, which this host uses"));
        }
    }
}

/// Returns the commands that start the exit and, in a fleet, its link. If Warren's systemd units can be used, these are systemctl
/// commands.
fn start(directories: &Directories, is_in_fleet: bool) -> String {
    let has_unit = |unit: &str| {
        let mut places = ["/usr/lib", "/lib", "/etc"].iter();
        places.any(|place| Path::new(place).join("systemd/system").join(unit).exists())
    };
    let run = directories.command("exit run");
    // The units use the default directories, so they cannot be used if other directories were given.
    let is_service = run == "warren exit run" && sd_notify::booted().unwrap_or(false);
    let (exit, link) =
        (is_service && has_unit("warren-exit.service"), is_service && has_unit("warren-fleet.service"));
    match (is_in_fleet, exit, link) {
        (false, true, _) => "start the exit with \"systemctl enable --now warren-exit\"".to_owned(),
        (false, false, _) => format!("start the exit with \"{run}\""),
        (true, true, true) => {
            "start the exit and its link to the fleet with \"systemctl enable --now warren-exit warren-fleet\"".to_owned()
        }
        (true, ..) => format!(
            "start the exit with \"{run}\" and its link to the fleet with \"{}\" as the user warren-fleet",
            directories.command("fleet run")
        ),
    }
}

fn random() -> anyhow::Result<u64> {
    getrandom::u64().context("the operating system gave no random bytes")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use warren_config::load_exit;

    fn directories(directory: &Path) -> Directories {
        Directories {
            config: directory.join("etc/warren"),
            runtime: directory.join("run"),
            state: directory.join("state"),
        }
    }

    /// Runs `init` with a given resolver, as if the host had it. No resolver is queried.
    fn run(directories: &Directories, args: &ExitInitArgs) -> anyhow::Result<()> {
        run_with(directories, args, || vec!["198.51.100.53".parse().unwrap()])
    }

    fn args(endpoint: &str) -> ExitInitArgs {
        ExitInitArgs { endpoint: Some(endpoint.parse().unwrap()), ipv4: None, ipv6: None, fleet: None }
    }

    #[test]
    fn what_init_writes_is_what_the_exit_reads() {
        let directory = tempfile::tempdir().unwrap();
        let directories = directories(directory.path());
        let args = ExitInitArgs {
            ipv4: Some("10.200.0.0/16".parse().unwrap()),
            ipv6: Some("fd12:3456:789a::/64".parse().unwrap()),
            ..args("exit.example.net:8443")
        };

        run(&directories, &args).unwrap();

        let config = load_exit(&directories.config.join("exit.toml")).unwrap();
        assert_eq!(config.endpoint.unwrap().to_string(), "exit.example.net:8443");
        assert_eq!(config.ipv4, args.ipv4);
        assert_eq!(config.ipv6, args.ipv6);
        assert_eq!(config.dns, ["198.51.100.53".parse::<IpAddr>().unwrap()]);
        assert!(config.listen.iter().all(|address| address.port() == 8443));
        assert!(config.nat.ipv4 && config.isolation);
        for (name, expected) in [("exit.toml", 0o644), ("exit.key", 0o600)] {
            let mode = fs::metadata(directories.config.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, expected, "{name}");
        }
    }

    #[test]
    fn what_was_found_out_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let directories = directories(directory.path());
        let endpoint = "[2001:db8::1]:8443".parse().unwrap();
        let setup = Setup {
            endpoint: &endpoint,
            ipv4: Some("10.200.0.0/16".parse().unwrap()),
            ipv6: None,
            listen_on_ipv6: true,
            resolvers: Vec::new(),
            fleet: None,
        };
        let files = Files { config: "a/exit.toml".into(), key: "a/exit.key".into() };

        let text =
            told(&directories, &setup, Some("ens3"), &files, &PrivateKey::generate().unwrap().public());

        for part in [
            "at  [2001:db8::1]:8443\n",
            "through     ens3,",
            "addresses      10.200.0.0/16\n",
            "resolvers   none\n",
            "UDP port 8443",
            &format!("warren exit run --config-dir {}", directories.config.display()),
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn an_exit_of_a_fleet_without_ipv4_has_none_either() {
        let directory = tempfile::tempdir().unwrap();
        let endpoint = "exit.example.net:443".parse().unwrap();
        let setup = Setup {
            endpoint: &endpoint,
            ipv4: None,
            ipv6: Some("fd12:3456:789a::/64".parse().unwrap()),
            listen_on_ipv6: true,
            resolvers: Vec::new(),
            fleet: Some("ams1".to_owned()),
        };
        let files = write(directory.path(), &setup, &PrivateKey::generate().unwrap()).unwrap();
        let config = load_exit(&files.config).unwrap();
        assert_eq!((config.ipv4, config.ipv6), (None, setup.ipv6));
    }

    #[test]
    fn two_exits_have_different_keys_and_prefixes() {
        let directory = tempfile::tempdir().unwrap();
        let configs = ["one", "two"].map(|name| {
            let directories = directories(&directory.path().join(name));
            run(&directories, &args("192.0.2.1")).unwrap();
            load_exit(&directories.config.join("exit.toml")).unwrap()
        });
        let [one, two] = configs;
        assert_ne!(one.keys.current.public(), two.keys.current.public());
        assert!(one.ipv4 != two.ipv4 || one.ipv6 != two.ipv6);
    }

    #[test]
    fn neither_file_is_ever_replaced() {
        for name in ["exit.toml", "exit.key"] {
            let directory = tempfile::tempdir().unwrap();
            let directories = directories(directory.path());
            fs::create_dir_all(&directories.config).unwrap();
            fs::write(directories.config.join(name), "mine").unwrap();

            let error = output::sentence(&run(&directories, &args("192.0.2.1")).unwrap_err());

            assert!(error.contains(name) && error.contains("exists already"), "{error}");
            assert_eq!(fs::read_to_string(directories.config.join(name)).unwrap(), "mine");
            assert_eq!(fs::read_dir(&directories.config).unwrap().count(), 1);
        }
    }

    #[test]
    fn first_file_is_removed_when_the_second_cannot_be_made() {
        let directory = tempfile::tempdir().unwrap();
        let (key, config) = (directory.path().join(KEY_FILE), directory.path().join(CONFIG_FILE));
        fs::write(&config, "made meanwhile").unwrap();

        let error = output::sentence(&create_both((&key, b"key"), (&config, b"config")).unwrap_err());

        assert!(error.contains("somebody else has created"), "{error}");
        assert!(!key.exists());
        assert_eq!(fs::read_to_string(&config).unwrap(), "made meanwhile");
    }

    #[test]
    fn failed_init_leaves_no_directory_behind() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("etc"), "a file").unwrap();

        let error = output::sentence(&run(&directories(directory.path()), &args("192.0.2.1")).unwrap_err());

        assert!(error.contains("etc/warren cannot be created: "), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
