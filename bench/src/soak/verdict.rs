//! The verdict on a soak: a pure function of the measurements.

use serde::Serialize;
use statrs::statistics::Statistics as _;

use super::{
    daemon::Balance,
    load::Carried,
    sample::{ProcessSample, Sample},
};
use crate::stats::float;

/// The warm-up as a share of the run, and its maximum in seconds.
const WARM_UP_SHARE: f64 = 0.2;
const WARM_UP_SECONDS: f64 = 60.0;
/// The share by which the peak memory use may exceed that of the first sample after warm-up.
const GROWTH_SHARE: f64 = 0.1;
/// The limit for the growth of memory in MiB per hour. The growth is the slope of the regression line through the samples after
/// warm-up.
const GROWTH_MIB_PER_HOUR: f64 = 1.0;
/// The shortest run whose growth per hour is judged: half an hour, minus the time after the last sample. In a run of ten minutes,
/// a single step of 150 KiB would exceed the limit.
const GROWTH_SECONDS: f64 = 1_780.0;
/// The capacity after the load must be at least this share of that before the load. The speed of the machine varies by less.
const LEFT_SHARE: f64 = 0.5;
/// The share of the offered TCP traffic that must arrive. The default load of 70 % of the capacity is not an overload.
const CARRIED_SHARE: f64 = 0.9;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) passed: bool,
    /// The verdict and its figures as text.
    pub(super) sentence: String,
    /// The slope of the regression line through the samples after warm-up.
    pub(super) client_growth_mib_per_hour: f64,
    pub(super) exit_growth_mib_per_hour: f64,
    /// Whether the run was long enough to judge the growth per hour.
    pub(super) growth_is_judged: bool,
}

/// Judges a soak. `before` and `after` are the capacity in Mbit/s before and after the load.
pub(super) fn judge(
    samples: &[Sample],
    [before, after]: [f64; 2],
    carried: &Carried,
    client: &Balance,
    exit: &Balance,
) -> Verdict {
    let seconds = samples.last().map_or(0.0, |sample| sample.seconds);
    let warm_up = (seconds * WARM_UP_SHARE).min(WARM_UP_SECONDS);
    let kept: Vec<&Sample> = samples.iter().filter(|sample| sample.seconds >= warm_up).collect();
    let growth_is_judged = seconds >= GROWTH_SECONDS;
    let ends =
        [End::new("client", &kept, |sample| sample.client), End::new("exit", &kept, |sample| sample.exit)];
    let growth = ends.each_ref().map(End::growth_mib_per_hour);

    let mut faults = Vec::new();
    if kept.len() < 3 {
        faults.push("it was too short for a judgement".to_owned());
    }
    for (end, growth) in ends.iter().zip(growth) {
        faults.extend(end.faults());
        if growth_is_judged && growth > GROWTH_MIB_PER_HOUR {
            faults.push(format!("the {}'s memory grew by {growth:.1} MiB an hour", end.name));
        }
    }
    faults.extend(faults_of_balance("client", client));
    faults.extend(faults_of_balance("exit", exit));
    faults.extend(faults_of_load([before, after], carried));

    let drops = client.drops.values().chain(exit.drops.values()).sum::<u64>();
    // Only the first two sums count packets. The other sums count the same traffic as datagrams.
    let packets: u64 = client.sums.iter().take(2).map(|sum| sum.left).sum();
    let sentence = if faults.is_empty() {
        let growth = if growth_is_judged {
            // Adding 0 removes the sign of a negative zero.
            let [client, exit] = growth.map(|growth| (growth * 10.0).round() / 10.0 + 0.0);
            format!("which is {client:+} and {exit:+} MiB an hour")
        } else {
            "too short to be judged by the hour".to_owned()
        };
        let [client, exit] = ends.each_ref().map(End::rss_range);
        format!(
            "passed: {seconds:.0} s at {:.0} Mbit/s of TCP and {:.0} of UDP, of a capacity of {before:.0} before the \
             load and {after:.0} after it, {packets} packets through the client's TUN, all accounted for, {drops} dropped; \
             memory {client} (client) and {exit} (exit), {growth}, no more descriptors or threads, no warning, {} short \
             connections whole",
            carried.tcp_mbit_per_s, carried.udp_offered_mbit_per_s, carried.connections,
        )
    } else {
        format!(
            "failed after {seconds:.0} s: {}; {drops} of {packets} packets were dropped",
            faults.join("; ")
        )
    };
    let [client_growth_mib_per_hour, exit_growth_mib_per_hour] = growth;
    Verdict {
        passed: faults.is_empty(),
        sentence,
        client_growth_mib_per_hour,
        exit_growth_mib_per_hour,
        growth_is_judged,
    }
}

/// One end's samples after warm-up, each with its time in seconds.
struct End {
    name: &'static str,
    samples: Vec<(f64, ProcessSample)>,
}

