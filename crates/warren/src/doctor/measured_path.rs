//! `warren doctor --path`: measures the path of a running tunnel to its exit, through the tunnel.
//!
//! ICMP echoes go to the exit's inner address, and the exit's kernel answers them. The losses on the path are determined from the
//! counters of the QUIC connections: the packets that this side has sent and lost, and the packet numbers of the exit.

mod counts;
mod echo;
mod found;
mod words;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use warren_control::Request;
use warren_control::status::{State, Status};
use warren_daemon::directories::Directories;
use warren_daemon::exit_code::{ExitCode, Failure};
use warren_daemon::output;

use self::counts::Change;
use self::echo::{Echoes, FLOWS, LEAST, Series, header_length};
use self::found::{BothWays, EchoCount, Measured, Mtu, Rate, RoundTrip};
use crate::cli::one_daemon::ask_one;

/// The durations of the phases. Including pauses, a measurement takes less than ten seconds.
const AT_REST: Duration = Duration::from_millis(1_500);
const COUNTING: Duration = Duration::from_millis(3_500);
const SETTLING: Duration = Duration::from_millis(500);
const UNDER_LOAD: Duration = Duration::from_millis(3_500);
/// How often the load is adapted to the rate that the path carries.
const STEP: Duration = Duration::from_millis(250);

/// The small echo requests from which round-trip times and losses are measured.
const PROBE: Series = Series { flows: (0, 1), length: LEAST, interval: Duration::from_millis(20) };
const COUNTED: Series = Series { flows: (0, FLOWS), length: LEAST, interval: Duration::from_micros(2_500) };

/// The first load and the largest load, in bits per second.
const FIRST_RATE: f64 = 2e6;
const LARGEST_RATE: f64 = 400e6;
/// The load ends early after this many bytes.
const MOST_BYTES: u64 = 64_000_000;
/// The load exceeds the rate that the path carries by this factor.
const EXCESS: f64 = 1.5;
/// A measured rate counts as the path's limit if the offered load was more than this factor higher.
const LIMITED: f64 = 1.15;

/// Measures, and prints the results.
///
/// # Errors
/// [`ExitCode::NotRunning`] if there is no tunnel, and when the exit answers no echo.
pub(super) async fn run(directories: &Directories, profile: Option<&str>, json: bool) -> anyhow::Result<()> {
    let (name, first) = status(directories, profile).await?;
    let mut measurement = Measurement::of(directories, name, first)?;
    if !json {
        output::note(format!("measuring the path of {} for ten seconds", measurement.profile));
    }
    let measured = measurement.measure().await?;
    if json { output::print_json(&measured) } else { output::print(&words::text(&measured)) }
}

async fn status(directories: &Directories, profile: Option<&str>) -> anyhow::Result<(String, Status)> {
    let (name, value) = ask_one(directories, profile, &Request::Status).await?;
    Ok((name, serde_json::from_value(value)?))
}

/// A measurement under way.
struct Measurement<'a> {
    directories: &'a Directories,
    profile: String,
    first: Status,
    to: IpAddr,
    tunnel_mtu: u16,
    echoes: Echoes,
}

/// The measurements of the load phase: one element for each step.
struct Load {
    began: Instant,
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
struct Step {
    seconds: f64,
    offered: u64,
    delivered: f64,
    answered: u64,
}

impl<'a> Measurement<'a> {
    fn of(directories: &'a Directories, name: String, first: Status) -> anyhow::Result<Self> {
        let Some(client) = &first.client else {
            let sentence = "the path is measured from a client's side; name a profile that is up here";
            return Err(Failure::new(ExitCode::Usage, sentence).into());
        };
        let Some((session, device)) = client.session.as_ref().zip(first.device.as_ref()) else {
            return Err(down(&name, first.state).into());
        };
        if first.state != State::Up {
            return Err(down(&name, first.state).into());
        }
        // The addresses in the status have a prefix length, which is removed.
        let own = |text: &Option<String>| text.as_ref()?.split('/').next()?.parse::<IpAddr>().ok();
        let ipv4 = own(&session.ipv4).zip(session.gateway_ipv4.map(IpAddr::V4));
        let ipv6 = || own(&session.ipv6).zip(session.gateway_ipv6.map(IpAddr::V6));
        let (from, to) = ipv4.or_else(ipv6).context("the tunnel has no address that an echo could go to")?;
        let echoes = Echoes::new(&device.name, from, to)
            .with_context(|| format!("cannot send ICMP echoes through {}; run this as root", device.name))?;
        Ok(Self { directories, profile: name, to, tunnel_mtu: session.mtu, echoes, first })
    }

