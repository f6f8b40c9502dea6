//! Limits the number of lines that each log statement in the code can write, so that peers cannot fill the log.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::settings::LogFormat;
use super::standard_error::StandardError;

/// Number of lines that a log statement may write at once after a long pause.
const BURST: u32 = 100;
/// After a burst, a log statement may write one further line per this interval.
const EVERY: Duration = Duration::from_millis(500);

/// Standard error with a limited number of lines for each log statement. Debug and trace lines are not limited, because they are
/// written only on request.
#[derive(Debug)]
pub(super) struct LimitedLog {
    format: LogFormat,
    places: Mutex<HashMap<Identifier, Allowance>>,
}

impl LimitedLog {
    pub(super) fn new(format: LogFormat) -> Self {
        Self { format, places: Mutex::default() }
    }

    fn remark(&self, left_out: u64) -> String {
        let sentence = format!("{left_out} lines like the next one were left out");
        match self.format {
            LogFormat::Text => format!("{sentence}\n"),
            LogFormat::Json => format!("{{\"fields\":{{\"message\":\"{sentence}\"}}}}\n"),
        }
    }
}

impl<'log> MakeWriter<'log> for LimitedLog {
    type Writer = Line;

    fn make_writer(&'log self) -> Line {
        Line::Written(StandardError)
    }

    fn make_writer_for(&'log self, metadata: &Metadata<'_>) -> Line {
        // `tracing` orders levels by verbosity: debug is greater than info.
        if *metadata.level() > Level::INFO {
            return self.make_writer();
        }
        // The map stays small: it has one entry for each log statement of the program.
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let allowance = places.entry(metadata.callsite()).or_default();
        match allowance.take(Instant::now()) {
            None => Line::LeftOut,
            Some(0) => self.make_writer(),
            Some(left_out) => {
                let mut line = self.make_writer();
                // If the log cannot be written to, the error cannot be reported anywhere.
                drop(line.write_all(self.remark(left_out).as_bytes()));
                line
            }
        }
    }
}

/// The destination of one line.
#[derive(Debug)]
pub(super) enum Line {
    Written(StandardError),
    LeftOut,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Written(log) => log.write(bytes),
            Self::LeftOut => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Written(log) => log.flush(),
            Self::LeftOut => Ok(()),
        }
    }
}

/// How many lines one log statement may still write.
#[derive(Debug, Default)]
struct Allowance {
    /// Each written line moves this time ahead by [`EVERY`]. While it is further ahead of now than [`BURST`] lines, no line may
    /// be written.
    lasts_until: Option<Instant>,
    left_out: u64,
}

impl Allowance {
    /// Uses the allowance for one line. Returns how many lines were left out since the last one that was written. `None` if this
    /// line must be left out too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let from = self.lasts_until.map_or(now, |until| until.max(now));
        if from.duration_since(now) > EVERY * (BURST - 1) {
            self.left_out += 1;
            return None;
        }
        self.lasts_until = Some(from + EVERY);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_then_two_lines_a_second() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        let written = |allowance: &mut Allowance, now| (0..1_000).filter_map(|_| allowance.take(now)).count();
        assert_eq!(written(&mut allowance, start), 100);
        assert_eq!(written(&mut allowance, start + Duration::from_secs(1)), 2);
        assert_eq!(written(&mut allowance, start + Duration::from_secs(11)), 20);
        assert_eq!(written(&mut allowance, start + Duration::from_secs(1_000)), 100);
    }

    #[test]
    fn the_next_line_that_is_written_tells_how_many_were_not() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        assert_eq!((0..130).filter_map(|_| allowance.take(start)).sum::<u64>(), 0);
        assert_eq!(allowance.take(start + EVERY), Some(30));
        assert_eq!(allowance.take(start + EVERY), None);
        assert_eq!(allowance.take(start + 2 * EVERY), Some(1));
    }

    #[test]
    fn places_have_allowances_of_their_own_and_debug_lines_need_none() {
        let log = std::sync::Arc::new(LimitedLog::new(LogFormat::Json));
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_writer(Unwritten(log.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..500 {
                tracing::info!("one place");
                tracing::debug!("asked for");
            }
            tracing::warn!("another place");
        });
        let places = log.places.lock().unwrap();
        let mut left_out: Vec<u64> = places.values().map(|allowance| allowance.left_out).collect();
        left_out.sort_unstable();
        assert_eq!(left_out.len(), 2);
        assert_eq!(left_out[0], 0);
        // The number is not exact, because the allowance grows while the test runs.
        assert!((300..=400).contains(&left_out[1]), "{left_out:?}");
        let remark: serde_json::Value = serde_json::from_str(&log.remark(3)).unwrap();
        assert_eq!(remark["fields"]["message"], "3 lines like the next one were left out");
    }

    /// A log that requests a writer for each line, but writes nothing.
    struct Unwritten(std::sync::Arc<LimitedLog>);

    impl<'log> MakeWriter<'log> for Unwritten {
        type Writer = io::Sink;

        fn make_writer(&'log self) -> io::Sink {
            io::sink()
        }

        fn make_writer_for(&'log self, metadata: &Metadata<'_>) -> io::Sink {
            let _line = self.0.make_writer_for(metadata);
            io::sink()
        }
    }
}
