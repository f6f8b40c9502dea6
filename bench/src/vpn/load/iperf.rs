//! TCP by iperf3. The iperf3 servers run on the client's host, and the iperf3 clients on the exit's host. The receiver counts the
//! bytes.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::super::{
    process::{self, Process},
    topology::{Topology, wait_for},
};
use crate::{interrupt::Interrupt, way::Way};

/// The ports of the two servers. Each direction has its own server, so that a test of both directions can use two iperf3
/// processes.
const PORTS: [u16; 2] = [5201, 5202];
const START: Duration = Duration::from_secs(5);
/// A test that fails within this time has not started yet, and can be repeated.
const AT_ONCE: Duration = Duration::from_millis(800);
/// Extra time for connecting and for exchanging results through a full tunnel.
const SLACK: Duration = Duration::from_secs(15);

/// Two iperf3 servers on the client's host.
#[derive(Debug)]
pub(crate) struct Iperf {
    _servers: [Process; 2],
    address: String,
}

impl Iperf {
    /// Starts the servers. `address` is the client's address in the tunnel.
    pub(crate) fn start(topology: &Topology, address: &str, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let server = |port: u16| {
            let mut command = topology.client.command("iperf3");
            // The server's output goes to a file. Without --forceflush, the line for which this function waits would stay in
            // iperf3's buffer.
            command.args(["--server", "--forceflush", "--port", &port.to_string()]);
            let mut server = Process::start(&format!("iperf3-{port}"), topology.path(), &mut command)?;
            server.wait_for_output("listening", START, interrupt)?;
            anyhow::Ok(server)
        };
        let [first, second] = PORTS;
        Ok(Self { _servers: [server(first)?, server(second)?], address: address.to_owned() })
    }

    /// Sends data over `flows` connections, and returns the number of bytes received.
    pub(crate) fn carry(
        &self,
        topology: &Topology,
        flows: u32,
        way: Way,
        seconds: u32,
        interrupt: &Interrupt,
    ) -> anyhow::Result<u64> {
        let [for_up, for_down] = PORTS;
        let port = if way == Way::Up { for_up } else { for_down };
        let limit = Duration::from_secs(seconds.into()) + SLACK;
        let run = || {
            let mut command = iperf_client(topology, &self.address, seconds.into(), flows);
            command.args(["--port", &port.to_string()]);
            // iperf3's client runs on the exit's host, so data to the exit needs --reverse.
            if way == Way::Up {
                command.arg("--reverse");
            }
            // With --json, iperf3 reports errors in the JSON, so the output is read even if iperf3 fails.
            received_bytes(&process::run_whatever_it_returns(&mut command, limit, interrupt)?.output)
        };
        wait_for("a free iperf3 server", START, interrupt, || {
            // `wait_for` may call this closure several times, so the time is measured for each attempt.
            let start = Instant::now();
            match run() {
                Ok(bytes) => Ok(Some(bytes)),
                // After a test, the server needs some time until it accepts the next one, so an early error of this kind leads to
                // another attempt. Any other error is a failure.
                Err(error) if start.elapsed() < AT_ONCE && is_between_tests(&error.to_string()) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

/// Returns whether the error means that iperf3's server was not ready for another test yet.
fn is_between_tests(error: &str) -> bool {
    ["busy", "reset by peer", "refused"].iter().any(|sign| error.contains(sign))
}

/// Returns the receiver's count of bytes from the output of `iperf3 --json`.
fn received_bytes(json: &str) -> anyhow::Result<u64> {
    let received = iperf_result(json)?.pointer("/end/sum_received/bytes").and_then(Value::as_u64);
    received.context("iperf3 printed no sum of received bytes")
}

/// Returns the command of an iperf3 client on the exit's host. It sends to the client's host, and receives with `--reverse`.
pub(crate) fn iperf_client(topology: &Topology, address: &str, seconds: u64, flows: u32) -> Command {
    let mut command = topology.exit.command("iperf3");
    // --connect-timeout is in milliseconds.
    command.args(["--client", address, "--json", "--connect-timeout", "3000"]);
    command.args(["--time", &seconds.to_string(), "--parallel", &flows.to_string()]);
    command
}

/// Parses the output of `iperf3 --json`. Fails if iperf3 reports an error in it.
pub(crate) fn iperf_result(json: &str) -> anyhow::Result<Value> {
    let result: Value = serde_json::from_str(json).context("iperf3 printed no JSON")?;
    if let Some(error) = result.get("error").and_then(Value::as_str) {
        bail!("iperf3: {error}");
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_receiver() {
        let json = r#"{"start": {}, "end": {"sum_sent": {"bytes": 2000, "bits_per_second": 9.0},
            "sum_received": {"start": 0, "end": 3.0, "bytes": 1234567890123, "bits_per_second": 8.0}}}"#;
        assert_eq!(received_bytes(json).unwrap(), 1_234_567_890_123);
    }

    #[test]
    fn failure_is_told_in_iperfs_words() {
        let busy = r#"{"start": {}, "end": {}, "error": "error - the server is busy running a test. try again later"}"#;
        let error = received_bytes(busy).unwrap_err().to_string();
        assert!(is_between_tests(&error), "{error}");
        assert!(!is_between_tests("iperf3: control socket has closed unexpectedly"));
        assert!(received_bytes("").unwrap_err().to_string().contains("no JSON"));
        assert!(received_bytes(r#"{"end": {}}"#).unwrap_err().to_string().contains("no sum"));
    }
}