impl End {
    fn new(name: &'static str, samples: &[&Sample], of: fn(&Sample) -> ProcessSample) -> Self {
        Self { name, samples: samples.iter().map(|sample| (sample.seconds, of(sample))).collect() }
    }

    fn faults(&self) -> Vec<String> {
        let name = self.name;
        // Values are compared to the first sample after warm-up, so that memory that a daemon allocates at its start does not
        // count as growth.
        let first = self.samples.first().map(|(_, first)| *first).unwrap_or_default();
        let most =
            |of: fn(&ProcessSample) -> u64| self.samples.iter().map(|(_, one)| of(one)).max().unwrap_or(0);
        let mut faults = Vec::new();
        let rss = most(|sample| sample.rss_kib);
        if float(rss) > float(first.rss_kib) * (1.0 + GROWTH_SHARE) {
            faults.push(format!("the {name}'s memory grew from {} to {rss} KiB", first.rss_kib));
        }
        let descriptors = most(|sample| sample.descriptors);
        if descriptors > first.descriptors {
            faults.push(format!("the {name}'s descriptors rose from {} to {descriptors}", first.descriptors));
        }
        let threads = most(|sample| sample.threads);
        if threads > first.threads {
            faults.push(format!("the {name}'s threads rose from {} to {threads}", first.threads));
        }
        faults
    }

    /// Returns the slope of the regression line through the samples (least squares).
    fn growth_mib_per_hour(&self) -> f64 {
        let point = |(seconds, one): &(f64, ProcessSample)| (seconds / 3_600.0, float(one.rss_kib) / 1_024.0);
        let (hours, mib): (Vec<_>, Vec<_>) = self.samples.iter().map(point).unzip();
        let spread = hours.iter().variance();
        // With fewer than two samples, the variance is NaN and the comparison is false.
        if spread > 0.0 { hours.iter().covariance(mib.iter()) / spread } else { 0.0 }
    }

    fn rss_range(&self) -> String {
        let rss = || self.samples.iter().map(|(_, one)| one.rss_kib);
        format!("{}-{} KiB", rss().min().unwrap_or(0), rss().max().unwrap_or(0))
    }
}

fn faults_of_balance(name: &str, balance: &Balance) -> Vec<String> {
    let mut faults = Vec::new();
    if !balance.holds() {
        faults.push(format!("the {name}'s counters do not add up"));
    }
    if let Some(warning) = balance.first_warnings.first() {
        faults.push(format!("the {name} logged {} warnings, the first: {warning}", balance.warnings));
    }
    faults
}

