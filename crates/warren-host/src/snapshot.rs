//! The state of a host's network as sorted text, for tests that compare it before and after.

use std::{
    io,
    process::{Command, Stdio},
};

/// Reads the addresses, routes of all tables, rules, nftables and network sysctls of this thread's network namespace,
/// or of the named one. Values that change by themselves (counters, lifetimes, link state) are left out.
///
/// # Errors
/// If ip(8) or nft(8) cannot be run or fail.
pub fn take(namespace: Option<&str>) -> io::Result<String> {
    let mut snapshot = String::new();
    for (title, command) in COMMANDS {
        let output = run(namespace, command)?;
        let mut lines: Vec<String> = output.lines().map(steady).filter(|line| !line.is_empty()).collect();
        // Firewall rules are not sorted, because their order matters.
        if *title != "nftables" {
            lines.sort_unstable();
        }
        snapshot.push_str(&format!("== {title}\n"));
        for line in lines {
            snapshot.push_str(&line);
            snapshot.push('\n');
        }
    }
    Ok(snapshot)
}

/// The lines that only one of two snapshots has, marked `-` and `+`; empty if the snapshots are equal.
pub fn difference(before: &str, after: &str) -> String {
    let only_in = |one: &str, other: &str, mark: char| -> String {
        let mut rest: Vec<&str> = other.lines().collect();
        let mut only = String::new();
        for line in one.lines() {
            match rest.iter().position(|other| *other == line) {
                Some(position) => drop(rest.swap_remove(position)),
                None => only.push_str(&format!("{mark} {line}\n")),
            }
        }
        only
    };
    only_in(before, after, '-') + &only_in(after, before, '+')
}

/// Removes the values that change by themselves from a line.
fn steady(line: &str) -> String {
    const PASSING: [&str; 4] = ["tentative", "linkdown", "dadfailed", "NO-CARRIER"];
    const PASSING_WITH_VALUE: [&str; 6] = ["expires", "valid_lft", "preferred_lft", "qlen", "qdisc", "state"];
    let mut words = Vec::new();
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        if PASSING_WITH_VALUE.contains(&word) {
            all.next();
        } else if !PASSING.contains(&word) {
            words.push(word);
        }
    }
    words.join(" ")
}

fn run(namespace: Option<&str>, command: &[&str]) -> io::Result<String> {
    let inside = namespace.map(|name| vec!["ip", "netns", "exec", name]).unwrap_or_default();
    let words: Vec<&str> = inside.into_iter().chain(command.iter().copied()).collect();
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    // grep ends with status 2 if some settings cannot be read, which is normal on every machine.
    let is_settings = command.first() == Some(&"grep");
    if !output.status.success() && !is_settings {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("{}: {reason}", words.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const COMMANDS: &[(&str, &[&str])] = &[
    ("links", &["ip", "-o", "link", "show"]),
    ("addresses", &["ip", "-o", "-d", "address", "show"]),
    ("routes", &["ip", "-d", "-N", "-4", "route", "show", "table", "all"]),
    ("routes for IPv6", &["ip", "-d", "-N", "-6", "route", "show", "table", "all"]),
    ("rules", &["ip", "-d", "-N", "-4", "rule", "show"]),
    ("rules for IPv6", &["ip", "-d", "-N", "-6", "rule", "show"]),
    ("nftables", &["nft", "-s", "list", "ruleset"]),
    (
        "sysctls",
        &[
            "grep",
            "-rs",
            "",
            "/proc/sys/net/ipv4/conf",
            "/proc/sys/net/ipv6/conf",
            "/proc/sys/net/ipv4/ip_forward",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_by_itself_is_left_out() {
        assert_eq!(
            steady("2: eth0 inet6 fe80::1/64 scope link tentative valid_lft forever preferred_lft 10sec"),
            "2: eth0 inet6 fe80::1/64 scope link"
        );
    }

    #[test]
    fn difference_shows_lines_of_either_side_only() {
        assert_eq!(difference("a\nb\nb\n", "b\nc\n"), "- a\n- b\n+ c\n");
        assert_eq!(difference("a\n", "a\n"), "");
    }
}
