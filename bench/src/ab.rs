//! `ab`: runs two commands in turn and compares one figure of their output, until the confidence interval of the ratio is narrow
//! enough.

mod child;
mod outcome;
mod progress;
mod schedule;
mod variant;

use std::{ffi::OsStr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

use self::{
    outcome::Outcome,
    progress::Progress,
    schedule::Schedule,
    variant::{Measurement, Side, Variant},
};
use crate::{
    interrupt::Interrupt,
    report,
    stats::{Better, Comparison, Sample},
};

/// The arguments of `ab`: both variants, the number of rounds and the requested precision.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Variant A as arguments of this program, as in "quic --max-segments 10"
    #[arg(long, value_name = "ARGUMENTS", required_unless_present = "a_command", allow_hyphen_values = true)]
    a: Option<String>,
    /// Variant B as arguments of this program
    #[arg(long, value_name = "ARGUMENTS", required_unless_present = "b_command", allow_hyphen_values = true)]
    b: Option<String>,
    /// Variant A as a shell command that prints a JSON object on one line
    #[arg(long, value_name = "COMMAND", conflicts_with = "a")]
    a_command: Option<String>,
    /// Variant B as a shell command that prints a JSON object on one line
    #[arg(long, value_name = "COMMAND", conflicts_with = "b")]
    b_command: Option<String>,
    /// The number to compare, by its path in the JSON, as in rtt_ms.median
    #[arg(long, default_value = "goodput_mbit_per_s")]
    metric: String,
    /// A lower metric is better
    #[arg(long)]
    lower_is_better: bool,
    /// Stop once half the width of the ratio's 95 % interval is at most this
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    precision: f64,
    /// Minimum number of rounds, not counting the first one, which is discarded
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    min_rounds: u32,
    /// Maximum number of rounds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..))]
    max_rounds: u32,
    /// Longest time of one run, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// Print the result as one line of JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Also write PREFIX.json and PREFIX.md
    #[arg(long, value_name = "PREFIX")]
    save: Option<PathBuf>,
}

/// Runs the comparison and prints the outcome.
///
/// If a run fails or the user interrupts, it still prints and saves the outcome of the complete rounds.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !(args.precision > 0.0 && args.precision.is_finite()) {
        bail!("--precision is {}, but must be a percentage above 0", args.precision);
    }
    let a = Variant::new(args.a.as_deref(), args.a_command.as_deref()).context("variant A")?;
    let b = Variant::new(args.b.as_deref(), args.b_command.as_deref()).context("variant B")?;
    let interrupt = Interrupt::catch()?;
    let mut session = Session { args, a: &a, b: &b, interrupt: &interrupt, rounds: Vec::new() };
    let ended = session.run();
    if let Some(outcome) = session.outcome() {
        outcome.publish(args)?;
    }
    ended
}

struct Session<'a> {
    args: &'a Args,
    a: &'a Variant,
    b: &'a Variant,
    interrupt: &'a Interrupt,
    /// The measurements of A and B in each kept round.
    rounds: Vec<(Measurement, Measurement)>,
}

impl Session<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        // If --max-rounds is below --min-rounds, the minimum wins.
        let (min, max) = (self.args.min_rounds, self.args.max_rounds.max(self.args.min_rounds));
        let schedule = Schedule { min, max, precision: self.args.precision };
        let progress = Progress::new();
        // `is_done` ends this loop after the maximum number of rounds.
        for round in 0.. {
            let comparison = self.comparison();
            let kept = u32::try_from(self.rounds.len()).unwrap_or(u32::MAX);
            let half_width = comparison.as_ref().map(|known| known.ratio.half_width_percent());
            if schedule.is_done(kept, half_width) {
                break;
            }
            let rounds = schedule.expected(kept, half_width);
            progress.round(kept, rounds, half_width);
            let measured = self.round(schedule::order(round), &progress)?;
            // The first round warms up the CPU and page caches and the CPU clock. Its figures are discarded.
            if round > 0 {
                self.rounds.push(measured);
            }
        }
        Ok(())
    }

    fn round(&self, order: [Side; 2], progress: &Progress) -> anyhow::Result<(Measurement, Measurement)> {
        let (mut a, mut b) = (None, None);
        for side in order {
            let (variant, slot) = match side {
                Side::A => (self.a, &mut a),
                Side::B => (self.b, &mut b),
            };
            progress.running(side);
            let limit = Duration::from_secs(self.args.timeout);
            let measured = variant
                .measure(&self.args.metric, limit, self.interrupt, &|| progress.tick())
                .with_context(|| format!("variant {side:?}"))?;
            *slot = Some(measured);
            progress.ran();
        }
        // `order` returns each side once, so both `a` and `b` are set.
        a.zip(b).context("a round measures both variants")
    }

    fn comparison(&self) -> Option<Comparison> {
        let sample =
            |of: fn(&(Measurement, Measurement)) -> f64| Sample::new(self.rounds.iter().map(of).collect());
        let better = if self.args.lower_is_better { Better::Lower } else { Better::Higher };
        let (a, b) = (sample(|(a, _)| a.value)?, sample(|(_, b)| b.value)?);
        Comparison::new(&a, &b, self.args.precision, better)
    }

    fn outcome(&self) -> Option<Outcome> {
        let comparison = self.comparison()?;
        Some(Outcome::new(self.a, self.b, &self.args.metric, self.rounds.clone(), comparison))
    }
}

impl Outcome {
    fn publish(&self, args: &Args) -> anyhow::Result<()> {
        if args.json {
            report::print_json(self)?;
        } else {
            report::print(&self.to_string())?;
        }
        if let Some(prefix) = &args.save {
            // The ending is appended to the prefix. `with_extension` would replace the `.2` of a prefix such as `run.2`.
            let file = |ending| PathBuf::from([prefix.as_os_str(), OsStr::new(ending)].join(OsStr::new("")));
            report::write(&file(".json"), &(report::json(self)? + "\n"))?;
            report::write(&file(".md"), &self.to_string())?;
        }
        Ok(())
    }
}
