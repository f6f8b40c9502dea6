//! Completions and man pages, generated from the definition of the arguments and the examples in `configs/`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use warren_manual::{Manual, Origin, escaped};

use super::Cli;

/// The variable with which a shell's completions ask this program for words.
pub(crate) const COMPLETION_VARIABLE: &str = "WARREN_COMPLETE";

/// Returns the completion script for a shell, which asks this program for words.
///
/// # Errors
/// If there are no completions for this shell.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<String> {
    warren_manual::completions(shell, COMPLETION_VARIABLE, "warren")
}

/// Writes `man1/warren.1`, a page for each command beside it, and `man5/` with a page for each configuration file.
pub(crate) fn man_pages(directory: &Path) -> anyhow::Result<()> {
    write_man_pages(directory)
        .with_context(|| format!("cannot write man pages into {}; check the directory", directory.display()))
}

fn write_man_pages(directory: &Path) -> io::Result<()> {
    let (commands, files) = (directory.join("man1"), directory.join("man5"));
    let origin = Origin::of(std::env::var("SOURCE_DATE_EPOCH").ok().as_deref(), SystemTime::now());
    let manual = Manual { exit_status: &EXIT_STATUS, related: RELATED, origin: &origin };
    manual.write(&commands, Cli::command(), "warren", "warren")?;
    fs::create_dir_all(&files)?;
    for page in &CONFIGURATION_PAGES {
        fs::write(files.join(format!("{}.5", page.name)), page.to_roff(&origin))?;
    }
    Ok(())
}

/// The exit codes and their meaning, as in `warren --help`.
const EXIT_STATUS: [(&str, &str); 7] = [
    ("0", "Done."),
    ("1", "Failed. A sentence on standard error says what, where and what to do."),
    ("2", "The command line is wrong, or the command needs a name."),
    ("3", "No daemon is running."),
    ("4", "The exit has refused this client."),
    ("5", "The command took too long."),
    ("126, 127", "`warren exec` cannot start the program (126), or does not find it (127)."),
];

/// Related pages, where neither is a subcommand of the other.
const RELATED: &[(&str, &[&str])] = &[
    ("warren", &["warren.toml(5)", "warren-exit.toml(5)"]),
    ("warren-up", &["warren-down(1)", "warren-status(1)", "warren-doctor(1)", "warren.toml(5)"]),
    ("warren-down", &["warren-up(1)", "warren-cleanup(1)"]),
    ("warren-join", &["warren-exit-invite(1)", "warren-up(1)", "warren.toml(5)"]),
    (
        "warren-import-wireguard",
        &["warren-join(1)", "warren-exit-invite(1)", "warren-exit-import-wireguard(1)", "warren.toml(5)"],
    ),
    ("warren-status", &["warren-set(1)", "warren-doctor(1)"]),
    ("warren-set", &["warren-status(1)", "warren-reload(1)", "warren.toml(5)", "warren-exit.toml(5)"]),
    ("warren-reload", &["warren-set(1)", "warren.toml(5)", "warren-exit.toml(5)"]),
    ("warren-list", &["warren-status(1)", "warren-exits(1)"]),
    ("warren-logs", &["warren-status(1)"]),
    ("warren-exits", &["warren-status(1)", "warren-list(1)", "warren.toml(5)"]),
    ("warren-portal", &["warren-up(1)", "warren-exec(1)", "warren-network(1)", "warren.toml(5)"]),
    ("warren-network", &["warren-portal(1)", "warren.toml(5)"]),
    ("warren-doctor", &["warren-status(1)"]),
    ("warren-cleanup", &["warren-down(1)"]),
    ("warren-keygen", &["warren-pubkey(1)"]),
    ("warren-pubkey", &["warren-keygen(1)"]),
    ("warren-client-run", &["warren-up(1)", "warren.toml(5)"]),
    ("warren-client-close", &["warren-up(1)", "warren-down(1)"]),
    ("warren-exit", &["warren-exit.toml(5)"]),
    ("warren-exit-init", &["warren-exit-run(1)", "warren-exit.toml(5)"]),
    ("warren-exit-run", &["warren-status(1)", "warren-reload(1)", "warren-exit.toml(5)"]),
    ("warren-exit-invite", &["warren-join(1)", "warren-exit-client-add(1)"]),
    ("warren-exit-drain", &["warren-status(1)"]),
    ("warren-exit-client-add", &["warren-exit-invite(1)", "warren-exit-client-set(1)"]),
    ("warren-exit-client-set", &["warren-exit-client-show(1)"]),
    ("warren-exit-client-forward-add", &["warren-exit-client-show(1)", "warren.toml(5)"]),
    ("warren-exit-client-export", &["warren-exit-client-import(1)"]),
    ("warren-exit-client-import", &["warren-exit-client-export(1)"]),
];

