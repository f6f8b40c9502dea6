//! Requests to a running wire, and its answers.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
};

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};

use super::{account::Account, settings::Change};
use crate::way::Way;

/// A request from another thread. The answer is sent through the channel in the request.
#[derive(Debug)]
pub(super) enum Request {
    Change(Vec<(Way, Change)>, mpsc::Sender<State>),
    State(mpsc::Sender<State>),
    Stop,
}

/// The state of a wire.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct State {
    pub(crate) seconds: f64,
    /// CPU time of the thread that moves the frames.
    pub(crate) cpu_seconds: f64,
    pub(crate) up: DirectionState,
    pub(crate) down: DirectionState,
}

/// The state of one direction.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct DirectionState {
    /// The settings, in the syntax of the command line.
    pub(crate) settings: String,
    #[serde(flatten)]
    pub(crate) account: Account,
    /// Frames that the kernel dropped before the wire could read them.
    pub(crate) missed: u64,
}

/// A handle with which other threads send requests to a wire.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) wake: Arc<OwnedFd>,
}

impl Handle {
    /// Applies changes in this order, all at the same moment.
    pub(crate) fn change(&self, changes: &[(Way, Change)]) -> anyhow::Result<State> {
        let (answer, answered) = mpsc::channel();
        self.send(Request::Change(changes.to_vec(), answer))?;
        answered.recv().context("the wire has ended")
    }

    /// Returns the account of all frames so far.
    pub(crate) fn state(&self) -> anyhow::Result<State> {
        let (answer, answered) = mpsc::channel();
        self.send(Request::State(answer))?;
        answered.recv().context("the wire has ended")
    }

    pub(super) fn send(&self, request: Request) -> anyhow::Result<()> {
        self.requests.send(request).map_err(|_| anyhow!("the wire has ended"))?;
        // The wire's thread sleeps in poll(2), so a message in the channel does not wake it.
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).context("cannot wake the wire")?;
        Ok(())
    }
}
