//! Files that commands write as root and the user `warren-fleet` reads.

use std::path::Path;

use anyhow::Context as _;
use warren_config::storage::make_directory;
use warren_host::durable_file::{Owner, Unfinished, replace};

use crate::config::FleetConfig;

/// The group that `warren-fleet run` has as a unit.
const GROUP: &str = "warren-fleet";

/// Replaces a file. The group may read it.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        make_directory(directory).with_context(|| format!("{} cannot be created", directory.display()))?;
    }
    let (mode, owner) = match group() {
        Some(group) if Owner::own().user == 0 => (0o640, Owner { user: 0, group }),
        _ => (0o600, Owner::own()),
    };
    replace(path, Unfinished::Random, content, mode, Some(owner))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// Writes `fleet.toml`.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_config(directory: &Path, config: &FleetConfig) -> anyhow::Result<()> {
    let text = toml::to_string(config)?;
    let head = "# The fleet of this exit, for `warren-fleet run`. `warren fleet init` or `warren fleet join` has written it.\n";
    write(&FleetConfig::path(directory), format!("{head}{text}").as_bytes())
}

fn group() -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    let line = groups.lines().find(|line| line.split(':').next() == Some(GROUP))?;
    line.split(':').nth(2)?.parse().ok()
}