/// The page of a configuration file. It shows the example, which has every setting.
struct ConfigurationPage {
    name: &'static str,
    what: &'static str,
    path: &'static str,
    example: &'static str,
    see_also: &'static str,
}

const CONFIGURATION_PAGES: [ConfigurationPage; 2] = [
    ConfigurationPage {
        name: "warren.toml",
        what: "a client's profile of one exit",
        path: "/etc/warren/NAME.toml",
        example: include_str!("../../../../../configs/home.toml"),
        see_also: "warren(1), warren-join(1), warren-up(1)",
    },
    ConfigurationPage {
        name: "warren-exit.toml",
        what: "an exit's configuration",
        path: "/etc/warren/exit.toml",
        example: include_str!("../../../../../configs/exit.toml"),
        see_also: "warren(1), warren-exit-init(1), warren-exit-run(1)",
    },
];

impl ConfigurationPage {
    /// The page in man(7)'s macros.
    fn to_roff(&self, origin: &Origin) -> String {
        let Self { name, what, path, see_also, .. } = self;
        let (date, source) = (&origin.date, origin.source());
        let example: String = self.example.lines().map(|line| format!("{}\n", escaped(line))).collect();
        format!(
            ".TH {name} 5 {date} \"{source}\" Warren\n.SH NAME\n{name} \\- {what}\n.SH SYNOPSIS\n.I {path}\n\
             .SH DESCRIPTION\nA file in TOML. An unknown key is an error. All settings:\n.PP\n.nf\n{example}.fi\n\
             .SH SEE ALSO\n{see_also}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_values_exit_status_related_pages_that_exist_version_and_date() {
        let directory = tempfile::tempdir().unwrap();
        man_pages(directory.path()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap().replace("\\-", "-");

        let up = page("man1/warren-up.1");

        let synopsis =
            "warren up\\fR [--exit NAME] [--timeout TIME] [--kill-switch] [--dry-run] [PROFILE|FILE]";
        assert!(up.contains(synopsis), "{up}");
        for part in [".SH \"EXIT STATUS\"", ".SH EXAMPLES\n.nf\nwarren up\nwarren up home\n", "warren 0.1.0"]
        {
            assert!(up.contains(part), "{part} is missing:\n{up}");
        }
        assert!(up.lines().any(|line| line.starts_with(".TH warren-up 1 20")), "{up}");
        let rotate_key = page("man1/warren-exit-rotate-key.1");
        assert!(rotate_key.contains("warren exit rotate-key\\fR [--retire]"), "{rotate_key}");
        let client_set = page("man1/warren-exit-client-set.1");
        assert!(
            client_set.contains("[--ipv4 ADDRESS|auto]") && client_set.contains("[--prefix CIDR]... "),
            "{client_set}"
        );

        let mut pages = 0;
        for entry in fs::read_dir(directory.path().join("man1")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let text = page(&format!("man1/{name}"));
            let (_, see_also) = text.split_once(".SH SEE ALSO\n").expect(&name);
            let (see_also, _) = see_also.split_once("\n.SH").unwrap();
            for line in see_also.lines() {
                let line = line.trim_end_matches(',').replace("\\fB", "").replace("\\fR", "");
                let (other, section) = line.trim_end_matches(')').split_once('(').expect(&line);
                let file = directory.path().join(format!("man{section}/{other}.{section}"));
                assert!(file.is_file() && name != format!("{other}.{section}"), "{name}: {line}");
            }
            pages += 1;
        }
        assert!(pages > 25, "{pages}");
    }

    #[test]
    fn every_command_and_both_files_have_a_page() {
        let directory = tempfile::tempdir().unwrap();
        man_pages(directory.path()).unwrap();
        for page in [
            "man1/warren.1",
            "man1/warren-exit-client-add.1",
            "man5/warren.toml.5",
            "man5/warren-exit.toml.5",
        ] {
            assert!(directory.path().join(page).is_file(), "{page}");
        }
        let profile = fs::read_to_string(directory.path().join("man5/warren.toml.5")).unwrap();
        assert!(profile.contains("\n[kill_switch]\n"), "{profile}");
    }
}
