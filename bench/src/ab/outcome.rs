//! The outcome of a comparison: tables and a verdict for people, JSON for programs.

use std::fmt;

use serde::Serialize;

use super::variant::{Measurement, Variant};
use crate::{
    report::{self, Machine, Table, number, number_or_dash},
    stats::{Comparison, Probability, Ratio, Sample},
};

/// All measurements, and the results that follow from them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    benchmark: &'static str,
    /// The commit of this repository's tree.
    commit: String,
    machine: Machine,
    a: String,
    b: String,
    metric: String,
    rounds: Vec<(Measurement, Measurement)>,
    comparison: Comparison,
    efficiency: Efficiency,
    sentence: String,
}

/// Goodput in Mbit/s for each per cent of a core. None unless every run has both the goodput and the CPU time.
#[derive(Clone, Debug, Serialize)]
struct Efficiency {
    sender: Option<PerCpu>,
    receiver: Option<PerCpu>,
}

/// Each variant's mean of Mbit/s for each per cent of a core, and the ratio of the means.
#[derive(Clone, Copy, Debug, Serialize)]
struct PerCpu {
    a: f64,
    b: f64,
    ratio: Ratio,
}

impl Outcome {
    pub(super) fn new(
        a: &Variant,
        b: &Variant,
        metric: &str,
        rounds: Vec<(Measurement, Measurement)>,
        comparison: Comparison,
    ) -> Self {
        let efficiency = Efficiency {
            sender: PerCpu::of(&rounds, |run| run.sender_cpu_percent),
            receiver: PerCpu::of(&rounds, |run| run.receiver_cpu_percent),
        };
        Self {
            benchmark: "ab",
            commit: report::commit(),
            machine: Machine::here(),
            a: a.to_string(),
            b: b.to_string(),
            metric: metric.to_owned(),
            rounds,
            sentence: comparison.verdict.to_string(),
            comparison,
            efficiency,
        }
    }

    fn summary_table(&self) -> Table {
        let percent =
            |part: Option<f64>| part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0));
        let mut table = Table::new(["variant", "n", "mean", "median", "stddev", "CV", "P10", "P50", "P90"]);
        for (name, summary) in [("A", &self.comparison.a), ("B", &self.comparison.b)] {
            table.row([
                name.to_owned(),
                summary.n.to_string(),
                number(summary.mean),
                number(summary.median),
                number_or_dash(summary.standard_deviation),
                percent(summary.variation),
                number(summary.p10),
                number(summary.p50),
                number(summary.p90),
            ]);
        }
        table
    }

    fn comparison_table(&self) -> Table {
        let Comparison { ratio, paired_ratio, welch, .. } = &self.comparison;
        let interval = |ratio: &Ratio| format!("{:.4} [{:.4}, {:.4}]", ratio.estimate, ratio.low, ratio.high);
        let mut table = Table::new(["comparison", "value"]);
        table.row(["ratio of means B / A [95 %]".to_owned(), interval(ratio)]);
        if let Some(paired) = paired_ratio {
            table.row(["ratio by rounds B / A [95 %]".to_owned(), interval(paired)]);
        }
        table.row([
            "Welch's t, degrees of freedom".to_owned(),
            format!("{:.3}, {:.1}", welch.t, welch.degrees_of_freedom),
        ]);
        // `Probability` formats as "= 0.02" or "< 0.0001". A table cell shows the number without "= ".
        table.row(["p (two-sided)".to_owned(), Probability(welch.p).to_string().replace("= ", "")]);
        for (side, per_cpu) in [("sender", self.efficiency.sender), ("receiver", self.efficiency.receiver)] {
            if let Some(PerCpu { a, b, ratio }) = per_cpu {
                let name = format!("Mbit/s per % CPU of the {side}: A, B, ratio [95 %]");
                table.row([name, format!("{}, {}, {}", number(a), number(b), interval(&ratio))]);
            }
        }
        table
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "- A: `{}`\n- B: `{}`", self.a, self.b)?;
        writeln!(f, "- metric: {}\n- machine: {}\n- {}\n", self.metric, self.machine, self.commit)?;
        writeln!(f, "{}\n{}\n{}", self.summary_table(), self.comparison_table(), self.sentence)
    }
}

impl PerCpu {
    fn of(rounds: &[(Measurement, Measurement)], cpu: fn(&Measurement) -> Option<f64>) -> Option<Self> {
        let of_run = |run: &Measurement| {
            let used = cpu(run).filter(|used| *used > 0.0)?;
            Some(run.goodput_mbit_per_s? / used)
        };
        // The sample is None if any run lacks the figure, because the means of A and B must be over the same rounds.
        let sample = |side: fn(&(Measurement, Measurement)) -> &Measurement| {
            Sample::new(rounds.iter().map(|round| of_run(side(round))).collect::<Option<_>>()?)
        };
        let (a, b) = (sample(|(a, _)| a)?, sample(|(_, b)| b)?);
        Some(Self { a: a.mean(), b: b.mean(), ratio: Ratio::of_means(&a, &b)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Better;

    fn outcome(cpu: Option<f64>) -> Outcome {
        let run = |value| Measurement {
            value,
            goodput_mbit_per_s: Some(value),
            sender_cpu_percent: cpu,
            receiver_cpu_percent: None,
        };
        let rounds: Vec<_> = [(100.0, 120.0), (101.0, 121.0), (99.0, 119.5)]
            .into_iter()
            .map(|(a, b)| (run(a), run(b)))
            .collect();
        let sample = |values: [f64; 3]| Sample::new(values.to_vec()).unwrap();
        let (a, b) = (sample([100.0, 101.0, 99.0]), sample([120.0, 121.0, 119.5]));
        let comparison = Comparison::new(&a, &b, 3.0, Better::Higher).unwrap();
        let variant = |words| Variant::new(Some(words), None).unwrap();
        Outcome::new(&variant("quic --x"), &variant("quic --y"), "goodput_mbit_per_s", rounds, comparison)
    }

    #[test]
    fn person_reads_both_commands_the_tables_and_the_verdict() {
        let text = outcome(Some(50.0)).to_string();
        for part in [
            "`quic --x`",
            "`quic --y`",
            "| A ",
            "P90",
            "Welch",
            "ratio by rounds",
            "The difference is real: B is 20",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.contains("Mbit/s per % CPU of the sender"), "{text}");
        assert!(!text.contains("receiver"), "{text}");
    }

    #[test]
    fn efficiency_needs_the_cpu_of_every_run() {
        assert_eq!(outcome(Some(50.0)).efficiency.sender.map(|sender| sender.a), Some(2.0));
        assert!(outcome(None).efficiency.sender.is_none());
    }
}
