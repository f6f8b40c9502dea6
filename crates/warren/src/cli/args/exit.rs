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
use warren_control::{AddressChoice, PortRange, RateChoice};

/// `warren exit ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExitCommand {
    /// Write exit.toml and a new key, and print their contents and the next steps.
    #[command(
        after_help = "Examples:\n  warren exit init\n  warren exit init --endpoint exit.example.net\n  \
                            warren exit init --endpoint 192.0.2.1:8443 --ipv4 10.66.0.0/16\n  \
                            warren exit init --endpoint ams2.example.net --fleet @ticket"
    )]
    Init(ExitInitArgs),
    /// Run the exit daemon in the foreground, as systemd does.
    Run,
    /// Wait two seconds, then remove the table that a stopped exit left for its successor, unless a successor has
    /// started.
    #[command(hide = true)]
    Release,
    /// Print a line that enrols another machine with a key of its own.
    ///
    /// The line works once. `warren exit client remove` withdraws it.
    ///
    /// With the name of a WireGuard client, the line turns that client into a Warren client. Do not withdraw this line with
    /// `remove`, because that removes the client. The line stops working when it expires, or when you invite the client again.
    #[command(
        after_help = "Examples:\n  warren exit invite laptop\n  warren exit invite phone --expires 30min"
    )]
    Invite(InviteArgs),
    /// Show the changes that operators made by command and on the page: when, by whom, and to which client.
    ///
    /// The exit keeps the newest 1 to 2 MiB, which is thousands of changes, in audit.log beside its clients. The exit's log has
    /// the same lines.
    #[command(after_help = "Examples:\n  warren exit audit --limit 20\n  warren exit audit --client laptop")]
    Audit(ExitAuditArgs),
    /// Tell clients to move to another exit, wait until they have, and stop.
    ///
    /// Names the clients whose profiles have no other exit, and asks before it cuts them off.
    #[command(after_help = "Examples:\n  warren exit drain\n  warren exit drain --timeout 2min --yes")]
    Drain(ExitDrainArgs),
    /// Give the exit a second key. Both are served until the old one is retired.
    ///
    /// A running exit uses the new key at once, and connected clients stay connected. Clients learn the new key in their
    /// sessions. The command then lists the clients that have not connected with the new key yet. While there are any,
    /// --retire lists them too and changes nothing.
    ///
    /// If the old key was stolen, write the new key alone into every client's profile.
    #[command(
        after_help = "Examples:\n  warren exit rotate-key\n  warren exit rotate-key --list\n  warren exit rotate-key --retire\n  warren exit rotate-key --retire --end-sessions"
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
    /// Where clients reach this machine [default: its public address, if it has one, and port 443].
    #[arg(long, value_name = "HOST[:PORT]", value_parser = values::endpoint)]
    pub(crate) endpoint: Option<Endpoint>,
    /// The inner IPv4 prefix, from which clients get addresses [default: a random one].
    #[arg(long, value_name = "CIDR", value_parser = values::ipv4_pool)]
    pub(crate) ipv4: Option<Ipv4Net>,
    /// The inner IPv6 prefix, from which clients get addresses [default: a random one].
    #[arg(long, value_name = "CIDR", value_parser = values::ipv6_pool)]
    pub(crate) ipv6: Option<Ipv6Net>,
    /// Make this machine an exit of a fleet, with a ticket from `warren fleet ticket`. It gets the fleet's inner prefixes. Use
    /// `-` (standard input) or @FILE: every user of this host can see a ticket on the command line.
    #[arg(long, value_name = "TICKET", conflicts_with_all = ["ipv4", "ipv6"])]
    pub(crate) fleet: Option<String>,
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

/// `warren exit audit`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExitAuditArgs {
    /// Only the changes to the client of this name, including those under its earlier names.
    #[arg(long, value_name = "NAME")]
    pub(crate) client: Option<String>,
    /// Only the newest entries, at most this many.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `warren exit drain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExitDrainArgs {
    /// How long clients may take. After that the exit stops anyway.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
    /// Do not ask, even if clients have nowhere to go.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `warren exit import ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// Enrol the peers of a WireGuard server with their names and addresses.
    ///
    /// If the exit has a section [wireguard], peers and server keep their keys, and the clients connect with their existing
    /// files. Otherwise each peer gets a new key and a profile for Warren.
    ///
    /// Names come from the comments at each [Peer], as common set-up programs write them. Either all peers are enrolled
    /// or none. The exit's [addresses] must be the networks of the WireGuard server. The import can be repeated: peers that are
    /// enrolled already stay as they are.
    #[command(after_help = "Examples:\n  warren exit import wireguard /etc/wireguard/wg0.conf --dry-run\n  \
                            warren exit import wireguard /etc/wireguard/wg0.conf --output profiles")]
    Wireguard(ImportWireGuardArgs),
}

