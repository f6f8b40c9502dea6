//! `warren exit ...`: an exit and its clients.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use warren_quic::key::PublicKey;
use warren_session::clients::RateLimit;

use super::values;
use warren_config::Endpoint;
use warren_control::{AddressChoice, RateChoice};

/// `warren exit ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExitCommand {
    /// Write exit.toml and a new key, and say what they hold and what comes next.
    #[command(
        after_help = "Examples:\n  warren exit init\n  warren exit init --endpoint exit.example.net\n  \
                            warren exit init --endpoint 192.0.2.1:8443 --ipv4 10.66.0.0/16"
    )]
    Init(ExitInitArgs),
    /// Run the exit daemon in the foreground, as systemd does.
    Run,
    /// Remove, after two seconds, what a stopped exit left for its successor, if none has started.
    #[command(hide = true)]
    Release,
    /// Print one line to paste on a machine, which then enrols a key of its own.
    ///
    /// The line works once. `exit client remove` withdraws it.
    #[command(
        after_help = "Examples:\n  warren exit invite laptop\n  warren exit invite phone --expires 30min"
    )]
    Invite(InviteArgs),
    /// Tell clients to move to another exit, wait until they have, and stop.
    #[command(after_help = "Example:\n  warren exit drain --timeout 2min")]
    Drain(ExitDrainArgs),
    /// Give the exit a second key; both are served until the old one is retired.
    ///
    /// An exit that runs takes it over at once, and who is connected stays so unless sessions are to end. Clients pin the exit's
    /// key, so they are told of the new one in between; where the old one was stolen, of the new one alone.
    #[command(
        after_help = "Examples:\n  warren exit rotate-key\n  warren exit rotate-key --retire\n  warren exit rotate-key --retire --end-sessions"
    )]
    RotateKey(RotateKeyArgs),
    /// Enrol the clients of another VPN server.
    #[command(subcommand)]
    Import(ImportCommand),
    /// Manage the exit's clients, whether it runs or not.
    #[command(subcommand)]
    Client(ExitClientCommand),
}

/// `warren exit init`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExitInitArgs {
    /// Where clients reach this machine; its own public address, if it has one, and port 443 unless said.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = values::endpoint)]
    pub(crate) endpoint: Option<Endpoint>,
    /// The inner IPv4 prefix, from which clients get addresses; drawn at random unless said.
    #[arg(long, value_name = "CIDR", value_parser = values::ipv4_pool)]
    pub(crate) ipv4: Option<Ipv4Net>,
    /// The inner IPv6 prefix, from which clients get addresses; drawn at random unless said.
    #[arg(long, value_name = "CIDR", value_parser = values::ipv6_pool)]
    pub(crate) ipv6: Option<Ipv6Net>,
}

/// `warren exit invite`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InviteArgs {
    /// The client's name: lower-case letters, digits, dots, dashes and underscores.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How long the line works.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = values::validity)]
    pub(crate) expires: Duration,
}

/// `warren exit drain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExitDrainArgs {
    /// How long clients may take before the exit stops nevertheless.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
}

/// `warren exit import ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// Enrol a WireGuard server's peers, with their names and addresses and new keys.
    ///
    /// Names are taken from the comments at each [Peer], as the usual set-up programs write them. All peers are enrolled, or
    /// none. The exit's [addresses] have to be the networks of the WireGuard server.
    #[command(after_help = "Examples:\n  warren exit import wireguard /etc/wireguard/wg0.conf --dry-run\n  \
                            warren exit import wireguard /etc/wireguard/wg0.conf --output profiles")]
    Wireguard(ImportWireGuardArgs),
}

/// `warren exit import wireguard`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImportWireGuardArgs {
    /// The server's configuration, as wg-quick reads it.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where each client's profile is written; "clients" in the configuration directory unless said.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Show what would be enrolled, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `warren exit rotate-key`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RotateKeyArgs {
    /// Take the old key out of the key file: clients that pin it alone are refused from then on.
    #[arg(long)]
    pub(crate) retire: bool,
    /// End every session with it, also if the old key is gone already: who pins the new one is back within a second.
    #[arg(long, requires = "retire")]
    pub(crate) end_sessions: bool,
}

