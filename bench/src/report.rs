//! Output code that all benchmarks share: tables, files, and the description of the machine.

mod commit;
mod machine;
mod table;

use std::{
    io::{ErrorKind, Write as _},
    path::Path,
};

use anyhow::Context as _;

pub(crate) use self::{
    commit::commit,
    machine::Machine,
    table::{Table, figure, number, number_or_dash},
};

/// Prints a result. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    // The output is flushed here, because an error of the flush at the end of the program is ignored.
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot print the result"),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a result as one line of JSON.
pub(crate) fn print_json(result: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&json(result)?)
}

pub(crate) fn json(result: &impl serde::Serialize) -> anyhow::Result<String> {
    serde_json::to_string(result).context("cannot write the result as JSON")
}

/// Returns the name that a value has on the command line.
pub(crate) fn value_name(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Makes the directory of the results, and its parents.
pub(crate) fn make_directory(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the directory {}", path.display()))
}

/// Writes a result to a file.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
