//! Chooses the best value of each axis, by comparing pairs of cells that differ on this axis only.

use std::fmt;

use serde::Serialize;

use super::{
    grid::{Axes, Setting},
    measured::Measured,
};
use crate::stats::{Ratio, Sample};

/// The choice for one axis. All values of the axis are compared to the first one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Choice {
    pub(super) axis: &'static str,
    pub(super) chosen: String,
    pub(super) reason: String,
    pub(super) effects: Vec<Effect>,
}

/// The comparison of a value with the first value of its axis, in cells that are otherwise equal.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Effect {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) pairs: usize,
    /// The ratio of the goodput with `to` to that with `from`, with its 95 % interval. None if too few pairs have the figure. The
    /// two fields below are the ratios of the other figures.
    pub(super) goodput: Option<Ratio>,
    pub(super) cpu_per_gb: Option<Ratio>,
    pub(super) rtt: Option<Ratio>,
}

/// Chooses a value for each axis that has more than one.
pub(super) fn choose(axes: &Axes, measured: &[Measured]) -> Vec<Choice> {
    let of: [(&'static str, Vec<String>, Axis); 4] = [
        ("caps", names(&axes.caps), |setting| Some(setting.caps.to_string())),
        ("MTU", names(&axes.mtus), |setting| Some(setting.mtu.to_string())),
        ("connections", names(&axes.connections), |setting| Some(setting.connections.to_string())),
        ("bottleneck queue", names(&axes.queues), |setting| setting.queue.clone()),
    ];
    of.into_iter()
        .filter(|(_, values, _)| values.len() > 1)
        .filter_map(|(axis, values, value)| choice(axis, &values, value, measured))
        .collect()
}

fn names<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// Returns a setting's value on an axis.
type Axis = fn(&Setting) -> Option<String>;

fn choice(axis: &'static str, values: &[String], value: Axis, measured: &[Measured]) -> Option<Choice> {
    let (first, others) = values.split_first()?;
    let effects: Vec<_> = others.iter().map(|other| effect(first, other, value, measured)).collect();
    let mut best: Option<&Effect> = None;
    for effect in &effects {
        // CPU time decides only if goodput does not differ clearly.
        let is_better = match is_clear(effect.goodput) {
            Some(ratio) => ratio > 1.0,
            None => is_clear(effect.cpu_per_gb).is_some_and(|ratio| ratio < 1.0),
        };
        let goodput = |effect: &Effect| effect.goodput.map_or(0.0, |ratio| ratio.estimate);
        if is_better && best.is_none_or(|best| goodput(effect) > goodput(best)) {
            best = Some(effect);
        }
    }
    let (chosen, reason) = match best {
        Some(best) => (best.to.clone(), best.to_string()),
        None => {
            let all: Vec<_> = effects.iter().map(ToString::to_string).collect();
            (first.clone(), format!("no other value is clearly better: {}", all.join("; ")))
        }
    };
    Some(Choice { axis, chosen, reason, effects })
}

/// Returns the ratio, unless its interval contains 1.
fn is_clear(ratio: Option<Ratio>) -> Option<f64> {
    ratio.filter(|ratio| !ratio.holds_one()).map(|ratio| ratio.estimate)
}

fn effect(from: &str, to: &str, value: Axis, measured: &[Measured]) -> Effect {
    let mut pairs: Vec<(&Measured, &Measured)> = Vec::new();
    for one in measured.iter().filter(|one| value(&one.cell.setting).as_deref() == Some(from)) {
        let twin = measured.iter().find(|other| {
            value(&other.cell.setting).as_deref() == Some(to)
                && other.round == one.round
                && other.cell.net == one.cell.net
                // The cells differ on this axis, so exactly one difference means that all other axes are equal.
                && differ_in_one(&other.cell.setting, &one.cell.setting)
        });
        pairs.extend(twin.map(|twin| (one, twin)));
    }
    let ratio = |figure: fn(&Measured) -> Option<f64>| {
        let known = pairs.iter().filter_map(|(one, twin)| Some((figure(one)?, figure(twin)?)));
        let (from, to): (Vec<_>, Vec<_>) = known.unzip();
        Ratio::of_rounds(&Sample::new(from)?, &Sample::new(to)?)
    };
    Effect {
        from: from.to_owned(),
        to: to.to_owned(),
        pairs: pairs.len(),
        goodput: ratio(|measured| Some(measured.goodput_mbit_per_s)),
        cpu_per_gb: ratio(|measured| measured.cpu_seconds_per_gb),
        rtt: ratio(|measured| measured.rtt_median_ms),
    }
}

fn differ_in_one(one: &Setting, other: &Setting) -> bool {
    let differences = [
        one.caps != other.caps,
        one.mtu != other.mtu,
        one.connections != other.connections,
        one.queue != other.queue,
    ];
    differences.into_iter().filter(|differs| *differs).count() == 1
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |ratio: Option<Ratio>| {
            ratio.map_or_else(
                || "unknown".to_owned(),
                |Ratio { estimate, low, high }| format!("x{estimate:.2} [{low:.2}, {high:.2}]"),
            )
        };
        let Self { from, to, pairs, goodput, cpu_per_gb, rtt } = self;
        write!(
            f,
            "{to} against {from} over {pairs} pairs: goodput {}, CPU per GB {}, RTT under load {}",
            show(*goodput),
            show(*cpu_per_gb),
            show(*rtt)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{super::grid::Net, *};

    fn axes() -> Axes {
        Axes {
            caps: vec!["10/20".parse().unwrap(), "40/80".parse().unwrap()],
            mtus: vec![1_280, 1_380],
            connections: vec![4],
            queues: vec!["50ms".to_owned()],
        }
    }

    fn measured(figures: impl Fn(&Setting, u32) -> (f64, f64)) -> Vec<Measured> {
        let rounds =
            (0..3).flat_map(|round| axes().cells(&Net::ALL).into_iter().map(move |cell| (round, cell)));
        rounds
            .map(|(round, cell)| {
                let (goodput_mbit_per_s, cpu) = figures(&cell.setting, round);
                let cpu_seconds_per_gb = Some(cpu);
                Measured { cell, round, goodput_mbit_per_s, cpu_seconds_per_gb, ..Measured::for_test() }
            })
            .collect()
    }

    #[test]
    fn value_that_is_clearly_better_is_chosen_whatever_else_varies() {
        let found = measured(|setting, round| {
            let caps = if setting.caps.to_string() == "40/80" { 1.2 } else { 1.0 };
            let noise = 1.0 + 0.01 * f64::from(round);
            (f64::from(setting.mtu) * caps * noise, 2.0)
        });
        let choices = choose(&axes(), &found);
        let chosen: Vec<_> = choices.iter().map(|choice| (choice.axis, choice.chosen.as_str())).collect();
        assert_eq!(chosen, [("caps", "40/80"), ("MTU", "1380")]);
        let effect = &choices[0].effects[0];
        assert_eq!(effect.pairs, 3 * 4 * 2);
        assert!((effect.goodput.unwrap().estimate - 1.2).abs() < 0.01, "{effect}");
    }

    #[test]
    fn less_cpu_decides_where_goodput_does_not_and_else_the_first_stays() {
        let jitter = |setting: &Setting, round: u32| {
            let up = (setting.mtu == 1_280) ^ (round == 1) ^ (setting.caps.to_string() == "40/80");
            if up { 1.05 } else { 1.0 }
        };
        let found = measured(|setting, round| {
            let cpu = if setting.caps.to_string() == "40/80" { 1.6 } else { 2.0 };
            (100.0 * jitter(setting, round), cpu * (1.0 + 0.01 * f64::from(round)))
        });
        let choices = choose(&axes(), &found);
        assert_eq!((choices[0].chosen.as_str(), choices[1].chosen.as_str()), ("40/80", "1280"));
        assert!(choices[1].reason.contains("no other value is clearly better"), "{}", choices[1].reason);
    }
}
