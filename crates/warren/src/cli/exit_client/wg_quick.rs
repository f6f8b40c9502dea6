//! The command line of wg-quick(8) for a configuration.

use std::path::Path;

use warren_daemon::directories::shell_word;

/// Returns the command that brings a configuration up. wg-quick uses the file's name as the interface's name. So the command
/// copies the file, if necessary, to a name of at most 15 characters that are safe in a shell.
pub(super) fn command_for(file: &Path) -> String {
    let name = file.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_=+.-".contains(c);
    let allowed: String = name.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
    let shorter: String = allowed.trim_matches(['-', '.']).chars().take(LONGEST_INTERFACE).collect();
    let shorter = match shorter.trim_end_matches(['-', '.']) {
        "" => "wg-exit",
        some => some,
    };
    let taken = format!("{shorter}.conf");
    if Path::new(&taken) == file {
        return format!("wg-quick up ./{taken}");
    }
    // `./` is added, because a path that begins with a dash would be an option.
    let file = shell_word(&Path::new(".").join(file));
    format!("mv {file} ./{taken} && wg-quick up ./{taken}")
}

/// Longest name of a network interface (IFNAMSIZ of linux/if.h, without its final zero).
const LONGEST_INTERFACE: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wg_quick_is_told_a_name_that_it_takes() {
        for (file, command) in [
            ("phone.conf", "wg-quick up ./phone.conf"),
            (
                "annas-windows-computer.conf",
                "mv ./annas-windows-computer.conf ./annas-windows-c.conf && wg-quick up ./annas-windows-c.conf",
            ),
            ("Anna's PC.conf", r"mv './Anna'\''s PC.conf' ./Anna-s-PC.conf && wg-quick up ./Anna-s-PC.conf"),
            ("phone", "mv ./phone ./phone.conf && wg-quick up ./phone.conf"),
            ("-- -.conf", "mv './-- -.conf' ./wg-exit.conf && wg-quick up ./wg-exit.conf"),
        ] {
            assert_eq!(command_for(Path::new(file)), command);
        }
    }
}
