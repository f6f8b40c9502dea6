//! Which exits of a fleet have cut off a removed or disabled client.

use serde::{Deserialize, Serialize};

/// How far a fleet has applied a removal. The answer to a request that removes or disables a client contains this as `cut_off`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// How many exits have applied the removal, including the exit that was asked.
    pub heard: usize,
    /// How many exits there are.
    pub exits: usize,
    /// The names of the exits that have not applied the removal yet.
    pub waiting: Vec<String>,
    /// Why the other exits have not been told of the removal. `None` if the removal is in the store, from which they learn of it.
    pub away: Option<String>,
    /// Whether this exit is out of its fleet, so that the other exits never hear of the removal from it.
    #[serde(default)]
    pub is_out: bool,
    /// Whether the exit cannot write the removal to its disk, so that a restart could make it forget the removal.
    #[serde(default)]
    pub is_unsaved: bool,
}

impl CutOff {
    /// Reads `cut_off` from an answer. `None` if the exit belongs to no fleet.
    pub fn of(answer: &serde_json::Value) -> Option<Self> {
        serde_json::from_value(answer.get("cut_off")?.clone()).ok()
    }

    /// Formats this as a line for an operator.
    pub fn line(&self) -> String {
        let mut line = self.reach();
        if self.is_unsaved {
            line += " It is not on this host's disk, which cannot be written: make room on the disk.";
        }
        line
    }

    /// Says which exits have applied the removal.
    fn reach(&self) -> String {
        let Self { heard, exits, waiting, away, is_out, .. } = self;
        if *is_out {
            return "Cut off here only. This exit is out of its fleet, so make the change at another exit."
                .to_owned();
        }
        if let Some(reason) = away {
            return format!(
                "Cut off here. The fleet's store cannot be used ({reason}); the other exits get the change when it can be used again."
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
            ..CutOff::default()
        };
        assert_eq!(cut_off(&[], None).line(), "Cut off at 3 of 3 exits.");
        assert_eq!(
            cut_off(&["ams3"], None).line(),
            "Cut off at 2 of 3 exits; ams3 has not applied the change yet."
        );
        let two = cut_off(&["ams2", "ams3"], None).line();
        assert_eq!(two, "Cut off at 1 of 3 exits; ams2, ams3 have not applied the change yet.");
        let away = cut_off(&["ams2", "ams3"], Some("no route"));
        assert!(away.line().starts_with("Cut off here. The fleet's store cannot be used (no route);"));
        let out = CutOff { is_out: true, ..away.clone() }.line();
        let unsaved = CutOff { is_unsaved: true, ..cut_off(&[], None) }.line();
        assert!(unsaved.starts_with("Cut off at 3 of 3 exits. It is not on this host's disk"), "{unsaved}");
        assert!(out.contains("at another exit") && !out.contains("the other exits get"), "{out}");
        let answer = serde_json::json!({ "cut_off": away });
        assert_eq!(CutOff::of(&answer), Some(away));
        assert_eq!(CutOff::of(&serde_json::Value::Null), None);
        // An answer of an earlier version.
        let older = serde_json::json!({ "cut_off": { "heard": 1, "exits": 1, "waiting": [], "away": null } });
        assert_eq!(CutOff::of(&older), Some(CutOff { heard: 1, exits: 1, ..CutOff::default() }));
    }
}
