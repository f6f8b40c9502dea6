//! The link of an exit to the store (etcd) that its fleet shares, and the commands of a fleet.
//!
//! The exit has a copy of its own and serves its clients without this program. This program runs as a separate user without
//! privileges.
#![forbid(unsafe_code)]

mod addresses;
mod args;
mod certificates;
mod clock;
mod commands;
mod config;
mod exit_socket;
mod exits;
mod joined;
mod keys;
mod link;
mod logging;
mod membership;
mod meta;
mod once;
mod planted;
mod recovery;
mod requests;
mod returned;
mod rows;
mod run;
mod sessions;
#[cfg(test)]
mod simulation;
mod snapshot;
mod store;
mod store_history;
mod tls;
mod transaction;
mod users;

use std::process::ExitCode;

use clap::Parser as _;

/// The exit code for a wrong command line, as in clap.
const WRONG_COMMAND_LINE: u8 = 2;

fn main() -> ExitCode {
    args::answer_shell();
    let arguments = args::Arguments::parse();
    if let Err(error) = arguments.start_logging() {
        report(&error);
        return ExitCode::from(WRONG_COMMAND_LINE);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(arguments.carry_out()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Writes an error to standard error, as `warren` does.
#[expect(clippy::print_stderr, reason = "the only place that writes errors of commands")]
fn report(error: &anyhow::Error) {
    eprintln!("warren: {}", warren_config::sentence(error.as_ref()));
}
