//! Benchmarks of Warren and its peers. Measurements are paired, the compared variants differ in one respect only, and reports
//! include the noise.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "this binary talks to a person or a script")]

mod ab;
mod bare;
mod cli;
mod copier;
mod interrupt;
mod namespace;
mod path;
mod plot;
mod progress;
mod quic;
mod random;
mod report;
mod setup;
mod soak;
mod stats;
mod sweep;
mod tun_device;
mod usage;
mod vpn;
mod way;
mod wire;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `{:#}` prints the error and its causes on one line.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
