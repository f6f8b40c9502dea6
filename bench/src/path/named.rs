//! The named paths. A path has the settings of a wire, which apply to both directions, and a script of changes during a test.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    stats::float,
    wire::{Change, Settings},
};

/// A path between the client and the exit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Path {
    pub(super) name: String,
    settings: Change,
    script: Script,
}

/// The changes of a path during the measured time of a test.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Script {
    Nothing,
    /// The path has its own rate for a third of the time, a quarter of it for the second third, and half of it for the last
    /// third.
    Rates,
    /// After a third of the time, the path drops all frames for two seconds.
    BlackOut,
}

/// All paths: name, settings in each direction, script.
const PATHS: [(&str, &str, Script); 18] = [
    ("clean", "delay=15ms rate=200mbit queue=30ms", Script::Nothing),
    ("0.1%", "delay=15ms rate=200mbit queue=30ms loss=0.1%", Script::Nothing),
    ("1%", "delay=15ms rate=200mbit queue=30ms loss=1%", Script::Nothing),
    ("3%", "delay=15ms rate=200mbit queue=30ms loss=3%", Script::Nothing),
    ("5%", "delay=15ms rate=200mbit queue=30ms loss=5%", Script::Nothing),
    // The bad state lasts four frames on average and has 1 % of all frames. So each frame in the good state starts a burst with a
    // probability of 0.01 x 0.25 / 0.99.
    ("bursts", "delay=15ms rate=200mbit queue=30ms burst=0.2525%:25%", Script::Nothing),
    ("far", "delay=75ms rate=200mbit queue=30ms loss=0.05%", Script::Nothing),
    ("far-lossy", "delay=75ms rate=200mbit queue=30ms loss=1%", Script::Nothing),
    ("near-lossy", "delay=5ms rate=200mbit queue=30ms loss=1%", Script::Nothing),
    ("wifi", "delay=20ms jitter=8ms rate=50mbit queue=50ms loss=0.5%", Script::Nothing),
    ("reorder", "delay=15ms rate=200mbit queue=30ms reorder=10%:5ms", Script::Nothing),
    ("queue-10", "delay=15ms rate=200mbit queue=10ms", Script::Nothing),
    ("queue-100", "delay=15ms rate=200mbit queue=100ms", Script::Nothing),
    ("queue-200", "delay=10ms rate=50mbit queue=200ms", Script::Nothing),
    ("ecn", "delay=15ms rate=200mbit queue=100ms codel=5ms", Script::Nothing),
    ("policer", "delay=15ms rate=1gbit queue=30ms police=100mbit:250k", Script::Nothing),
    ("rate-change", "delay=15ms rate=200mbit queue=30ms", Script::Rates),
    ("black-out", "delay=15ms rate=200mbit queue=30ms", Script::BlackOut),
];

impl Path {
    pub(super) fn all() -> Vec<Self> {
        // A test checks that every name in the table parses.
        PATHS.iter().filter_map(|(name, ..)| name.parse().ok()).collect()
    }

    /// Returns the change that resets a wire and then applies the path's settings.
    pub(super) fn settings(&self) -> Change {
        Change::clear().and(&self.settings)
    }

    /// Returns the path's capacity in Mbit/s of frames. None without a limit.
    pub(super) fn mbit_per_s(&self) -> Option<f64> {
        let bits = Settings::after(&self.settings).bottleneck()?;
        Some(float(bits) * 1e-6)
    }

    /// Returns the changes during a measurement of this length, with their times after its start.
    pub(super) fn events(&self, measured: Duration) -> Vec<(Duration, Change)> {
        let rate = |share: f64| {
            // The only path with this script has a rate, so the fallback is not used.
            let mbit = self.mbit_per_s().unwrap_or(200.0) * share;
            format!("rate={}kbit", (mbit * 1e3).round())
        };
        let events = match self.script {
            Script::Nothing => Vec::new(),
            Script::Rates => vec![(measured / 3, rate(0.25)), (measured * 2 / 3, rate(0.5))],
            Script::BlackOut => vec![(measured / 3, "blackout=2s".to_owned())],
        };
        events.into_iter().filter_map(|(at, change)| Some((at, change.parse().ok()?))).collect()
    }

