//! The `[fleet]` section of an exit: its name in the fleet, and how long it serves without the fleet's store.

use std::time::Duration;

use warren_session::clients::is_valid_name;

use super::ConfigError;
use super::document::{Document, Located};
use super::time::parse_time;
use super::value::{Problem, Value};
use super::wording::quoted;

/// An exit's settings as a member of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// The exit's name in the fleet.
    pub name: String,
    /// How long the exit serves clients after the store's last answer. `None` means without limit.
    pub max_staleness: Option<Duration>,
}

/// The default of `max_staleness`.
const MAX_STALENESS: Duration = Duration::from_secs(3600);

/// Reads the section. Without `name`, the exit belongs to no fleet.
pub(super) fn read_fleet(document: &mut Document<'_>) -> Result<Option<FleetSettings>, ConfigError> {
    let mut section = document.section("fleet")?;
    let name = section.optional("name", exit_name)?;
    let max_staleness = section.optional("max_staleness", staleness)?;
    section.finish()?;
    match (name, max_staleness) {
        (None, None) => Ok(None),
        (None, Some(Located { line, .. })) => {
            let sentence = "max_staleness in [fleet] has no effect without name; add a name for this exit, such as name = \
                            \"ams1\", or remove max_staleness";
            Err(section.error(line, sentence))
        }
        (Some(name), max_staleness) => {
            let max_staleness = max_staleness.map_or(Some(MAX_STALENESS), |given| given.value);
            Ok(Some(FleetSettings { name: name.value, max_staleness }))
        }
    }
}

fn exit_name(value: Value<'_>) -> Result<String, Problem> {
    const EXPECTED: &str = "a name for this exit such as \"ams1\"";
    let text = value.text(EXPECTED)?;
    if !is_valid_name(text) {
        return Err(value.problem(format!(
            "is {}, but must be {EXPECTED}: up to 63 lower-case letters, digits, `-`, `_` and `.`",
            quoted(text)
        )));
    }
    Ok(text.to_owned())
}

fn staleness(value: Value<'_>) -> Result<Option<Duration>, Problem> {
    const EXPECTED: &str = "a time up to a year such as \"1h\", \"30min\" or \"90s\", or \"0\", or \"never\"";
    let text = value.text(EXPECTED)?;
    if text == "never" {
        return Ok(None);
    }
    let problem = |_| value.problem(format!("is {}, but must be {EXPECTED}", quoted(text)));
    parse_time(text, "0s", "365d").map(Some).map_err(problem)
}
