//! The user as whom root runs a program: `setpriv` changes to the user. `sudo` and `su` may open a login session, and systemd then
//! moves the program to another cgroup, outside of the tunnel or the portal.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use warren_config::quoted;

/// A user of this host.
pub(super) struct Account {
    pub(super) number: u32,
    group: u32,
    name: String,
    home: PathBuf,
}

impl Account {
    /// Returns the user in the environment variables of sudo(8). Without them, returns root.
    ///
    /// # Errors
    /// When /etc/passwd does not list the user.
    pub(super) fn of_sudo() -> anyhow::Result<Self> {
        let Ok(number) = std::env::var("SUDO_UID") else {
            return Ok(Self { number: 0, group: 0, name: "root".to_owned(), home: "/root".into() });
        };
        match Self::listed(&number, &[NUMBER], &accounts()?) {
            Some(caller) => Ok(caller),
            None => {
                bail!("/etc/passwd does not list user {number}, who called sudo; run this as another user")
            }
        }
    }

    /// Returns the user with this name or number.
    ///
    /// # Errors
    /// When /etc/passwd does not list the user.
    pub(super) fn of_user(user: &str) -> anyhow::Result<Self> {
        let found = Self::listed(user, &[NAME, NUMBER], &accounts()?);
        found.with_context(|| format!("/etc/passwd does not list the user {}; name another", quoted(user)))
    }

    /// Finds a user by the fields in `places`, in this order. A name may consist of digits.
    fn listed(user: &str, places: &[usize], accounts: &str) -> Option<Self> {
        let lines: Vec<Vec<&str>> = accounts.lines().map(|line| line.split(':').collect()).collect();
        let has = |place: &usize| lines.iter().find(|fields| fields.get(*place) == Some(&user));
        let fields = places.iter().find_map(has)?;
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

    /// Returns the command line prefix that runs a command as this user, without root's privileges. With `for_good`, setuid
    /// programs such as `sudo` cannot regain them either.
    pub(super) fn words(&self, for_good: bool) -> Vec<OsString> {
        if self.is_root() {
            return Vec::new();
        }
        let (user, group) = (format!("--reuid={}", self.number), format!("--regid={}", self.group));
        let mut words = vec!["setpriv", &user, &group, "--init-groups", "--inh-caps=-all"];
        words.extend(for_good.then_some("--no-new-privs"));
        words.push("--");
        words.into_iter().map(OsString::from).collect()
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

    /// All variables of a program of this user, if root starts it with the variables `own`. Root's others may be secrets, or may
    /// name root's sockets.
    pub(super) fn variables(
        &self,
        own: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let is_kept = |name: &OsString| {
            KEPT.iter().any(|kept| name == kept) || name.as_encoded_bytes().starts_with(b"LC_")
        };
        let kept = own.filter(|(name, _)| self.is_root() || is_kept(name));
        kept.chain(self.environment().into_iter().map(|(name, value)| (name.into(), value))).collect()
    }
}

/// The places of fields in a line of passwd(5).
const NAME: usize = 0;
const NUMBER: usize = 2;

/// The variables for the search path, the terminal, the language, the time zone and the display.
const KEPT: [&str; 9] =
    ["PATH", "TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY"];

fn accounts() -> anyhow::Result<String> {
    std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")
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
    fn user_is_found_by_name_or_number_and_loses_roots_powers() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1001::/home/alice:/bin/sh\n";
        for user in ["1000", "alice"] {
            let alice = Account::listed(user, &[NAME, NUMBER], accounts).unwrap();
            assert_eq!((alice.number, alice.group, alice.name.as_str()), (1000, 1001, "alice"));
            assert_eq!(alice.home, Path::new("/home/alice"));
            let words = alice.words(true);
            assert!(words.contains(&"--reuid=1000".into()) && words.contains(&"--no-new-privs".into()));
            assert!(!alice.words(false).contains(&"--no-new-privs".into()));
        }
        assert!(Account::listed("1001", &[NAME, NUMBER], accounts).is_none());
        assert!(Account::listed("0", &[NUMBER], accounts).unwrap().words(true).is_empty());
    }

    #[test]
    fn caller_of_sudo_is_found_by_number_even_if_another_user_is_named_so() {
        let accounts = "1000:x:0:0::/root:/bin/sh\nalice:x:1000:1001::/home/alice:/bin/sh\n";
        let number = |places: &[usize]| Account::listed("1000", places, accounts).unwrap().number;
        assert_eq!((number(&[NUMBER]), number(&[NAME, NUMBER])), (1000, 0));
    }

    #[test]
    fn program_of_another_user_gets_few_of_roots_variables() {
        let account = |number, name: &str, home: &str| Account {
            number,
            group: number,
            name: name.to_owned(),
            home: home.into(),
        };
        let own = || {
            let own = ["PATH=/bin", "LC_ALL=C", "HOME=/root", "TOKEN=x", "SSH_AUTH_SOCK=/x", "LANGUAGES=x"];
            own.into_iter()
                .map(|one| one.split_once('=').unwrap())
                .map(|(name, value)| (name.into(), value.into()))
        };
        // No user has this number, so there is no /run/user for it.
        let variables = account(4_294_967_000, "alice", "/home/alice").variables(own());
        let expected = ["PATH=/bin", "LC_ALL=C", "HOME=/home/alice", "USER=alice", "LOGNAME=alice"];
        let found: Vec<String> =
            variables.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        assert_eq!(found, expected);
        assert_eq!(account(0, "root", "/root").variables(own()).len(), 6);
    }
}