/// `warren exit import wireguard`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImportWireGuardArgs {
    /// The server's configuration file for wg-quick.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Directory for the clients' profiles [default: "clients" in the configuration directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Give peers whose names are taken other names, such as laptop-2. Without this option such a file is refused, and the
    /// message lists names that are free.
    #[arg(long)]
    pub(crate) rename: bool,
    /// Give every peer a new key and a profile for Warren, although the exit serves WireGuard.
    #[arg(long)]
    pub(crate) new_keys: bool,
    /// Print which clients would be enrolled, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `warren exit rotate-key`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RotateKeyArgs {
    /// Remove the old key from the key file. Refused while a client has not connected with the new key yet. Clients that know
    /// only the old key are refused from then on.
    #[arg(long)]
    pub(crate) retire: bool,
    /// Retire the old key even if clients have not connected with the new one.
    #[arg(long, requires = "retire")]
    pub(crate) force: bool,
    /// Also end every session, even if the old key is gone already. Implies --force. Clients that know the new key are back
    /// within a second.
    #[arg(long, requires = "retire")]
    pub(crate) end_sessions: bool,
    /// List the clients that have not connected with the new key yet, and change nothing.
    #[arg(long, conflicts_with = "retire")]
    pub(crate) list: bool,
    /// Print the list as JSON.
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
}

/// `warren exit client ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExitClientCommand {
    /// Enrol a client and print a complete profile for it.
    #[command(after_help = "Examples:\n  warren exit client add laptop --output laptop.toml\n  \
                            warren exit client add server --public-key KEY --ipv4 10.66.0.10\n  \
                            warren exit client add phone --wireguard\n  \
                            warren exit client add router --wireguard --public-key KEY")]
    Add(ClientAddArgs),
    /// List the clients, sorted by name.
    #[command(after_help = "Examples:\n  warren exit client list --name office\n  \
                            warren exit client list --limit 100 --after laptop-17")]
    List(ClientListArgs),
    /// Show one client.
    Show(ClientShowArgs),
    /// Remove a client. Its session and its forwards end at once, and its key cannot be enrolled again.
    Remove(ClientNameArgs),
    /// Give a client another name. Its session continues.
    Rename(ClientRenameArgs),
    /// Refuse a client from now on. Its session ends at once, and its addresses stay reserved.
    Disable(ClientNameArgs),
    /// Admit a disabled client again.
    Enable(ClientNameArgs),
    /// Change a client's addresses, prefixes, rate limit or key.
    ///
    /// With new addresses or prefixes, a connected client reconnects at once. A new rate limit or key does not end its
    /// session. The first connection with the new key takes over the client's name and addresses.
    #[command(after_help = "Examples:\n  warren exit client set laptop --ipv4 10.66.0.10 --ipv6 auto\n  \
                            warren exit client set office --prefix 192.168.7.0/24 --prefix fd00:7::/64\n  \
                            warren exit client set phone --rate-limit 20mbit")]
    Set(ClientSetArgs),
    /// Forward ports of the exit's addresses to a client, so that its services can be reached from outside.
    ///
    /// Visitors keep their own addresses. The client must allow the ports in its profile: [forwards] allow = ["tcp/443"]. A
    /// WireGuard client has no profile, and its own firewall decides.
    #[command(subcommand)]
    Forward(ForwardCommand),
    /// Write all clients, invitations and removed keys as TOML, to edit or to keep.
    ///
    /// This also works while the exit runs. "warren exit client import" imports the edited file.
    #[command(after_help = "Examples:\n  warren exit client export clients.toml\n  \
                            warren exit client export > backup.toml")]
    Export(ClientExportArgs),
    /// Replace the exit's clients with those in a file that "export" wrote and you edited.
    ///
    /// Clients that the file does not list are removed for good. Sessions of clients that do not change continue. The file cannot
    /// bring back removed keys or withdrawn invitations. Either the whole file takes effect or nothing changes.
    #[command(after_help = "Examples:\n  warren exit client import clients.toml --dry-run\n  \
                            warren exit client import clients.toml")]
    Import(ClientImportArgs),
}

/// `warren exit client forward ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum ForwardCommand {
    /// Forward ports of the exit to a client, from now on and after restarts.
    ///
    /// The forward follows the client to other addresses. While the client is away, visitors get no answer.
    #[command(after_help = "Examples:\n  warren exit client forward add home tcp/443\n  \
                            warren exit client forward add home tcp/8443 --to 443\n  \
                            warren exit client forward add home udp/6881-6889")]
    Add(ForwardAddArgs),
    /// List the forwards of all clients, or of one, and whether they are in force.
    List(ForwardListArgs),
    /// Remove a forward. Its connections end at once.
    #[command(after_help = "Examples:\n  warren exit client forward remove home tcp/8443")]
    Remove(ForwardRemoveArgs),
}

