//! Keeps a program from looking names up through a service of the host.
//!
//! The C library may ask systemd-resolved or nscd over a Unix socket. Such a service would send its queries on the host's side of
//! the tunnel, and no firewall can tell for which program a query is. So these sockets are hidden from the program, which then
//! sends DNS queries itself.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use warren_host::dns::{nameserver_lines, nameservers};
use warren_host::exec_groups::Side;

/// Pairs of files. In a mount namespace of the program's own, the first file of each pair is mounted over the second.
#[derive(Debug, Default)]
pub(in crate::cli) struct Shadowed(Vec<[PathBuf; 2]>);

impl Shadowed {
    /// Hides files from a program that root runs. `servers` are the resolvers of the program's side, and `directory` is
    /// the daemon's directory.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(in crate::cli) fn for_root(side: Side, servers: &[IpAddr], directory: &Path) -> anyhow::Result<Self> {
        let mut shadowed: Vec<[PathBuf; 2]> =
            services().into_iter().map(|socket| [NOTHING.into(), socket]).collect();
        let resolv_conf = std::fs::canonicalize(RESOLV_CONF);
        // Outside, `resolv.conf` must be replaced if it refers to a stub on 127.0.0.1, because the kernel lets no packet with
        // this source leave the host. Inside, queries to the stub are redirected.
        if let (Side::Outside, Ok(resolv_conf)) = (side, resolv_conf)
            && asks_this_host()
        {
            let file = directory.join("outside-resolv.conf");
            std::fs::write(&file, nameserver_lines(servers))
                .with_context(|| format!("cannot write {}", file.display()))?;
            // The file is made readable for all, because the program may run as another user.
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
            shadowed.push([file, resolv_conf]);
        }
        Ok(Self(shadowed))
    }

    /// Refuses a user other than root if the program would look up names on the host's side, because only root may mount files.
    ///
    /// # Errors
    /// If there is such a service or resolver. The message names it, and says what to do.
    pub(in crate::cli) fn for_user(side: Side) -> anyhow::Result<Self> {
        if let Some(socket) = services().first() {
            bail!(
                "programs look up names through {}, whose queries leave on the host's side, and only root can hide it from a \
                 program; run this with sudo, or remove `resolve` from /etc/nsswitch.conf, or stop nscd",
                socket.display()
            );
        }
        if side == Side::Outside && asks_this_host() {
            bail!(
                "{RESOLV_CONF} names a resolver on this host, whose queries go through the tunnel; run this with sudo"
            );
        }
        Ok(Self::default())
    }

    /// Returns the command line that runs a program with these mounts.
    pub(in crate::cli) fn around(&self, program: &[OsString]) -> Vec<OsString> {
        if self.0.is_empty() {
            return program.to_vec();
        }
        let wrapper = ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", MOUNT, "sh"];
        let files = self.0.iter().flatten().map(|file| file.clone().into_os_string());
        wrapper
            .map(OsString::from)
            .into_iter()
            .chain(files)
            .chain(["--".into()])
            .chain(program.to_vec())
            .collect()
    }
}

/// The sockets of services that the C library would ask.
fn services() -> Vec<PathBuf> {
    let nsswitch = std::fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let resolved = if asks_resolved(&nsswitch) { RESOLVED } else { &[] };
    let sockets = resolved.iter().chain(NSCD).map(PathBuf::from);
    sockets.filter(|socket| socket.exists()).collect()
}

/// Whether nsswitch.conf(5) has the C library ask systemd-resolved for hosts.
fn asks_resolved(nsswitch: &str) -> bool {
    let hosts = nsswitch.lines().find_map(|line| line.trim_start().strip_prefix("hosts:"));
    hosts.is_some_and(|hosts| hosts.split_whitespace().any(|word| word == "resolve"))
}

/// Whether every resolver of resolv.conf(5) is on this host.
fn asks_this_host() -> bool {
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    nameservers(&text).iter().all(IpAddr::is_loopback)
}

/// Mounts the first file of each pair over the second, then becomes the program.
const MOUNT: &str =
    r#"while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done; shift; exec "$@""#;
const NOTHING: &str = "/dev/null";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const RESOLVED: &[&str] = &["/run/systemd/resolve/io.systemd.Resolve"];
const NSCD: &[&str] = &["/run/nscd/socket"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_asked_only_where_nsswitch_says_so() {
        assert!(asks_resolved("passwd: files\nhosts: files resolve [!UNAVAIL=return] dns\n"));
        assert!(!asks_resolved("hosts: files dns\n"));
        assert!(!asks_resolved("passwd: resolve\n"));
    }

    #[test]
    fn program_gets_its_words_as_they_were_typed() {
        let program = [OsString::from("curl"), OsString::from("--"), OsString::from("a b")];
        assert_eq!(Shadowed::default().around(&program), program);
        let words = Shadowed(vec![[NOTHING.into(), "/run/x".into()]]).around(&program);
        assert_eq!(
            words[words.len() - 6..],
            ["/dev/null", "/run/x", "--", "curl", "--", "a b"].map(OsString::from)
        );
    }
}
