//! `wire --self-test`: checks with real packets between namespaces that the emulator obeys its settings.
//!
//! The measurements are those of a program at the ends of the wire. Delays are measured from before the send call to the time
//! stamp of receipt in the other namespace. Rates and losses are computed from the receiver's counts.

mod bed;
mod traffic;

use std::{collections::HashSet, time::Duration};

use anyhow::{Context as _, bail};
use serde::Serialize;

use self::{bed::Bed, traffic::Stream};
use super::{account::Account, request::State};
use crate::{
    interrupt::Interrupt,
    report::{self, Machine, Table, number},
    stats::{Sample, float},
};

/// Bytes of the UDP, IPv4 and Ethernet headers of each payload.
const HEADERS: u32 = 8 + 20 + 14;
/// Bytes of a full frame's payload.
const FULL: usize = 1_472;
const SMALL: usize = 22;
const MILLION: u32 = 1_000_000;

/// Runs all checks and prints the results. Fails if a check fails.
pub(super) fn run(interrupt: &Interrupt, json: bool) -> anyhow::Result<()> {
    let machine = Machine::here();
    let mut checks = Vec::new();
    let bed = Bed::create(1)?;
    let groups: [(&str, Measure); 5] = [
        ("delay", delays),
        ("rate", rates),
        ("capacity", capacity),
        ("loss", losses),
        ("repetition", repetition),
    ];
    for (name, measure) in groups {
        eprintln!("measuring {name}");
        checks.extend(measure(&bed, interrupt)?);
        // Each group of checks starts with default settings.
        bed.set("clear")?;
    }
    checks.push(balance(&bed.wire.stop()?));
    let failed = checks.iter().filter(|check| !check.passed).count();
    if json {
        report::print_json(&Outcome { machine, checks })?;
    } else {
        report::print(&format!("{machine}\n\n{}", table(&checks)))?;
    }
    if failed > 0 {
        bail!("{failed} checks failed; if the machine was busy, repeat the test when nothing else runs");
    }
    Ok(())
}

/// A function that changes the wire's settings, sends packets through the wire, and checks the result.
type Measure = fn(&Bed, &Interrupt) -> anyhow::Result<Vec<Check>>;

#[derive(Clone, Debug, Serialize)]
struct Outcome {
    machine: Machine,
    checks: Vec<Check>,
}

/// One check of the wire.
#[derive(Clone, Debug, Serialize)]
struct Check {
    asked: String,
    found: String,
    /// The allowed deviation.
    allowed: &'static str,
    passed: bool,
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(["asked", "found", "allowed", "verdict"]);
    for Check { asked, found, allowed, passed } in checks {
        let verdict = if *passed { "pass" } else { "FAIL" };
        table.row([asked.clone(), found.clone(), (*allowed).to_owned(), verdict.to_owned()]);
    }
    table
}

/// Checks the median delay, and the bounds of jitter.
fn delays(bed: &Bed, interrupt: &Interrupt) -> anyhow::Result<Vec<Check>> {
    const PACKETS: u32 = 400;
    let measure = |settings: &str| -> anyhow::Result<Sample> {
        bed.set(settings)?;
        let delays = traffic::delays(bed, PACKETS, Duration::from_millis(4), interrupt)?;
        Sample::new(delays).context("no packet arrived")
    };
    let mut checks = Vec::new();
    for milliseconds in [0_u32, 1, 10, 30, 100] {
        let delays = measure(&format!("delay={milliseconds}ms"))?;
        let (median, late) = (delays.median(), delays.quantile(0.99));
        let asked = f64::from(milliseconds);
        checks.push(Check {
            asked: format!("delay {milliseconds} ms"),
            found: format!("median {median:.3} ms, p99 {late:.3} ms"),
            allowed: "2 % or 0.1 ms",
            passed: (median - asked).abs() <= (asked * 0.02).max(0.1),
        });
    }
    let delays = measure("delay=20ms jitter=5ms")?;
    let (least, most) = (delays.quantile(0.0), delays.quantile(0.99));
    checks.push(Check {
        asked: "delay 20 ms, jitter 5 ms".to_owned(),
        found: format!("from {least:.3} to {most:.3} ms (p99)"),
        allowed: "within it, and at least half of it used",
        passed: least >= 15.0 && most <= 25.4 && most - least >= 5.0,
    });
    Ok(checks)
}

fn rates(bed: &Bed, interrupt: &Interrupt) -> anyhow::Result<Vec<Check>> {
    let mut checks = Vec::new();
    for (settings, mbit) in
        [("police=50mbit:64k", 50.0), ("rate=10mbit", 10.0), ("rate=100mbit", 100.0), ("rate=500mbit", 500.0)]
    {
        bed.set(&format!("clear {settings} queue=20ms"))?;
        let frame = f64::from(HEADERS) + 1_472.0;
        // The sender offers 15 % more than the rate, so that the wire's rate is the limit.
        let per_second = 1.15 * mbit * 1e6 / 8.0 / frame;
        let before = bed.state()?;
        let heard = traffic::carry(bed, Stream::lasting(2.0, per_second, FULL), interrupt)?;
        let after = bed.state()?;
        let found = heard.mbit_per_s(HEADERS);
        let count = |account: &Account| account.queue_full + account.policed;
        let dropped = count(&after.up.account) - count(&before.up.account);
        checks.push(Check {
            asked: format!("{settings}, 115 % offered"),
            found: format!("{found:.2} Mbit/s, {dropped} dropped"),
            allowed: "2 %",
            passed: (found - mbit).abs() <= mbit * 0.02,
        });
    }
    Ok(checks)
}

