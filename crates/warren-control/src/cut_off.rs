//! Which exits of a fleet have cut off a removed or disabled client.

use serde::{Deserialize, Serialize};

/// How far a fleet has applied a removal. The answer to a request that removes or disables a client contains this as `cut_off`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// How many exits have applied the removal, including the exit that was asked.
    pub heard: usize,
    /// How many exits there are.
    pub exits: usize,
    /// The names of the exits that have not applied the removal yet.
    pub waiting: Vec<String>,
    /// Why the other exits have not been told of the removal. `None` if the removal is in the store, from which they learn of it.
    pub away: Option<String>,
}

impl CutOff {
    /// Reads `cut_off` from an answer. `None` if the exit belongs to no fleet.
    pub fn of(answer: &serde_json::Value) -> Option<Self> {
        serde_json::from_value(answer.get("cut_off")?.clone()).ok()
    }

    /// Formats this as a line for an operator.
    pub fn line(&self) -> String {
        let Self { heard, exits, waiting, away } = self;
        if let Some(reason) = away {
            return format!(
                "Cut off here. The fleet's store does not answer ({reason}); the other exits get the change when it answers again."
            );
        }
        let total = format!("Cut off at {heard} of {exits} exits");
        match waiting.as_slice() {
            [] => format!("{total}."),
            [one] => format!("{total}; {one} has not applied the change yet."),
            several => format!("{total}; {} have not applied the change yet.", several.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_hears_who_has_not_heard() {
        let cut_off = |waiting: &[&str], away: Option<&str>| CutOff {
            heard: 3 - waiting.len(),
            exits: 3,
            waiting: waiting.iter().map(|name| (*name).to_owned()).collect(),
            away: away.map(str::to_owned),
        };
        assert_eq!(cut_off(&[], None).line(), "Cut off at 3 of 3 exits.");
        assert_eq!(
            cut_off(&["ams3"], None).line(),
            "Cut off at 2 of 3 exits; ams3 has not applied the change yet."
        );
        let two = cut_off(&["ams2", "ams3"], None).line();
        assert_eq!(two, "Cut off at 1 of 3 exits; ams2, ams3 have not applied the change yet.");
        let away = cut_off(&["ams2", "ams3"], Some("no route"));
        assert!(away.line().starts_with("Cut off here. The fleet's store does not answer (no route);"));
        let answer = serde_json::json!({ "cut_off": away });
        assert_eq!(CutOff::of(&answer), Some(away));
        assert_eq!(CutOff::of(&serde_json::Value::Null), None);
    }
}
