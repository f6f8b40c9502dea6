//! Runs resolvconf(8) and resolvectl(1).

use std::{
    io,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use super::DnsError;

/// Whether the program is installed.
pub(super) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |directory: &Path| directory.join(program).is_file();
    std::env::split_paths(&path).any(|directory| here(&directory))
        || ALSO.iter().any(|directory| here(Path::new(directory)))
}

/// Runs a program to its end and returns what it printed.
pub(super) async fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, DnsError> {
    let failed = |reason: String| {
        let command = [&[program], arguments].concat().join(" ");
        DnsError::Command { command, reason }
    };
    let output = match timeout(PATIENCE, output(program, arguments, input)).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(failed("it is not installed".into()));
        }
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|line| !line.trim().is_empty());
    Err(failed(reason.map_or_else(|| output.status.to_string(), str::to_owned)))
}

async fn output(program: &str, arguments: &[&str], input: &str) -> io::Result<Output> {
    let mut search = std::env::var_os("PATH").unwrap_or_default();
    for directory in ALSO {
        search.push(":");
        search.push(directory);
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        // The environment is cleared, because the scripts of other packages that resolvconf runs need nothing of a daemon's
        // environment. Without locale variables, their output, which Warren's messages quote, is in English.
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", search)
        .current_dir("/")
        // On a timeout, the caller drops this future. This ends a program that hangs.
        .kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Writing fails if the program ends before it has read all input. This error is ignored, because the program's own
        // message is better.
        drop(stdin.write_all(input.as_bytes()).await);
    }
    child.wait_with_output().await
}

/// Directories of administration programs. They are searched after PATH, which may be unset.
const ALSO: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/bin"];
/// The time limit of a program. It is long because resolvconf runs scripts of other packages.
const PATIENCE: Duration = Duration::from_secs(10);
