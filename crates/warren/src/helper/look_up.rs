//! Look-ups by the system's resolver, each in a process of its own: the C library reads what the network answers, and a process
//! that ends afterwards, without any right, is all that it can reach.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::cli::output;
use crate::notify::SOCKET;
use crate::sandbox;

/// Looks a name up in a process that is started for it.
///
/// # Errors
/// The system's reason, or that it took too long.
pub(super) async fn ask(host: &str) -> anyhow::Result<Vec<IpAddr>> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--log", "off", "look-up", "--", host]).current_dir("/").kill_on_drop(true);
    // What the daemon tells its service manager is the daemon's alone to say.
    command.env_remove(SOCKET);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = timeout(PATIENCE, command.output()).await;
    let ended = ended.map_err(|_| anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs()))??;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let reason =
            said.lines().find_map(|line| line.strip_prefix("warren: ")).unwrap_or("it gave no reason");
        anyhow::bail!("{reason}");
    }
    let text = String::from_utf8_lossy(&ended.stdout);
    Ok(text.lines().take(MOST).filter_map(|line| line.parse().ok()).collect())
}

/// `warren look-up`: prints a name's addresses, one a line.
///
/// # Errors
/// The system's reason.
pub(crate) fn look_up(host: &str) -> anyhow::Result<()> {
    sandbox::enter_for_look_up();
    let found: Vec<String> =
        (host, 0).to_socket_addrs()?.map(|address| format!("{}\n", address.ip())).collect();
    output::print(&found.concat())
}

/// Longer than a daemon waits.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST: usize = 64;
