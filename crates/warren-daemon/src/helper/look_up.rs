//! Look-ups by the system's resolver, each in its own process. The C library parses the network's answers. An
//! attacker who exploits it gets only a process that has no rights and soon ends.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::notify::SOCKET;
use crate::output;
use crate::own_program;
use crate::sandbox;

/// Looks a name up in a separate process.
///
/// # Errors
/// With the resolver's reason, or if it took too long.
pub(super) async fn ask(host: &str) -> anyhow::Result<Vec<IpAddr>> {
    let mut command = own_program::command();
    command.args(["--log", "off", "look-up", "--", host]).kill_on_drop(true);
    // Only the daemon may send notices to the service manager.
    command.env_remove(SOCKET);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = timeout(PATIENCE, run(command)).await;
    let Ended { status, said, printed } =
        ended.map_err(|_| anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs()))??;
    if !status.success() {
        let said = String::from_utf8_lossy(&said);
        let reason =
            said.lines().find_map(|line| line.strip_prefix("warren: ")).unwrap_or("it gave no reason");
        anyhow::bail!("{reason}");
    }
    let text = String::from_utf8_lossy(&printed);
    // A line that is not an address is skipped, because an attacker may control the process.
    Ok(text.lines().take(MOST).filter_map(|line| line.parse().ok()).collect())
}

/// The result of a process.
struct Ended {
    status: ExitStatus,
    printed: Vec<u8>,
    said: Vec<u8>,
}

/// Runs a process to its end. Reads at most [`MOST_BYTES`] of each output, because an attacker may control the process.
async fn run(mut command: Command) -> io::Result<Ended> {
    let mut child = command.spawn()?;
    let (printed, said) = (child.stdout.take(), child.stderr.take());
    let (printed, said) = tokio::try_join!(beginning(printed), beginning(said))?;
    // Both pipes are closed now, so a process that continues to write fails. If it does not end, the time limit of `ask` kills
    // it.
    Ok(Ended { status: child.wait().await?, printed, said })
}

async fn beginning(of: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    if let Some(of) = of {
        of.take(MOST_BYTES).read_to_end(&mut read).await?;
    }
    Ok(read)
}

/// `warren look-up`: prints a name's addresses, one per line.
///
/// # Errors
/// With the resolver's reason.
pub fn look_up(host: &str) -> anyhow::Result<()> {
    // This comes first, before anything from the network is parsed.
    sandbox::enter_for_look_up();
    let found: Vec<String> =
        (host, 0).to_socket_addrs()?.map(|address| format!("{}\n", address.ip())).collect();
    output::print(&found.concat())
}

/// Longer than a daemon waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST: usize = 64;
/// Far more than [`MOST`] addresses need.
const MOST_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_writes_without_end_fills_no_memory() {
        for (script, printed, said) in
            [("cat /dev/zero", 65_536, 0), ("cat /dev/zero >&2", 0, 65_536), ("echo 192.0.2.1", 10, 0)]
        {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).kill_on_drop(true);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let ended = timeout(PATIENCE, run(command)).await.unwrap().unwrap();
            assert_eq!((ended.printed.len(), ended.said.len()), (printed, said), "{script}");
        }
    }
}
