//! Describes the results of a measurement of the path, and their meaning, in plain sentences.

use super::counts::Loss;
use super::found::{Measured, Mtu, Rate, RoundTrip};
use crate::cli::status::units::{bit_rate, bytes, percent};

/// A path is called lossy if its loss in per cent and the number of lost packets in one direction reach these values. A lower
/// loss may be chance.
const LOSSY: f64 = 0.1;
const FEW: u64 = 5;
/// The loss in per cent above which repair does not help enough.
const TOO_LOSSY: f64 = 15.0;
/// A queue below the first value, in milliseconds, is not noticeable. A queue above the second disturbs calls.
const SHORT_QUEUE: f64 = 20.0;
const LONG_QUEUE: f64 = 100.0;
/// The rate of other traffic, in bits per second, above which it distorts the measurement.
const BUSY: f64 = 1e6;
/// Maximum number of bytes that the tunnel adds to a packet.
const OVERHEAD: u16 = 45;

/// Formats the whole report.
pub(super) fn text(measured: &Measured) -> String {
    let mut text = format!("the path of {} to {}\n", measured.profile, measured.exit);
    let sentences = [round_trip(&measured.round_trip), loss(measured), mtu(measured.mtu), rate(measured)];
    for (label, sentence) in ["round trip", "loss", "mtu", "rate"].into_iter().zip(sentences) {
        text += &format!("  {label:<10}  {sentence}\n");
    }
    if measured.other_bits_per_second > BUSY {
        let other = bit_rate(measured.other_bits_per_second);
        text +=
            &format!("  {:<10}  other traffic used {other} before; the rate is what it left over\n", "busy");
    }
    text + &format!(
        "  {:<10}  {} sent and {} received in {:.1} s\n",
        "measured",
        bytes(measured.traffic.to_exit),
        bytes(measured.traffic.from_exit),
        measured.seconds
    )
}

fn round_trip(found: &RoundTrip) -> String {
    let at_rest_ms = found.at_rest_ms;
    let (Some(under_load_ms), Some(under_load_p95_ms), Some(queue_ms)) =
        (found.under_load_ms, found.under_load_p95_ms, found.queue_ms)
    else {
        return format!(
            "{at_rest_ms:.1} ms at rest; no echo was answered under load, so nothing is known about the queue"
        );
    };
    let means = if queue_ms < SHORT_QUEUE {
        "the queue stays short"
    } else if queue_ms < LONG_QUEUE {
        "some of the load waits in a queue on the path"
    } else {
        "a long queue on the path makes calls and pages slow under load; if it stays, another flow keeps it full"
    };
    format!(
        "{at_rest_ms:.1} ms at rest, {under_load_ms:.1} ms under load (95 % below {under_load_p95_ms:.1} ms): {means}"
    )
}

fn loss(measured: &Measured) -> String {
    let one = |loss: &Loss| format!("{} ({} of {})", percent(loss.percent), loss.lost, loss.sent);
    let (to, from) = (&measured.loss.to_exit, &measured.loss.from_exit);
    let unanswered = measured.echoes.sent.saturating_sub(measured.echoes.answered);
    let worst = to.percent.max(from.percent);
    let means = if worst < LOSSY || to.lost.max(from.lost) < FEW {
        "a clean path".to_owned()
    } else if worst > TOO_LOSSY {
        "too much for repair; check the link, such as a weak radio signal".to_owned()
    } else if measured.repairs {
        format!(
            "a lossy path, which Warren repairs: {unanswered} of {} echoes stayed unanswered. Nothing to tune",
            measured.echoes.sent
        )
    } else {
        "a lossy path, and repair is off. Remove `repair = false` under [transport] on both sides".to_owned()
    };
    format!("{} to the exit, {} from it: {means}", one(to), one(from))
}

fn mtu(Mtu { path, tunnel }: Mtu) -> String {
    let means = if path >= tunnel + OVERHEAD {
        "each packet passes in one piece"
    } else {
        "full packets travel in two pieces, which costs some rate; `[tun] mtu` can be smaller"
    };
    format!("{path} bytes of UDP payload, packets of up to {tunnel} in the tunnel: {means}")
}

fn rate(measured: &Measured) -> String {
    let one = |rate: Rate| {
        format!("{}{}", if rate.is_limit { "" } else { "at least " }, bit_rate(rate.bits_per_second))
    };
    format!("{} to the exit, {} from it", one(measured.rate.to_exit), one(measured.rate.from_exit))
}

#[cfg(test)]
mod tests {
    use super::super::found::{BothWays, EchoCount};
    use super::*;

    fn measured(lost: u64, queue_ms: f64) -> Measured {
        let loss = Loss { sent: 1_500, lost, percent: lost as f64 / 15.0 };
        Measured {
            profile: "home".to_owned(),
            exit: "exit.example.net:443".to_owned(),
            seconds: 9.8,
            round_trip: RoundTrip {
                least_ms: 30.0,
                at_rest_ms: 30.5,
                under_load_ms: Some(30.5 + queue_ms),
                under_load_p95_ms: Some(33.0 + queue_ms),
                queue_ms: Some(queue_ms),
            },
            loss: BothWays { to_exit: loss, from_exit: Loss::default() },
            echoes: EchoCount { sent: 1_475, answered: 1_475 },
            mtu: Mtu { path: 1_452, tunnel: 1_380 },
            rate: BothWays {
                to_exit: Rate { bits_per_second: 47.5e6, is_limit: true },
                from_exit: Rate { bits_per_second: 47.0e6, is_limit: false },
            },
            traffic: BothWays { to_exit: 25_000_000, from_exit: 16_000_000 },
            other_bits_per_second: 0.0,
            repairs: true,
        }
    }

    #[test]
    fn a_clean_path_needs_few_words() {
        assert_eq!(
            text(&measured(0, 4.0)),
            "the path of home to exit.example.net:443\n\
             \x20 round trip  30.5 ms at rest, 34.5 ms under load (95 % below 37.0 ms): the queue stays short\n\
             \x20 loss        0 % (0 of 1500) to the exit, 0 % (0 of 0) from it: a clean path\n\
             \x20 mtu         1452 bytes of UDP payload, packets of up to 1380 in the tunnel: each packet passes in one piece\n\
             \x20 rate        47.5 Mbit/s to the exit, at least 47.0 Mbit/s from it\n\
             \x20 measured    25.0 MB sent and 16.0 MB received in 9.8 s\n"
        );
    }

    #[test]
    fn words_tell_what_a_bad_path_means() {
        let lossy = text(&measured(15, 150.0));
        assert!(lossy.contains("1.0 % (15 of 1500) to the exit"), "{lossy}");
        assert!(lossy.contains("which Warren repairs: 0 of 1475 echoes stayed unanswered"), "{lossy}");
        assert!(lossy.contains("a long queue on the path"), "{lossy}");
        let mut unknown = measured(15, 150.0);
        unknown.round_trip = RoundTrip::of(&[std::time::Duration::from_millis(30)], &[]);
        let unknown = text(&unknown);
        assert!(unknown.contains("no echo was answered under load"), "{unknown}");
        let off = text(&Measured { repairs: false, ..measured(15, 0.0) });
        assert!(off.contains("repair is off"), "{off}");
        let broken = text(&measured(300, 0.0));
        assert!(broken.contains("too much for repair"), "{broken}");
        let busy = text(&Measured {
            other_bits_per_second: 12e6,
            mtu: Mtu { path: 1_280, tunnel: 1_380 },
            ..measured(0, 0.0)
        });
        assert!(busy.contains("other traffic used 12.0 Mbit/s") && busy.contains("two pieces"), "{busy}");
    }
}
