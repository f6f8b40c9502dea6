//! The part of `warren portal` that runs as the calling user in the portal's cgroup: finds the login page, and shows it.

use std::ffi::OsString;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use warren_host::exec_groups::{ExecGroup, Side};

use super::super::exec::names::Shadowed;
use super::browser::Browser;
use super::page::{Found, PlainUrl};
use crate::cli::args::PortalArgs;
use warren_control::AskError;
use warren_control::exec_socket::{UserWish, ask_for};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

/// Shows the page until its browser ends.
///
/// # Errors
/// Why the page cannot be shown.
pub(super) async fn run(directories: &Directories, arguments: &PortalArgs) -> anyhow::Result<()> {
    let name = arguments.profile.as_ref().context("name a profile")?.to_string_lossy();
    let group = ExecGroup::of_portal(&name)?;
    if !is_in(&group)? {
        // If the command was not started by root, the daemon must move this process into the cgroup.
        ask_to_be_moved(directories, &name).await?;
    }
    if !is_in(&group)? {
        bail!("the daemon of {name} has not moved this process; see `warren logs {name}`");
    }
    let page = find_page(&arguments.url).await;
    if !arguments.command.is_empty() {
        return show(&arguments.command, &page).await;
    }
    let browser = Browser::find()?;
    let profile = browser.make_profile()?;
    let shown = show(&browser.words(&profile, &page), &page).await;
    // This also removes the cookies and other data of the login page.
    if let Err(error) = std::fs::remove_dir_all(&profile) {
        output::warn(format!("cannot remove {}: {error}; remove it by hand", profile.display()));
    }
    shown
}

fn is_in(group: &ExecGroup) -> anyhow::Result<bool> {
    let listing = std::fs::read_to_string("/proc/self/cgroup").context("cannot see this process's cgroup")?;
    Ok(group.has_in(&listing))
}

async fn ask_to_be_moved(directories: &Directories, name: &str) -> anyhow::Result<()> {
    // This is checked before the daemon is asked, because the portal's time begins with the daemon's answer.
    drop(Shadowed::for_user(Side::Outside)?);
    match ask_for(&directories.runtime, name, UserWish::Portal).await {
        Err(AskError::NotRunning) => {
            let sentence = format!(
                "{name} is not running, or lets only root open a login page; run `sudo warren portal {name}`"
            );
            Err(Failure::new(ExitCode::NotRunning, sentence).into())
        }
        asked => asked.map_err(Into::into),
    }
}

/// Returns the address of the login page. If it is unknown, returns an address for which the network shows the login page.
async fn find_page(asked: &PlainUrl) -> String {
    match asked.ask().await {
        Found::Page(page) => {
            output::note(format!("the login page is {page}"));
            page
        }
        Found::Replaced => {
            output::note(format!("this network answers with a page of its own in place of {asked}"));
            asked.to_string()
        }
        Found::Nothing => {
            output::note(format!(
                "this network shows no login page in place of {asked}; it may let you out already"
            ));
            asked.to_string()
        }
        Found::NoAnswer(why) => {
            output::note(format!(
                "{asked} does not answer ({why}); if you expect a login page, enter its address"
            ));
            asked.to_string()
        }
    }
}

async fn show(words: &[OsString], page: &str) -> anyhow::Result<()> {
    let [program, rest @ ..] = words else { bail!("name a program after `--`") };
    let mut command = Command::new(program);
    command.args(rest).env("WARREN_PORTAL_URL", page).kill_on_drop(true);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}; check the program's name", program.display()))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let status = tokio::select! {
        ended = child.wait() => ended?,
        _ = terminate.recv() => return end(&mut child).await,
        _ = interrupt.recv() => return end(&mut child).await,
    };
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => bail!("{} has ended with exit code {code}", program.display()),
        None => bail!("{} was killed", program.display()),
    }
}

/// Ends the browser, so that it no longer writes into its profile.
async fn end(child: &mut Child) -> anyhow::Result<()> {
    child.kill().await.context("cannot end the browser")
}
