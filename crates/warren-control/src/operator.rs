//! Finds out who runs a command: the user of the process, and the user who logged in before becoming root.

use std::collections::HashMap;

/// The longest name that is passed on, in characters.
const LONGEST: usize = 64;

/// The users of this host, by number, as `/etc/passwd` lists them.
#[derive(Debug, Default)]
pub struct Users(HashMap<u32, String>);

impl Users {
    /// Reads `/etc/passwd`. Without the file, users have only numbers.
    pub fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = login_name(fields.next()?)?;
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        // If a number has several names, the first name counts, as for getpwuid(3).
        let mut users = HashMap::new();
        for (number, name) in text.lines().filter_map(user) {
            users.entry(number).or_insert(name);
        }
        Self(users)
    }

    /// A user's name, or the number if `/etc/passwd` has no name for it.
    pub fn name(&self, number: u32) -> String {
        self.0.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }
}

/// The user who logged in, if that differs from this process's user, for example after `sudo` or `su`. Root can fake this name.
/// So it helps to distinguish operators, but proves nothing.
pub fn login() -> Option<String> {
    let own = rustix::process::getuid().as_raw();
    let of_kernel =
        std::fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| text.trim().parse().ok());
    // The largest number means that the process does not belong to a login session, for instance because it is a service.
    let logged_in = of_kernel.filter(|number: &u32| *number != u32::MAX && *number != own);
    let users = Users::read();
    let name = match logged_in {
        Some(number) => Some(users.name(number)),
        None => ["SUDO_USER", "DOAS_USER"].iter().find_map(|variable| std::env::var(variable).ok()),
    };
    name.and_then(|name| login_name(&name)).filter(|name| Some(name) != users.0.get(&own))
}

/// Returns the name without characters that could break a log line. `None` if no character is left.
pub(crate) fn login_name(text: &str) -> Option<String> {
    let name: String = text.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_first_name_of_their_number() {
        let users = Users::parse("root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:\nann:x:1000:\n# note\nbad\n");
        assert_eq!((users.name(0).as_str(), users.name(1000).as_str()), ("root", "ann"));
        assert_eq!(users.name(7), "7");
    }

    #[test]
    fn a_name_can_break_no_line() {
        assert_eq!(login_name("ann\nroot").as_deref(), Some("annroot"));
        assert_eq!(login_name("\u{1b}"), None);
        assert_eq!(login_name(&"x".repeat(100)).map(|name| name.len()), Some(LONGEST));
    }
}
