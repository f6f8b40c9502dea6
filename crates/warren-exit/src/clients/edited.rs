//! Takes over clients that an operator has edited, on a running exit.

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use warren_session::clients::ClientRegistry;
use warren_session::exit::SessionConfig;

use super::{Clients, Proposed, Watched};
use crate::import::{changes, refuse_silent, registry_after};
use warren_config::{ClientsImport, load_clients, staged_path};
use warren_control::{ImportSummary, RequestRefused};
use warren_tunnel::WorkerHandle;

/// Clients that somebody has edited.
#[derive(Debug)]
pub(crate) struct Edited {
    registry: ClientRegistry,
    /// The file that they are from. `None` if it was the store itself.
    import: Option<ClientsImport>,
}

impl Clients {
    /// What an operator has edited since this exit read it: `clients.toml`, or the store, as a restored backup.
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

    /// Refuses a change by command while a file waits to be taken over, which would undo the change.
    pub(super) fn refuse_if_edited(&self) -> Result<(), RequestRefused> {
        self.store.refuse_if_edited().map_err(RequestRefused::new)?;
        // A file with a mistake waits, too.
        let is_waiting = ClientsImport::read(&self.path)
            .map_or(true, |import| import.is_some_and(|import| import.mark() != self.store.imported()));
        if is_waiting {
            return Err(RequestRefused::new(format!(
                "{} waits to be imported; run `warren reload exit` first, or remove the file",
                self.path.display()
            )));
        }
        Ok(())
    }

    fn check_edited(&self, edited: &Edited) -> anyhow::Result<()> {
        edited.import.iter().try_for_each(|import| refuse_silent(import, self.registry()))?;
        Ok(self.sessions.check(Instant::now(), &edited.registry)?)
    }

    /// Takes over what an operator has edited. Sessions of clients that did not change go on.
    ///
    /// # Errors
    /// When it cannot be stored. Nothing has changed then.
    pub(crate) async fn take_over(&mut self, edited: Edited, worker: &WorkerHandle) -> anyhow::Result<()> {
        let Edited { registry, import } = edited;
        let mark = import.as_ref().map(|import| import.mark().to_owned());
        match self.sessions.adopt(Instant::now(), registry)? {
            Some(id) => {
                self.watched = Some(Watched { id, import: Some(mark), failure: None });
                self.settle(Proposed::default(), worker).await?;
                self.follow_all();
            }
            // The file may lack what is only in memory, such as removed keys.
            None => self.store.save_all(self.sessions.registry().rows(), mark.as_deref())?,
        }
        if let Some(import) = import
            && let Err(error) = import.put_away(&self.path)
        {
            tracing::warn!("{} was imported and cannot be renamed: {error}", self.path.display());
        }
        Ok(())
    }

    /// Takes over the file that a command has put beside the store, or only says what that would change.
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

    /// Makes limits and sessions' names follow the registry.
    fn follow_all(&mut self) {
        self.limits.follow_all(self.sessions.registry());
        let keys: Vec<_> = self.by_key.keys().copied().collect();
        keys.into_iter().for_each(|key| self.follow(key));
    }
}
