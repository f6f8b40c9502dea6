//! Completions and man pages, generated from the definition of the arguments and the examples in `configs/`.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// The completions of a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "warren", &mut text);
    text
}

/// Writes `man1/warren.1`, a page for each command beside it, and `man5/` with a page for each configuration file.
pub(crate) fn man_pages(directory: &Path) -> anyhow::Result<()> {
    write_man_pages(directory)
        .with_context(|| format!("cannot write man pages into {}; check the directory", directory.display()))
}

fn write_man_pages(directory: &Path) -> io::Result<()> {
    let (commands, files) = (directory.join("man1"), directory.join("man5"));
    fs::create_dir_all(&commands)?;
    clap_mangen::generate_to(Cli::command(), &commands)?;
    fs::create_dir_all(&files)?;
    for page in &CONFIGURATION_PAGES {
        fs::write(files.join(format!("{}.5", page.name)), page.to_roff())?;
    }
    Ok(())
}

/// The page of a configuration file: its example, which has every setting.
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
    fn to_roff(&self) -> String {
        let Self { name, what, path, see_also, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        let example: String = self.example.lines().map(|line| format!("{}\n", escaped(line))).collect();
        format!(
            ".TH {name} 5 \"\" \"warren {version}\"\n.SH NAME\n{name} \\- {what}\n.SH SYNOPSIS\n.I {path}\n\
             .SH DESCRIPTION\nA file in TOML. An unknown key is an error. All settings:\n.PP\n.nf\n{example}.fi\n\
             .SH SEE ALSO\n{see_also}\n"
        )
    }
}

/// A line of text in which roff sees no macro.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_an_example_is_never_a_macro() {
        assert_eq!(escaped(".TH"), "\\&.TH");
        assert_eq!(escaped("'a"), "\\&'a");
        assert_eq!(escaped("a\\n -1"), "a\\en \\-1");
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
