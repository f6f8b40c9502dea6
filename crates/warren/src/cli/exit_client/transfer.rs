//! `warren exit client export|import`: writes all of an exit's clients into a file that people can edit and keep, and reads it back.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::store::ClientStore;
use super::view;
use crate::cli::args::{ClientExportArgs, ClientImportArgs};
use warren_config::{
    ClientsImport, ExitSettings, clients_text, counted, describe, load_clients, lock_beside,
    make_clients_directory, staged_path, storage,
};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Writes the clients as they are on disk now, whether the exit runs or not.
pub(super) fn export(
    directories: &Directories,
    config: &ExitSettings,
    args: &ClientExportArgs,
) -> anyhow::Result<()> {
    let clients = config.clients_path(&directories.state);
    let registry = load_clients(&clients)?;
    let Some(file) = &args.file else {
        return output::print_all(&clients_text(Path::new("standard output"), &registry)?);
    };
    let text = clients_text(file, &registry)?;
    storage::create_new(file, text.as_bytes(), 0o600).map_err(|error| {
        anyhow!("{} cannot be written: {}; name another file", file.display(), describe(&error))
    })?;
    output::print(&format!("Wrote {} to {}.\n", counted(registry.len(), "client"), file.display()))
}

/// Replaces the exit's clients with those in a file.
pub(super) fn import(
    directories: &Directories,
    config: &ExitSettings,
    args: &ClientImportArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    // The exit will read a copy of the file. It is also read here, so that errors contain the user's file name.
    let Some(import) = ClientsImport::read(&args.file)? else {
        bail!("{} does not exist; name a file that `warren exit client export` wrote", args.file.display());
    };
    if import.is_silent() {
        bail!("{} names no client; write `client = []` into it to remove every client", args.file.display());
    }
    let clients = config.clients_path(&directories.state);
    make_clients_directory(&clients)?;
    let staged = staged_path(&clients);
    // The lock is held until the exit has answered. Otherwise, the exit could import the file of another `import` in place of this one.
    let Some(_lock) = lock_beside(&staged, TIME_FOR_OTHER_IMPORT)? else {
        bail!(
            "another `warren exit client import` is still running; nothing was changed; try again once it has ended"
        );
    };
    let text = clients_text(&args.file, &import.registry)?;
    storage::write_atomic(&staged, text.as_bytes(), 0o600).map_err(|error| {
        anyhow!("{} cannot be written: {}; check its directory", staged.display(), describe(&error))
    })?;
    let imported = store.import(args.dry_run);
    // The exit renames the staged file once the clients are in the store. If the staged file still exists, this was a dry run or
    // the import has failed.
    if staged.exists() {
        fs::remove_file(&staged).with_context(|| format!("{} cannot be removed", staged.display()))?;
    }
    let summary = imported?;
    output::print(&view::import(&summary))?;
    output::print(if args.dry_run { "Nothing was changed.\n" } else { "All changes are in force.\n" })
}

/// How long to wait until another import has ended.
const TIME_FOR_OTHER_IMPORT: Duration = Duration::from_secs(10);
