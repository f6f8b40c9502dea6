//! One variant: its command, and the figures read from its output.

use std::{fmt, process::Command, time::Duration};

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::Value;

use super::child;
use crate::interrupt::Interrupt;

/// One of the two variants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    A,
    B,
}

/// A variant's command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Variant {
    /// The arguments with which to run this program.
    Own(Vec<String>),
    /// A shell command.
    Shell(String),
}

/// The figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Measurement {
    pub(super) value: f64,
    /// This field and the two below are None if the output lacks the figure. CPU times are in per cent of one core.
    pub(super) goodput_mbit_per_s: Option<f64>,
    pub(super) sender_cpu_percent: Option<f64>,
    pub(super) receiver_cpu_percent: Option<f64>,
}

impl Variant {
    pub(super) fn new(arguments: Option<&str>, command: Option<&str>) -> anyhow::Result<Self> {
        match (arguments, command) {
            (_, Some(command)) => Ok(Self::Shell(command.to_owned())),
            (Some(arguments), None) => {
                let words = shlex::split(arguments).context("a quote in the arguments is not closed")?;
                if words.is_empty() {
                    bail!("no arguments are given; name a benchmark, as in \"quic --seconds 2\"");
                }
                Ok(Self::Own(words))
            }
            (None, None) => bail!("neither arguments nor a command are given"),
        }
    }

    /// Runs the variant once.
    pub(super) fn measure(
        &self,
        metric: &str,
        limit: Duration,
        interrupt: &Interrupt,
        tick: &dyn Fn(),
    ) -> anyhow::Result<Measurement> {
        let output = child::run(&mut self.command()?, limit, interrupt, tick)?;
        Measurement::from_output(&output, metric)
    }

    fn command(&self) -> anyhow::Result<Command> {
        match self {
            Self::Own(words) => {
                let program = std::env::current_exe().context("cannot find this program's file")?;
                let mut command = Command::new(program);
                command.args(words).arg("--json");
                Ok(command)
            }
            Self::Shell(line) => {
                let mut command = Command::new("sh");
                command.args(["-c", line]);
                Ok(command)
            }
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(words) => f.write_str(&words.join(" ")),
            Self::Shell(line) => f.write_str(line),
        }
    }
}

impl Measurement {
    /// Reads the figures from the last line that is a JSON object.
    fn from_output(output: &str, metric: &str) -> anyhow::Result<Self> {
        let object = output
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str::<Value>(line).ok().filter(Value::is_object))
            .context("it printed no line that is a JSON object")?;
        // A dot separates the names of nested objects, as in `rtt_ms.median`.
        let number = |path: &str| path.split('.').try_fold(&object, |value, key| value.get(key))?.as_f64();
        let value = number(metric)
            .with_context(|| format!("its JSON has no number {metric:?}; --metric names another"))?;
        Ok(Self {
            value,
            goodput_mbit_per_s: number("goodput_mbit_per_s"),
            sender_cpu_percent: number("sender_cpu_percent"),
            receiver_cpu_percent: number("receiver_cpu_percent"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_json_line_counts_and_dots_lead_into_objects() {
        let output = "{\"x\": 1}\nsome words\n{\"x\": {\"y\": 2.5}, \"sender_cpu_percent\": 90}\nbye\n";
        let measurement = Measurement::from_output(output, "x.y").unwrap();
        assert_eq!((measurement.value, measurement.sender_cpu_percent), (2.5, Some(90.0)));
        assert_eq!(measurement.receiver_cpu_percent, None);
    }

    #[test]
    fn output_without_the_metric_is_refused_by_name() {
        let refusal = |output, metric| Measurement::from_output(output, metric).unwrap_err().to_string();
        assert!(refusal("17\n[1]\n", "x").contains("no line that is a JSON object"));
        assert!(refusal("{\"x\": \"fast\"}", "x").contains("no number \"x\""));
    }

    #[test]
    fn arguments_are_split_as_a_shell_would() {
        let variant = Variant::new(Some("quic --label 'a b'"), None).unwrap();
        assert_eq!(variant, Variant::Own(vec!["quic".into(), "--label".into(), "a b".into()]));
        assert!(Variant::new(Some("quic 'x"), None).is_err());
        assert!(Variant::new(Some(" "), None).is_err());
    }

    #[test]
    fn shell_command_is_run_and_read() {
        let variant = Variant::new(None, Some("echo '{\"ms\": 12}'")).unwrap();
        let limit = Duration::from_secs(10);
        let measured = variant.measure("ms", limit, &Interrupt::default(), &|| ()).unwrap();
        assert_eq!(measured.value, 12.0);
    }
}
