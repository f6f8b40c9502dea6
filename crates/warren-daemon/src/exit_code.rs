//! Exit codes that scripts rely on, and errors that carry one.

use std::fmt;

/// The exit codes of `warren`. Usage errors (2) come from clap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExitCode {
    /// The command succeeded.
    Done = 0,
    /// The command failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No daemon is running.
    NotRunning = 3,
    /// The exit refuses this client.
    Refused = 4,
    /// The command took too long.
    TimedOut = 5,
    /// The program of `warren exec` cannot be started.
    NotStarted = 126,
    /// The program of `warren exec` does not exist.
    NotFound = 127,
}

impl ExitCode {
    /// Returns the exit code of the [`Failure`] that an error contains, or `Failed` if it contains none.
    pub fn of(error: &anyhow::Error) -> Self {
        error
            .chain()
            .find_map(|cause| cause.downcast_ref::<Failure>())
            .map_or(Self::Failed, |failure| failure.code)
    }

    /// The exit code of `up` if the daemon that it started has ended with this code. A daemon that was ended by a
    /// signal has no code.
    pub fn of_daemon(code: Option<i32>) -> Self {
        let passed_on = [Self::Usage, Self::NotRunning, Self::Refused, Self::TimedOut];
        passed_on.into_iter().find(|known| code == Some(*known as i32)).unwrap_or(Self::Failed)
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

/// An error that sets the exit code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// The code that the process ends with.
    pub code: ExitCode,
    /// What failed, where, and what to do.
    pub sentence: String,
}

impl Failure {
    /// Creates a failure with this code and message.
    pub fn new(code: ExitCode, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sentence)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_keeps_its_code_below_context() {
        let error = anyhow::Error::from(Failure::new(ExitCode::NotRunning, "no daemon runs")).context("down");
        assert_eq!(ExitCode::of(&error), ExitCode::NotRunning);
    }

    #[test]
    fn error_without_a_code_is_a_failure() {
        assert_eq!(ExitCode::of(&anyhow::anyhow!("broken")), ExitCode::Failed);
    }
}
