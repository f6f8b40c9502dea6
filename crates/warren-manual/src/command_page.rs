//! The man page of a command.

use std::fmt::Write as _;
use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;

use super::page::{Manual, escaped};

/// The page of one command: the command, the page's name, such as `warren-exit-init`, and the name of the parent command's page.
pub(super) struct CommandPage<'a> {
    pub(super) command: &'a Command,
    pub(super) name: &'a str,
    /// The command line, such as `warren exit init`. A command's own name may have dashes too.
    pub(super) line: &'a str,
    pub(super) parent: Option<&'a str>,
}

impl CommandPage<'_> {
    /// Returns the page as roff source with the macros of man(7).
    pub(super) fn to_roff(&self, manual: &Manual<'_>) -> io::Result<Vec<u8>> {
        let Self { command, name, line, .. } = self;
        let (usage, origin) = (synopsis(command, line), manual.origin);
        let command = (*command)
            .clone()
            .override_usage(usage)
            .display_name((*name).to_owned())
            .bin_name((*line).to_owned());
        let man = Man::new(command)
            .title((*name).to_owned())
            .date(origin.date.clone())
            .source(origin.source())
            .manual("Warren");
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if self.command.has_subcommands() {
            man.render_subcommands_section(&mut page)?;
        }
        page.extend(self.examples().into_bytes());
        page.extend(exit_status(manual.exit_status).into_bytes());
        page.extend(self.see_also(manual.related).into_bytes());
        page.extend(format!(".SH VERSION\n{}\n", escaped(&origin.source())).into_bytes());
        Ok(page)
    }

    /// The examples of `--help`, one per line.
    fn examples(&self) -> String {
        let help = self.command.get_after_help().map(ToString::to_string).unwrap_or_default();
        // The text after the examples in `warren --help` lists the exit codes. It is left out, because exit codes have their own
        // section on a page.
        let examples = help.split("\n\n").next().unwrap_or_default();
        let lines = examples.lines().filter(|line| line.starts_with(' '));
        let lines: String = lines.map(|line| format!("{}\n", escaped(line.trim()))).collect();
        if lines.is_empty() { lines } else { format!(".SH EXAMPLES\n.nf\n{lines}.fi\n") }
    }

    fn see_also(&self, related: &[(&str, &[&str])]) -> String {
        let parent = self.parent.map(|parent| format!("{parent}(1)"));
        let related = related.iter().find(|(name, _)| *name == self.name).map(|(_, pages)| *pages);
        let below = visible(self.command).map(|below| format!("{}-{}(1)", self.name, below.get_name()));
        let related = related.unwrap_or_default().iter().map(|page| (*page).to_owned());
        let mut pages: Vec<String> = parent.into_iter().chain(below).chain(related).collect();
        pages.dedup();
        let pages: Vec<String> = pages.iter().map(|page| format!("\\fB{}", reference(page))).collect();
        format!(".SH SEE ALSO\n{}\n", pages.join(",\n"))
    }
}

/// `name(1)` with the name in bold.
fn reference(page: &str) -> String {
    let (name, section) = page.split_once('(').unwrap_or((page, "1)"));
    format!("{}\\fR({section}", escaped(name))
}

/// The commands below this one that have pages.
pub(super) fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
}

fn exit_status(codes: &[(&str, &str)]) -> String {
    let mut text = ".SH \"EXIT STATUS\"\n".to_owned();
    for (code, meaning) in codes {
        // Writing to a string cannot fail.
        let _ = write!(text, ".TP\n.B {code}\n{}\n", escaped(meaning));
    }
    text
}

/// Returns the synopsis: options with their values, then arguments. Options that every command has are left out.
fn synopsis(command: &Command, line: &str) -> String {
    let options = command.get_arguments().filter(|argument| is_own_option(argument)).map(option);
    let positionals = command.get_positionals().filter(|argument| !argument.is_hide_set()).map(positional);
    let below = command.has_subcommands().then(|| "COMMAND".to_owned());
    let parts = [line.to_owned()].into_iter().chain(options).chain(positionals).chain(below);
    parts.collect::<Vec<_>>().join(" ")
}

fn is_own_option(argument: &Arg) -> bool {
    let is_everywhere = argument.is_global_set() || ["help", "version"].contains(&argument.get_id().as_str());
    !argument.is_positional() && !argument.is_hide_set() && !is_everywhere
}

fn option(argument: &Arg) -> String {
    let name = argument.get_long().map(|long| format!("--{long}")).unwrap_or_default();
    let takes = argument.get_num_args().map(|range| (range.takes_values(), range.min_values() == 0));
    let text = match takes {
        Some((true, true)) => format!("{name} [{}]", value(argument)),
        Some((true, false)) => format!("{name} {}", value(argument)),
        Some((false, _)) | None => name,
    };
    let dots = if matches!(argument.get_action(), clap::ArgAction::Append) { "..." } else { "" };
    if argument.is_required_set() { format!("{text}{dots}") } else { format!("[{text}]{dots}") }
}

fn positional(argument: &Arg) -> String {
    let text = value(argument);
    if argument.is_required_set() { text } else { format!("[{text}]") }
}

fn value(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    if names.is_empty() { argument.get_id().as_str().to_uppercase() } else { names.join(" ") }
}
