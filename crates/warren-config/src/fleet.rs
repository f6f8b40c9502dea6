//! The `[fleet]` section of an exit: its name in the fleet, and how long it serves without the fleet's store.

use std::time::Duration;

use warren_session::clients::is_valid_name;

use super::ConfigError;
use super::document::{Document, Located};
use super::value::{Problem, Value};
use super::wording::quoted;

/// How an exit belongs to a fleet.
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
            let sentence = "max_staleness in [fleet] has no effect without name; write name = \"ams1\" too, or another name for this exit, or remove it";
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
    match parse_time(text) {
        Some(time) => Ok(Some(time)),
        None => Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(text)))),
    }
}

/// Parses a time in the form that command options use, such as `30min`, `1h 30min` or `30m`. At most a year. Alone, only 0
/// needs no unit.
fn parse_time(text: &str) -> Option<Duration> {
    const MOST: Duration = Duration::from_secs(365 * 86_400);
    humantime::parse_duration(text).ok().filter(|time| *time <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_a_bound() {
        let seconds = |text| parse_time(text).map(|time| time.as_secs());
        assert_eq!(["0", "90s", "30m", "1h", "2d"].map(seconds), [0, 90, 1_800, 3_600, 172_800].map(Some));
        assert_eq!(
            ["30min", "1h 30min", "1.5h", "1 hour"].map(seconds),
            [1_800, 5_400, 5_400, 3_600].map(Some)
        );
        for wrong in ["", "h", "1", "+1h", "-1h", "53w", "366d", "99999999999999999999s", "h1", "1\u{e9}"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