fn faults_of_load([before, after]: [f64; 2], carried: &Carried) -> Vec<String> {
    let mut faults = Vec::new();
    if after < before * LEFT_SHARE {
        faults.push(format!("the capacity fell from {before:.0} to {after:.0} Mbit/s"));
    }
    // If the machine has become slower, the required rate is reduced in proportion to the capacity.
    let due = carried.tcp_offered_mbit_per_s * (after / before).min(1.0);
    if carried.tcp_mbit_per_s < due * CARRIED_SHARE {
        faults.push(format!(
            "TCP got {:.0} of {:.0} Mbit/s offered, at a capacity of {before:.0} Mbit/s before and {after:.0} after it",
            carried.tcp_mbit_per_s, carried.tcp_offered_mbit_per_s
        ));
    }
    if carried.connections == 0 || carried.connections_failed + carried.connections_damaged > 0 {
        faults.push(format!(
            "of the short connections, {} were made, {} failed and {} got back wrong bytes",
            carried.connections, carried.connections_failed, carried.connections_damaged
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{super::daemon::Sum, *};

    const STEADY: [f64; 2] = [150.0, 150.0];

    /// Returns the samples of a run of ten minutes.
    fn samples(change: impl Fn(f64, &mut ProcessSample)) -> Vec<Sample> {
        samples_of(600, change)
    }

    fn samples_of(seconds: u32, change: impl Fn(f64, &mut ProcessSample)) -> Vec<Sample> {
        (0..seconds / 5)
            .map(|index| {
                let seconds = f64::from(index) * 5.0;
                let mut client = ProcessSample { rss_kib: 14_000, descriptors: 30, threads: 4 };
                change(seconds, &mut client);
                let exit = ProcessSample { rss_kib: 13_000, descriptors: 30, threads: 4 };
                Sample { seconds, client, exit, ..Sample::default() }
            })
            .collect()
    }

    fn carried() -> Carried {
        Carried { tcp_offered_mbit_per_s: 100.0, tcp_mbit_per_s: 99.0, connections: 5, ..Carried::default() }
    }

    fn balance(left: u64) -> Balance {
        Balance { sums: vec![Sum { name: "x", left, right: 7 }], ..Balance::default() }
    }

    #[test]
    fn steady_run_passes_with_its_figures() {
        let verdict = judge(&samples(|_, _| ()), STEADY, &carried(), &balance(7), &balance(7));
        assert!(verdict.passed && verdict.sentence.contains("14000-14000 KiB"), "{}", verdict.sentence);
        assert!(verdict.client_growth_mib_per_hour.abs() < 1e-9);
    }

    #[test]
    fn growth_after_warm_up_fails_and_before_it_does_not() {
        let early = samples(|seconds, client| client.rss_kib = if seconds < 50.0 { 5_000 } else { 14_000 });
        assert!(judge(&early, STEADY, &carried(), &balance(7), &balance(7)).passed);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let late = samples(|seconds, client| client.rss_kib = 14_000 + (seconds * 10.24) as u64);
        let verdict = judge(&late, STEADY, &carried(), &balance(7), &balance(7));
        assert!(!verdict.passed && verdict.sentence.contains("client's memory grew"), "{}", verdict.sentence);
        assert!((verdict.client_growth_mib_per_hour - 36.0).abs() < 0.1, "{verdict:?}");
    }

    /// Returns the verdict on a client whose memory use starts at 14,000 KiB and grows.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
    fn growing(seconds: u32, mib_per_hour: f64) -> Verdict {
        let grown = |at: f64| 14_000 + (at / 3_600.0 * mib_per_hour * 1_024.0) as u64;
        let samples = samples_of(seconds, |at, client| client.rss_kib = grown(at));
        judge(&samples, STEADY, &carried(), &balance(7), &balance(7))
    }

    #[test]
    fn growth_by_the_hour_is_judged_from_half_an_hour_on() {
        let hour = growing(3_600, 1.2);
        assert!(!hour.passed && hour.growth_is_judged, "{hour:?}");
        assert!(hour.sentence.contains("the client's memory grew by 1.2 MiB an hour"), "{}", hour.sentence);
        assert!(!growing(1_800, 1.2).passed);
        let little = growing(3_600, 0.8);
        assert!(little.passed && little.sentence.contains("+0.8 and +0 MiB an hour"), "{}", little.sentence);
    }

    #[test]
    fn short_run_says_that_growth_by_the_hour_is_not_judged() {
        let short = growing(600, 1.2);
        assert!(short.passed && !short.growth_is_judged, "{short:?}");
        assert!(short.sentence.contains("too short to be judged by the hour"), "{}", short.sentence);
        // As growth per hour, this step would exceed the limit.
        let step = samples(|at, client| client.rss_kib = if at < 300.0 { 14_000 } else { 14_150 });
        let verdict = judge(&step, STEADY, &carried(), &balance(7), &balance(7));
        assert!(verdict.passed && verdict.client_growth_mib_per_hour > 1.0, "{verdict:?}");
    }

    #[test]
    fn warm_up_is_no_growth() {
        let early = samples_of(3_600, |at, client| client.rss_kib = if at < 60.0 { 12_000 } else { 14_000 });
        let verdict = judge(&early, STEADY, &carried(), &balance(7), &balance(7));
        assert!(verdict.passed && verdict.client_growth_mib_per_hour.abs() < 1e-9, "{verdict:?}");
    }

    #[test]
    fn machine_that_became_slower_is_asked_for_less_and_a_faster_one_for_no_more() {
        let of = |after| {
            let carried = Carried { tcp_mbit_per_s: 80.0, ..carried() };
            judge(&samples(|_, _| ()), [150.0, after], &carried, &balance(7), &balance(7)).passed
        };
        assert!(!of(150.0) && !of(300.0) && of(120.0) && !of(70.0));
        let steady = judge(&samples(|_, _| ()), [150.0, 300.0], &carried(), &balance(7), &balance(7));
        assert!(steady.passed, "{}", steady.sentence);
    }

    #[test]
    fn each_fault_is_named() {
        let steady = samples(|_, _| ());
        let of = |carried: &Carried, client: &Balance| {
            judge(&steady, STEADY, carried, client, &balance(7)).sentence
        };
        assert!(of(&carried(), &balance(8)).contains("client's counters do not add up"));
        let warned = Balance { warnings: 2, first_warnings: vec!["WARN full".to_owned()], ..balance(7) };
        assert!(of(&carried(), &warned).contains("2 warnings, the first: WARN full"));
        assert!(of(&Carried { tcp_mbit_per_s: 80.0, ..carried() }, &balance(7)).contains("80 of 100 Mbit/s"));
        assert!(
            of(&Carried { connections_damaged: 1, ..carried() }, &balance(7))
                .contains("1 got back wrong bytes")
        );
        let descriptors = samples(|seconds, client| client.descriptors += u64::from(seconds > 300.0));
        let verdict = judge(&descriptors, STEADY, &carried(), &balance(7), &balance(7));
        assert!(verdict.sentence.contains("descriptors rose from 30 to 31"), "{}", verdict.sentence);
        assert!(!judge(&steady[..2], STEADY, &carried(), &balance(7), &balance(7)).passed);
    }
}
