//! Applies an operator's edits of the clients while the exit runs.

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use warren_session::clients::ClientRegistry;
use warren_session::exit::SessionConfig;

use super::{Clients, Proposed, Watched};
use crate::import::{changes, refuse_silent, registry_after};
use warren_config::{ClientsImport, load_clients, staged_path};
use warren_control::ImportSummary;
use warren_tunnel::WorkerHandle;

/// Clients that somebody has edited.
#[derive(Debug)]
pub(crate) struct Edited {
    registry: ClientRegistry,
    /// The file that the clients come from. `None` if the store itself was edited.
    import: Option<ClientsImport>,
}

impl Clients {
    /// The clients that an operator has edited since this exit read them: in `clients.toml`, or in the store, for instance by
    /// restoring a backup.
    ///
    /// # Errors
    /// When a file is wrong, or the exit refuses it.
    pub(crate) fn edited(&self) -> anyhow::Result<Option<Edited>> {
        let import = ClientsImport::read(&self.path)?;
        let edited = match import.filter(|import| import.mark() != self.store.imported()) {
            Some(import) => Edited { registry: import.registry.clone(), import: Some(import) },
            None if self.store.is_edited() => Edited { registry: load_clients(&self.path)?, import: None },
            None => return Ok(None),
        };
        self.check_edited(&edited)?;
        Ok(Some(edited))
    }

    fn check_edited(&self, edited: &Edited) -> anyhow::Result<()> {
        edited.import.iter().try_for_each(|import| refuse_silent(import, self.registry()))?;
        Ok(self.sessions.check(Instant::now(), &edited.registry)?)
    }

    /// Applies an operator's edits. Sessions of unchanged clients continue.
    ///
    /// # Errors
    /// When the edits cannot be stored. In that case nothing has changed.
    pub(crate) async fn take_over(&mut self, edited: Edited, worker: &WorkerHandle) -> anyhow::Result<()> {
        self.refuse_in_fleet("importing clients")?;
        let Edited { registry, import } = edited;
        let mark = import.as_ref().map(|import| import.mark().to_owned());
        match self.sessions.adopt(Instant::now(), registry)? {
            Some(id) => {
                self.watched = Some(Watched { id, import: Some(mark), failure: None });
                self.settle(Proposed::default(), worker).await?;
                self.follow_all();
            }
            // The registry does not differ. But the edited store may lack rows that are only in memory, such as removed keys, and
            // an import has to be marked as done.
            None => self.store.save_all(self.sessions.registry().rows(), mark.as_deref())?,
        }
        // A failure only causes a warning, because the mark in the store already keeps the file from being imported again.
        if let Some(import) = import
            && let Err(error) = import.put_away(&self.path)
        {
            tracing::warn!("{} was imported and cannot be renamed: {error}", self.path.display());
        }
        Ok(())
    }

    /// Imports the file that a command has put beside the store. A dry run only says what the import would change.
    pub(crate) async fn import(
        &mut self,
        dry_run: bool,
        settings: &SessionConfig,
        worker: &WorkerHandle,
    ) -> anyhow::Result<ImportSummary> {
        let edited = self.staged(&staged_path(&self.path))?;
        let before = self.registry().clone();
        if dry_run {
            let after = registry_after(settings, before.clone(), edited.registry)?;
            return Ok(changes(&before, &after));
        }
        self.refuse_if_edited()?;
        self.take_over(edited, worker).await?;
        Ok(changes(&before, self.registry()))
    }

    fn staged(&self, path: &Path) -> anyhow::Result<Edited> {
        let Some(import) = ClientsImport::read(path)? else {
            bail!("there is no file to import; run `warren exit client import FILE`");
        };
        let edited = Edited { registry: import.registry.clone(), import: Some(import) };
        self.check_edited(&edited)?;
        Ok(edited)
    }

    /// Updates all limits and the names of all sessions from the registry.
    fn follow_all(&mut self) {
        self.limits.follow_all(self.sessions.registry());
        let keys: Vec<_> = self.by_key.keys().copied().collect();
        keys.into_iter().for_each(|key| self.follow(key));
    }
}
