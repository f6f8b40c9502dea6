//! The methods to set a host's resolvers, and how to find out which of them a host uses.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{DnsError, command, nameservers};
use crate::DeviceName;

/// One way to set a host's resolvers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    /// Sets the resolvers of the tunnel's link in systemd-resolved, and routes all names to them.
    Resolved { device: DeviceName },
    /// Adds an entry to resolvconf(8).
    Resolvconf { entry: String, flavour: Resolvconf },
    /// Writes the file that programs read.
    File { path: PathBuf },
}

/// The two programs called resolvconf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Resolvconf {
    /// openresolv, which can leave out every other entry's servers.
    Openresolv,
    /// Debian's, which orders entries by their names; those of tunnels come first.
    Debian,
}

/// The methods that this host needs. It may need several: programs may ask systemd-resolved directly or read the file.
pub(super) async fn of_host(path: &Path, device: &DeviceName) -> Vec<Method> {
    let mut methods = Vec::new();
    if resolved_runs() {
        methods.push(Method::Resolved { device: device.clone() });
        if leads_to_stub(path) {
            return methods;
        }
    }
    match resolvconf(path).await {
        Some(flavour) => methods.push(Method::Resolvconf { entry: format!("tun.{device}"), flavour }),
        None => methods.push(Method::File { path: path.to_owned() }),
    }
    methods
}

/// The socket outlives systemd-resolved, so this asks it for an answer.
pub(super) fn resolved_runs() -> bool {
    UnixStream::connect(RESOLVED_SOCKET).is_ok()
}

/// Whether programs that read the file ask systemd-resolved.
fn leads_to_stub(path: &Path) -> bool {
    let servers = fs::read_to_string(path).map(|text| nameservers(&text)).unwrap_or_default();
    !servers.is_empty() && servers.iter().all(|server| STUBS.contains(&server.to_string().as_str()))
}

/// The resolvconf that writes the file, if one does.
async fn resolvconf(path: &Path) -> Option<Resolvconf> {
    let leads_there = fs::canonicalize(path).is_ok_and(|path| path.starts_with("/run/resolvconf"));
    let says_so = fs::read_to_string(path).is_ok_and(|text| {
        text.lines().take(3).any(|line| line.starts_with('#') && line.contains("enerated by resolvconf"))
    });
    if !(leads_there || says_so) || !command::is_there(RESOLVCONF) {
        return None;
    }
    // Debian's own resolvconf has no such option.
    match command::run(RESOLVCONF, &["--version"], "").await {
        Ok(_) => Some(Resolvconf::Openresolv),
        Err(DnsError::Command { .. }) => Some(Resolvconf::Debian),
        Err(_) => None,
    }
}

pub(super) const RESOLVCONF: &str = "resolvconf";
pub(super) const RESOLVECTL: &str = "resolvectl";
/// The socket of systemd-resolved, which answers while it runs.
const RESOLVED_SOCKET: &str = "/run/systemd/resolve/io.systemd.Resolve";
/// systemd-resolved's own addresses, systemd-resolved.service(8).
const STUBS: [&str; 2] = ["127.0.0.53", "127.0.0.54"];
/// Further settings of the tunnel's link: all names go to its resolvers, and multicast protocols are off there.
pub(super) const LINK_PROPERTIES: [(&str, &str); 4] =
    [("domain", "~."), ("default-route", "yes"), ("llmnr", "no"), ("mdns", "no")];