/// Checks that the wire, which is one thread, carries 1 Gbit/s of full frames on one core.
fn capacity(bed: &Bed, interrupt: &Interrupt) -> anyhow::Result<Vec<Check>> {
    let frame = f64::from(HEADERS) + 1_472.0;
    let per_second = 1.25e9 / 8.0 / frame;
    let before = bed.state()?;
    let heard = traffic::carry(bed, Stream::lasting(3.0, per_second, FULL), interrupt)?;
    let after = bed.state()?;
    let gbit = heard.mbit_per_s(HEADERS) / 1e3;
    let cpu = after.cpu_seconds - before.cpu_seconds;
    let bits = float(after.up.account.delivered_bytes - before.up.account.delivered_bytes) * 8.0;
    let missed = after.up.missed - before.up.missed;
    Ok(vec![Check {
        asked: "1 Gbit/s of 1500-byte frames on one core, 1.25 offered".to_owned(),
        found: format!(
            "{gbit:.3} Gbit/s; {} Gbit/s for each second of its CPU time; {missed} missed",
            number(bits / 1e9 / cpu.max(1e-9))
        ),
        allowed: "at least 1",
        // The wire must carry at least 1 Gbit per second of CPU time.
        passed: gbit >= 1.0 && bits / 1e9 >= cpu,
    }])
}

fn losses(bed: &Bed, interrupt: &Interrupt) -> anyhow::Result<Vec<Check>> {
    let mut checks = Vec::new();
    // In the burst model, the share of frames in the bad state is enter / (enter + leave).
    for (settings, share) in [("loss=5%", 0.05), ("loss=0 burst=2%:18%", 0.1)] {
        bed.set(settings)?;
        let before = bed.state()?;
        let heard = traffic::carry(
            bed,
            // With `waits`, only the wire loses packets, because the receiver's losses are compared with the wire's own count.
            Stream { payload: SMALL, packets: MILLION, per_second: 110_000.0, waits: true },
            interrupt,
        )?;
        let after = bed.state()?;
        let (old, new) = (before.up.account, after.up.account);
        let lost = 1.0 - heard.count() / f64::from(MILLION);
        let by_wire = new.lost + new.lost_in_burst - old.lost - old.lost_in_burst;
        let unexplained = f64::from(MILLION) - heard.count() - float(by_wire);
        checks.push(Check {
            asked: format!("{settings} ({} %) over 10^6 frames", number(share * 100.0)),
            found: format!("{:.4} % not received, {unexplained} of them not by the wire", lost * 100.0),
            allowed: "2 %",
            passed: (lost - share).abs() <= share * 0.02 && unexplained == 0.0,
        });
    }
    Ok(checks)
}

/// Checks that two wires with the same seed lose the same frames, and that a wire with another seed loses
/// others.
fn repetition(_: &Bed, interrupt: &Interrupt) -> anyhow::Result<Vec<Check>> {
    const PACKETS: u32 = 50_000;
    let heard = |seed: u64| -> anyhow::Result<HashSet<u32>> {
        // Each run needs a new wire, because the seed can only be set at the start of a wire.
        let bed = Bed::create(seed)?;
        bed.set("loss=3% burst=1%:30%")?;
        let stream = Stream { payload: SMALL, packets: PACKETS, per_second: 60_000.0, waits: true };
        Ok(traffic::carry(&bed, stream, interrupt)?.numbers)
    };
    let (first, second, other) = (heard(1)?, heard(1)?, heard(2)?);
    Ok(vec![Check {
        asked: "the same seed loses the same frames".to_owned(),
        found: format!(
            "{} and {} of {PACKETS} received, {} differ; with another seed {} differ",
            first.len(),
            second.len(),
            first.symmetric_difference(&second).count(),
            first.symmetric_difference(&other).count()
        ),
        allowed: "0 differ",
        passed: first == second && first != other,
    }])
}

/// Checks that every frame of both directions is accounted for.
fn balance(state: &State) -> Check {
    let (up, down) = (&state.up, &state.down);
    Check {
        asked: "every frame accounted for".to_owned(),
        found: format!(
            "up {} in = {} out + {} dropped; down {} in = {} out + {} dropped",
            up.account.received,
            up.account.delivered,
            up.account.dropped(),
            down.account.received,
            down.account.delivered,
            down.account.dropped(),
        ),
        allowed: "exact",
        passed: up.account.is_balanced() && down.account.is_balanced(),
    }
}