/// `warren exit client forward add`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ForwardAddArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The exit's ports, such as tcp/8443 or udp/6881-6889.
    #[arg(value_name = "PORTS")]
    pub(crate) ports: PortRange,
    /// The client's port, or the first one of a range [default: the same as the exit's].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) to: Option<u16>,
}

/// `warren exit client forward list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ForwardListArgs {
    /// Only the forwards of this client.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `warren exit client forward remove`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ForwardRemoveArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The exit's ports, as they were added.
    #[arg(value_name = "PORTS")]
    pub(crate) ports: PortRange,
}

/// `warren exit client export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientExportArgs {
    /// A new file, which only its owner can read [default: standard output].
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// `warren exit client import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientImportArgs {
    /// The file with all clients.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `warren exit client add`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientAddArgs {
    /// The client's name: lower-case letters, digits, dots, dashes and underscores.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The client's own public key. Without it a key pair is made, and the profile contains the private key.
    #[arg(long, value_name = "KEY", value_parser = values::any_public_key)]
    pub(crate) public_key: Option<PublicKey>,
    /// Enrol the key although it belonged to a removed client. Anyone with a copy of its private key can connect again.
    #[arg(long, requires = "public_key")]
    pub(crate) allow_removed: bool,
    /// Print a configuration for WireGuard's own programs instead of a profile, and on a terminal a QR code for phones. The
    /// exit must have a section [wireguard].
    #[arg(long)]
    pub(crate) wireguard: bool,
    /// A fixed inner IPv4 address for the client.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ipv4: Option<Ipv4Addr>,
    /// A fixed inner IPv6 address for the client.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ipv6: Option<Ipv6Addr>,
    /// A network behind the client that it may ask the exit to route to it. Can be given several times.
    #[arg(long = "prefix", value_name = "CIDR")]
    pub(crate) prefixes: Vec<IpNet>,
    /// The most that the client may send, and receive, per second, such as 50mbit [default: no limit].
    #[arg(long, value_name = "RATE")]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Write the profile to a new file that only its owner can read, instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `warren exit client list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientListArgs {
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
    /// List the keys of removed clients instead, which cannot be enrolled again.
    #[arg(long)]
    pub(crate) removed: bool,
    /// List only clients whose name contains this.
    #[arg(long, value_name = "PART")]
    pub(crate) name: Option<String>,
    /// List at most this many, and say how to continue [default: all].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// List only clients after this one: the last name of the previous list.
    #[arg(long, value_name = "NAME", conflicts_with = "removed")]
    pub(crate) after: Option<String>,
}

/// `warren exit client show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientShowArgs {
    /// The client's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Print a JSON object.
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
    /// The new name.
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
    /// A fixed inner IPv4 address for the client, or "auto" to let the exit choose.
    #[arg(long, value_name = "ADDRESS|auto", value_parser = values::address_or_auto::<Ipv4Addr>)]
    pub(crate) ipv4: Option<AddressChoice<Ipv4Addr>>,
    /// A fixed inner IPv6 address for the client, or "auto" to let the exit choose.
    #[arg(long, value_name = "ADDRESS|auto", value_parser = values::address_or_auto::<Ipv6Addr>)]
    pub(crate) ipv6: Option<AddressChoice<Ipv6Addr>>,
    /// A network behind the client that it may ask the exit to route to it. Can be given several times; replaces the
    /// earlier networks.
    #[arg(long = "prefix", value_name = "CIDR")]
    pub(crate) prefixes: Vec<IpNet>,
    /// Remove all networks behind the client.
    #[arg(long, conflicts_with = "prefixes")]
    pub(crate) no_prefixes: bool,
    /// The most that the client may send, and receive, per second, such as 50mbit, or "off". Its session continues.
    #[arg(long, value_name = "RATE|off", value_parser = values::rate_or_off)]
    pub(crate) rate_limit: Option<RateChoice>,
    /// A new key for the client, as "warren pubkey" prints it on the client. The old key works until the client
    /// connects with the new one.
    #[arg(long, value_name = "KEY", value_parser = values::public_key)]
    pub(crate) public_key: Option<PublicKey>,
    /// Use the key although it belonged to a removed client. Anyone with a copy of its private key can connect again.
    #[arg(long, requires = "public_key")]
    pub(crate) allow_removed: bool,
}