    async fn measure(&mut self) -> anyhow::Result<Measured> {
        let start = Instant::now();
        self.echoes.exchange(&[PROBE], AT_REST).await;
        if self.echoes.tally.answered == 0 {
            anyhow::bail!(
                "the exit's inner address {} answers no ICMP echo; check that its firewall lets clients ping it",
                self.to
            );
        }
        // Counting begins only after the idle phase. By then, even a tunnel that has just come up has all of its connections.
        let begun = self.status().await?;
        self.echoes.exchange(&[COUNTED], COUNTING).await;
        let counted = self.echoes.tally.sent;
        // This leaves time for late replies and repaired packets.
        self.echoes.exchange(&[], SETTLING).await;
        let answered = self.echoes.tally.answered.min(counted);
        let at_rest = self.echoes.round_trips_since(start);
        let settled = self.status().await?;
        let change = Change::between(&begun, &settled);

        let load = self.load(&settled).await?;
        // The first quarter is left out, because the load is still being adapted to the path.
        let under_load = self.echoes.round_trips_since(load.began + UNDER_LOAD / 4);
        self.echoes.exchange(&[], SETTLING).await;
        let client = self.first.client.as_ref();
        Ok(Measured {
            profile: self.profile.clone(),
            exit: client.map(|client| client.exit.endpoint.clone()).unwrap_or_default(),
            seconds: start.elapsed().as_secs_f64(),
            round_trip: RoundTrip::of(&at_rest, &under_load),
            loss: BothWays { to_exit: change.to_exit, from_exit: change.from_exit },
            echoes: EchoCount { sent: counted, answered },
            mtu: Mtu {
                path: settled.connections.iter().map(|one| one.mtu).min().unwrap_or_default(),
                tunnel: self.tunnel_mtu,
            },
            rate: load.rates(),
            traffic: BothWays {
                to_exit: self.echoes.tally.sent_bytes,
                from_exit: self.echoes.tally.answered_bytes,
            },
            // This is from the status before the measurement, because later statuses include the measurement's own traffic.
            other_bits_per_second: self.first.rates.bits_per_second_out + self.first.rates.bits_per_second_in,
            repairs: settled.connections.iter().any(|one| one.repair.is_on),
        })
    }

    /// Fills the path with echoes of full size, somewhat faster than the path carries them.
    async fn load(&mut self, settled: &Status) -> anyhow::Result<Load> {
        let began = Instant::now();
        let first_bytes = self.echoes.tally.sent_bytes;
        let length = usize::from(self.tunnel_mtu) - header_length(self.to);
        let mut rate = FIRST_RATE;
        let mut before = (Instant::now(), settled.clone());
        let mut steps: Vec<Step> = Vec::new();
        while began.elapsed() < UNDER_LOAD && self.echoes.tally.sent_bytes - first_bytes < MOST_BYTES {
            let tally = self.echoes.tally;
            let interval = Duration::from_secs_f64(8.0 * f64::from(self.tunnel_mtu) / rate);
            // The load does not use the first flow, which is for the small echo requests.
            let load = Series { flows: (1, FLOWS - 1), length, interval };
            self.echoes.exchange(&[PROBE, load], STEP).await;
            let after = (Instant::now(), self.status().await?);
            let change = Change::between(&before.1, &after.1);
            let step = Step {
                seconds: after.0.duration_since(before.0).as_secs_f64(),
                offered: self.echoes.tally.sent_bytes - tally.sent_bytes,
                // This side does not know how much arrived at the exit, so it is estimated from the lost packets.
                delivered: change.bytes_out as f64 * (1.0 - change.to_exit.percent / 100.0),
                answered: self.echoes.tally.answered_bytes - tally.answered_bytes,
            };
            before = after;
            steps.push(step);
            let carried = step.delivered.max(step.answered as f64) * 8.0 / step.seconds;
            // In one step, the rate is reduced by at most `EXCESS`, even if the path has carried much less.
            rate = (EXCESS * carried).max(rate / EXCESS).clamp(FIRST_RATE, LARGEST_RATE);
        }
        Ok(Load { began, steps })
    }

    async fn status(&self) -> anyhow::Result<Status> {
        let (_, status) = status(self.directories, Some(&self.profile)).await?;
        if status.state != State::Up {
            return Err(down(&self.profile, status.state).into());
        }
        Ok(status)
    }
}

impl Load {
    /// Returns the rates in the second half of the load phase, in which the load is adapted to the path.
    fn rates(&self) -> BothWays<Rate> {
        let late = self.steps.get(self.steps.len() / 2..).unwrap_or_default();
        // The time is at least 1 ms, because the rates are divided by it.
        let seconds: f64 = late.iter().map(|step| step.seconds).sum::<f64>().max(1e-3);
        let per_second = |of: fn(&Step) -> f64| 8.0 * late.iter().map(of).sum::<f64>() / seconds;
        let offered = per_second(|step| step.offered as f64);
        let to_exit = per_second(|step| step.delivered);
        let from_exit = per_second(|step| step.answered as f64);
        // A reply is as large as its request, so the rate that arrives at the exit is also the load of the return path.
        BothWays {
            to_exit: Rate { bits_per_second: to_exit, is_limit: offered > LIMITED * to_exit },
            from_exit: Rate { bits_per_second: from_exit, is_limit: to_exit > LIMITED * from_exit },
        }
    }
}

fn down(name: &str, state: State) -> Failure {
    let sentence = format!(
        "{name} is {}, so there is no tunnel to measure; `warren status {name}` says more",
        state.name()
    );
    Failure::new(ExitCode::NotRunning, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_limit_only_if_more_was_offered() {
        let step = |offered, delivered, answered| Step { seconds: 0.25, offered, delivered, answered };
        let load = |step| Load { began: Instant::now(), steps: vec![step; 8] };

        let both = load(step(2_000_000, 1_000_000.0, 500_000)).rates();
        assert!((both.to_exit.bits_per_second - 32e6).abs() < 1.0 && both.to_exit.is_limit);
        assert!((both.from_exit.bits_per_second - 16e6).abs() < 1.0 && both.from_exit.is_limit);

        let neither = load(step(1_000_000, 1_000_000.0, 990_000)).rates();
        assert!(!neither.to_exit.is_limit && !neither.from_exit.is_limit);
    }
}
