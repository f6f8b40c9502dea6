//! Round-trip times by ICMP echo: the other end answers in its kernel, and ping takes the kernel's receive times, so
//! that what is measured is the tunnel.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::Context as _;

use super::super::{
    process::Process,
    topology::{Topology, wait_for},
};
use crate::interrupt::Interrupt;

/// Seconds between echo requests.
const INTERVAL: &str = "0.01";

/// Echo requests from the client's host, sent in the background.
#[derive(Debug)]
pub(crate) struct Ping {
    process: Process,
}

impl Ping {
    /// Starts to ping for a time.
    ///
    /// # Errors
    /// A sentence when ping cannot be started.
    pub(crate) fn start(topology: &Topology, address: &str, seconds: u32) -> anyhow::Result<Self> {
        let mut command = topology.client.command("ping");
        command.args(["-n", "-i", INTERVAL, "-w", &seconds.to_string(), address]);
        Ok(Self { process: Process::start("ping", topology.path(), &mut command)? })
    }

    /// Waits for its end and returns the times in milliseconds.
    ///
    /// # Errors
    /// A sentence when nothing came back.
    pub(crate) fn finish(mut self, seconds: u32, interrupt: &Interrupt) -> anyhow::Result<Vec<f64>> {
        let limit = Duration::from_secs(seconds.into()) + Duration::from_secs(5);
        wait_for("the end of ping", limit, interrupt, || Ok(self.process.check().is_err().then_some(())))?;
        let times: Vec<f64> = self.process.output().lines().filter_map(milliseconds).collect();
        anyhow::ensure!(!times.is_empty(), "no echo reply came back");
        Ok(times)
    }
}

/// Pings until the first reply comes back.
///
/// # Errors
/// A sentence when none does within `limit`, or the user interrupts.
pub(crate) fn first_reply(
    topology: &Topology,
    address: &str,
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut command = topology.client.command("ping");
    command.args(["-n", "-i", INTERVAL, address]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start ping")?;
    let output = child.stdout.take().context("ping has an output")?;
    let (tell, told) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        if lines.any(|line| milliseconds(&line).is_some()) {
            // Nobody listens once the limit is over.
            let _ = tell.send(());
        }
    });
    let answered =
        wait_for(&format!("a reply from {address}"), limit, interrupt, || Ok(told.try_recv().ok()));
    // It may have ended by itself, as without a route.
    let _ = child.kill();
    let _ = child.wait();
    let _ = reader.join();
    answered
}

/// The time of a reply, from a line of ping's output.
fn milliseconds(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once(" time=")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_replies_alone() {
        assert_eq!(milliseconds("64 bytes from 10.98.0.1: icmp_seq=2 ttl=64 time=0.213 ms"), Some(0.213));
        assert_eq!(milliseconds("PING 10.98.0.1 (10.98.0.1) 56(84) bytes of data."), None);
        assert_eq!(milliseconds("From 10.98.0.2 icmp_seq=1 Destination Host Unreachable"), None);
        assert_eq!(milliseconds("10 packets transmitted, 10 received, 0% packet loss, time 92ms"), None);
    }
}