    /// Returns the path's random loss in per cent. None unless the path differs from `clean` at most in its random loss.
    pub(super) fn pure_loss_percent(&self) -> Option<f64> {
        let clean = Settings::after(&PATHS.first()?.1.parse().ok()?);
        let own = Settings::after(&self.settings);
        let without = Settings { loss: clean.loss, ..own };
        (without == clean && self.script == Script::Nothing).then(|| own.loss.percent())
    }
}

impl FromStr for Path {
    type Err = String;

    /// Parses the name of a path, or `NAME:KEY=VALUE+KEY=VALUE` with settings of the wire.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, settings)) = text.split_once(':') {
            let settings = settings.replace('+', " ").parse()?;
            return Ok(Self { name: name.to_owned(), settings, script: Script::Nothing });
        }
        let known = |name: &str| PATHS.iter().find(|(known, ..)| *known == name);
        // `queue-30` is another name of `clean`, which has a queue of 30 ms.
        let entry = known(if text == "queue-30" { "clean" } else { text }).ok_or_else(|| {
            let names: Vec<_> = PATHS.iter().map(|(name, ..)| *name).collect();
            format!(
                "there is no path {text}; paths are {}, or NAME:KEY=VALUE+KEY=VALUE with settings of `wire`",
                names.join(", ")
            )
        })?;
        let (_, settings, script) = *entry;
        Ok(Self { name: text.to_owned(), settings: settings.parse()?, script })
    }
}

impl fmt::Display for Path {
    /// Writes the path's name and settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let script = match self.script {
            Script::Nothing => "",
            Script::Rates => ", after a third of the time a quarter of the rate, after two thirds a half",
            Script::BlackOut => ", nothing passes for 2 s after a third of the time",
        };
        write!(f, "{}: {}{script}", self.name, Settings::after(&self.settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_name_of_its_own_and_settings_that_a_wire_takes() {
        let all = Path::all();
        assert_eq!(all.len(), PATHS.len());
        let mut names: Vec<_> = all.iter().map(|path| path.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), PATHS.len());
        assert!("moon".parse::<Path>().unwrap_err().contains("far-lossy"));
    }

    #[test]
    fn path_of_ones_own_has_a_name_and_settings() {
        let path: Path = "mine:delay=5ms+rate=20mbit".parse().unwrap();
        assert_eq!(path.name, "mine");
        assert_eq!(path.mbit_per_s(), Some(20.0));
        assert!("mine:speed=1".parse::<Path>().unwrap_err().contains("speed"));
    }

    #[test]
    fn rate_of_a_path_is_that_of_its_narrowest_place() {
        let rate = |name: &str| name.parse::<Path>().unwrap().mbit_per_s();
        assert_eq!(rate("clean"), Some(200.0));
        assert_eq!(rate("policer"), Some(100.0));
        assert_eq!(rate("x:delay=1ms"), None);
    }

    #[test]
    fn only_paths_that_differ_in_random_loss_are_on_the_plot_of_loss() {
        let loss = |name: &str| name.parse::<Path>().unwrap().pure_loss_percent();
        assert_eq!(loss("clean"), Some(0.0));
        assert!((loss("0.1%").unwrap() - 0.1).abs() < 1e-9);
        for name in ["far-lossy", "bursts", "black-out", "queue-10"] {
            assert_eq!(loss(name), None, "{name}");
        }
    }

    #[test]
    fn events_happen_within_the_measured_time() {
        let second = Duration::from_secs(1);
        let events = |name: &str| name.parse::<Path>().unwrap().events(9 * second);
        assert!(events("clean").is_empty());
        let rates = events("rate-change");
        assert_eq!(rates.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3 * second, 6 * second]);
        assert_eq!(Settings::after(&rates[0].1).rate, Some(50_000_000));
        assert_eq!(events("black-out").len(), 1);
    }
}
