//! Man pages and completions of Warren's programs, generated from the definition of their arguments.
#![forbid(unsafe_code)]

mod command_page;
mod page;

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;
use clap_complete::env::Shells;

use self::command_page::{CommandPage, visible};
pub use self::page::{Manual, Origin, escaped};

impl Manual<'_> {
    /// Writes the page of a program into a directory, and a page for each of its commands. `name` is the page's name, and
    /// `line` is the command that a person types.
    ///
    /// # Errors
    /// If a page cannot be written.
    pub fn write(&self, directory: &Path, program: Command, name: &str, line: &str) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut program = program.disable_help_subcommand(true);
        // This adds the global options to each subcommand, which clap otherwise does only when it parses arguments.
        program.build();
        self.write_below(directory, &CommandPage { command: &program, name, line, parent: None })
    }

    fn write_below(&self, directory: &Path, page: &CommandPage<'_>) -> io::Result<()> {
        fs::write(directory.join(format!("{}.1", page.name)), page.to_roff(self)?)?;
        visible(page.command).try_for_each(|command| {
            let (name, line) = (command.get_name(), command.get_name());
            let (name, line) = (format!("{}-{name}", page.name), format!("{} {line}", page.line));
            self.write_below(
                directory,
                &CommandPage { command, name: &name, line: &line, parent: Some(page.name) },
            )
        })
    }
}

/// A program's completions for a shell: a script that asks the program for words, with `variable` set.
///
/// # Errors
/// If there are no completions for this shell.
pub fn completions(shell: Shell, variable: &str, program: &str) -> anyhow::Result<String> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let completer = shells.completer(&name).with_context(|| {
        let known: Vec<&str> = shells.names().collect();
        format!("there are no completions for {name}; choose one of {}", known.join(", "))
    })?;
    let mut text = Vec::new();
    completer.write_registration(variable, program, program, program, &mut text)?;
    Ok(String::from_utf8(text)?)
}
