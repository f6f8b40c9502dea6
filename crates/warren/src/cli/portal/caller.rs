//! The user for whom root opens a login page.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The user who has called sudo(8), or root itself.
pub(super) struct Caller {
    pub(super) number: u32,
    group: u32,
    name: String,
    home: PathBuf,
}

impl Caller {
    /// Returns the user in the environment variables of sudo(8). Without them, returns root.
    ///
    /// # Errors
    /// When /etc/passwd does not list the user.
    pub(super) fn of_sudo() -> anyhow::Result<Self> {
        let Ok(number) = std::env::var("SUDO_UID") else {
            return Ok(Self { number: 0, group: 0, name: "root".to_owned(), home: "/root".into() });
        };
        let accounts = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        match Self::listed(&number, &accounts) {
            Some(caller) => Ok(caller),
            None => {
                bail!("/etc/passwd does not list user {number}, who called sudo; run this as another user")
            }
        }
    }

    fn listed(number: &str, accounts: &str) -> Option<Self> {
        let fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields = fields.into_iter().find(|fields| fields.get(2) == Some(&number))?;
        let [name, _, number, group, _, home, ..] = fields.as_slice() else { return None };
        Some(Self {
            number: number.parse().ok()?,
            group: group.parse().ok()?,
            name: (*name).to_owned(),
            home: home.into(),
        })
    }

    pub(super) fn is_root(&self) -> bool {
        self.number == 0
    }

    /// Returns the command line prefix that runs a command as this user, without root's privileges.
    pub(super) fn words(&self) -> Vec<OsString> {
        if self.is_root() {
            return Vec::new();
        }
        let (user, group) = (format!("--reuid={}", self.number), format!("--regid={}", self.group));
        let words = ["setpriv", &user, &group, "--init-groups", "--inh-caps=-all", "--no-new-privs", "--"];
        words.map(OsString::from).to_vec()
    }

    /// The environment variables that the user's programs need and sudo(8) removes.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        if self.is_root() {
            return Vec::new();
        }
        let mut variables = vec![
            ("HOME", self.home.clone().into_os_string()),
            ("USER", self.name.clone().into()),
            ("LOGNAME", self.name.clone().into()),
        ];
        let runtime = PathBuf::from(format!("/run/user/{}", self.number));
        if runtime.is_dir() {
            let wayland = wayland(&runtime);
            variables.push(("XDG_RUNTIME_DIR", runtime.into_os_string()));
            variables.extend(wayland.map(|socket| ("WAYLAND_DISPLAY", socket)));
        }
        variables
    }
}

/// Finds the display of a Wayland session, unless an environment variable contains one.
fn wayland(runtime: &Path) -> Option<OsString> {
    if std::env::var_os("WAYLAND_DISPLAY").is_some() {
        return None;
    }
    ["wayland-0", "wayland-1"].into_iter().find(|name| runtime.join(name).exists()).map(OsString::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_of_sudo_is_found_by_number_and_loses_roots_powers() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1001::/home/alice:/bin/sh\n";
        let alice = Caller::listed("1000", accounts).unwrap();
        assert_eq!((alice.number, alice.group, alice.name.as_str()), (1000, 1001, "alice"));
        assert_eq!(alice.home, Path::new("/home/alice"));
        let words = alice.words();
        assert!(words.contains(&"--reuid=1000".into()) && words.contains(&"--no-new-privs".into()));
        assert!(Caller::listed("1001", accounts).is_none());
        assert!(Caller::listed("0", accounts).unwrap().words().is_empty());
    }
}