/// `warren exit client ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExitClientCommand {
    /// Enrol a client and print a complete profile for it.
    #[command(after_help = "Examples:\n  warren exit client add laptop --output laptop.toml\n  \
                            warren exit client add server --public-key KEY --ipv4 10.66.0.10")]
    Add(ClientAddArgs),
    /// List the clients.
    List(ClientListArgs),
    /// Show one client.
    Show(ClientShowArgs),
    /// Remove a client; its session ends at once, and its key is not enrolled again.
    Remove(ClientNameArgs),
    /// Give a client another name; its session goes on.
    Rename(ClientRenameArgs),
    /// Refuse a client from now on; its session ends at once, its addresses stay its own.
    Disable(ClientNameArgs),
    /// Admit a disabled client again.
    Enable(ClientNameArgs),
    /// Change a client's addresses, prefixes, rate limit or key.
    ///
    /// If it is connected, it comes back with other addresses and prefixes at once. A rate limit changes without that, and so
    /// does a key: who connects with the new one has the client's name and addresses from then on.
    #[command(after_help = "Examples:\n  warren exit client set laptop --ipv4 10.66.0.10 --ipv6 auto\n  \
                            warren exit client set office --prefix 192.168.7.0/24 --prefix fd00:7::/64\n  \
                            warren exit client set phone --rate-limit 20mbit")]
    Set(ClientSetArgs),
}

/// `warren exit client add`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientAddArgs {
    /// The client's name: lower-case letters, digits, dots, dashes and underscores.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The client's own public key; without it a key pair is made, and the private key stands in the profile.
    #[arg(long, value_name = "KEY", value_parser = values::public_key)]
    pub(crate) public_key: Option<PublicKey>,
    /// Enrol the key although it was taken from a client: whoever has a copy of its private key is a client again.
    #[arg(long, requires = "public_key")]
    pub(crate) allow_removed: bool,
    /// An inner IPv4 address that is always the client's.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ipv4: Option<Ipv4Addr>,
    /// An inner IPv6 address that is always the client's.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ipv6: Option<Ipv6Addr>,
    /// A network behind the client that it may ask the exit to route to it; may be given several times.
    #[arg(long = "prefix", value_name = "CIDR")]
    pub(crate) prefixes: Vec<IpNet>,
    /// What the client may send in a second, and receive, such as 50mbit; no limit unless said.
    #[arg(long, value_name = "RATE")]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Write the profile to a new file, readable by its owner alone, instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `warren exit client list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientListArgs {
    /// Write a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
    /// List the keys that were taken from clients instead, which are not enrolled again.
    #[arg(long)]
    pub(crate) removed: bool,
}

/// `warren exit client show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientShowArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Write a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `warren exit client remove|disable|enable`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientNameArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// `warren exit client rename`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientRenameArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What it is called from now on.
    #[arg(value_name = "NEW-NAME")]
    pub(crate) new_name: String,
}

/// `warren exit client set`.
#[derive(Args, Clone, Debug)]
#[command(group(
    ArgGroup::new("change").required(true).multiple(true)
        .args(["ipv4", "ipv6", "prefixes", "no_prefixes", "rate_limit", "public_key"])
))]
pub(crate) struct ClientSetArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// An inner IPv4 address that is always the client's, or "auto" for one that the exit chooses.
    #[arg(long, value_name = "ADDRESS|auto", value_parser = values::address_or_auto::<Ipv4Addr>)]
    pub(crate) ipv4: Option<AddressChoice<Ipv4Addr>>,
    /// An inner IPv6 address that is always the client's, or "auto" for one that the exit chooses.
    #[arg(long, value_name = "ADDRESS|auto", value_parser = values::address_or_auto::<Ipv6Addr>)]
    pub(crate) ipv6: Option<AddressChoice<Ipv6Addr>>,
    /// A network behind the client that it may ask the exit to route to it; those given replace those before.
    #[arg(long = "prefix", value_name = "CIDR")]
    pub(crate) prefixes: Vec<IpNet>,
    /// No network behind the client.
    #[arg(long, conflicts_with = "prefixes")]
    pub(crate) no_prefixes: bool,
    /// What the client may send in a second, and receive, such as 50mbit, or "off"; its session goes on.
    #[arg(long, value_name = "RATE|off", value_parser = values::rate_or_off)]
    pub(crate) rate_limit: Option<RateChoice>,
    /// Another key for the client, which "warren pubkey" prints there; the old one counts until it connects with the new one.
    #[arg(long, value_name = "KEY", value_parser = values::public_key)]
    pub(crate) public_key: Option<PublicKey>,
    /// Take the key although it was taken from a client: whoever has a copy of its private key is a client again.
    #[arg(long, requires = "public_key")]
    pub(crate) allow_removed: bool,
}
