//! Looks up only the names below some domains at the tunnel's resolvers.
//!
//! systemd-resolved can do this itself. On other hosts, programs ask a stub resolver of the client daemon. The stub asks either
//! the tunnel's resolvers or those that the host would ask without the tunnel.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::nameservers::to_ask;

/// The domains for which the tunnel's resolvers are asked, and the stub resolver that does this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitDns {
    /// Domains without a final dot. They include all names below them.
    pub domains: Vec<String>,
    /// The address at which the daemon's stub resolver answers, on port 53.
    pub stub: IpAddr,
}

/// The resolvers in all entries of resolvconf(8) except `own`, in the order of the entries' names. Both resolvconf programs store
/// each entry as a file.
pub(super) fn entries_beside(own: &str) -> Vec<SocketAddr> {
    let mut files = Vec::new();
    for directory in ["interface", "interfaces", "keys"] {
        let entries = fs::read_dir(Path::new("/run/resolvconf").join(directory));
        files.extend(entries.into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    files.retain(|file| file.file_name().is_some_and(|name| name != own));
    files.sort_unstable();
    let text = |file| fs::read_to_string(file).unwrap_or_default();
    let mut found: Vec<SocketAddr> = Vec::new();
    for server in files.iter().flat_map(|file| to_ask(&text(file))) {
        if !found.contains(&server) {
            found.push(server);
        }
    }
    found
}
