//! The result of a check.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
// The order of the variants is the order of severity, by which findings are sorted.
pub(super) enum Verdict {
    /// The checked part is in order.
    Good,
    /// The checked part works, but could be better.
    Advice,
    /// The checked part does not work.
    Problem,
}

/// The result of one check.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// The finding, as a sentence.
    pub(super) found: String,
    /// Why the finding matters. Empty for a good finding.
    pub(super) why: &'static str,
    /// The advice. Empty for a good finding.
    pub(super) fix: String,
    /// The repairs that `--fix` makes.
    pub(super) repairs: Vec<Repair>,
}

/// A repair that `--fix` can make.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Repair {
    /// Sets a kernel setting now, and in a file for the next boots.
    Sysctl { key: &'static str, value: String },
    /// Recreates a kill switch's table.
    CloseKillSwitch { profile: String },
    /// Runs a program.
    Run { command: Vec<String> },
}

impl Finding {
    pub(super) fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Good,
            found: found.into(),
            why: "",
            fix: String::new(),
            repairs: Vec::new(),
        }
    }

    pub(super) fn advice(
        check: &'static str,
        found: impl Into<String>,
        why: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Advice, why, fix: fix.into(), ..Self::good(check, found) }
    }

    pub(super) fn problem(
        check: &'static str,
        found: impl Into<String>,
        why: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Problem, ..Self::advice(check, found, why, fix) }
    }

    #[must_use]
    pub(super) fn with(mut self, repair: Repair) -> Self {
        self.repairs.push(repair);
        self
    }

    pub(super) fn to_text(&self) -> String {
        let word = match self.verdict {
            Verdict::Good => "ok     ",
            Verdict::Advice => "advice ",
            Verdict::Problem => "PROBLEM",
        };
        let mut text = format!("{word}  {}: {}\n", self.check, self.found);
        if self.verdict != Verdict::Good {
            text += &format!("           why: {}\n           fix: {}\n", self.why, self.fix);
        }
        text
    }
}

impl Repair {
    pub(super) fn sysctl(key: &'static str, value: impl ToString) -> Self {
        Self::Sysctl { key, value: value.to_string() }
    }

    pub(super) fn run(words: &[&str]) -> Self {
        Self::Run { command: words.iter().map(|word| (*word).to_owned()).collect() }
    }
}
