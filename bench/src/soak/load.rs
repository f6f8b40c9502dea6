//! The load of a soak: four TCP flows and one UDP stream at fixed rates, and short connections.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;

use crate::{
    interrupt::Interrupt,
    namespace::{finished, join},
    vpn::{
        load::{Rate, Sizes, Stream, carry, iperf_client, iperf_result},
        plan::Bed,
        process,
    },
};

pub(super) const FLOWS: u32 = 4;
/// The share of UDP in the load.
const UDP_SHARE: f64 = 0.1;
const UDP_PAYLOAD: u16 = 1_200;
/// The port of the short connections, which iperf3 does not use.
const PORT: u16 = 5_300;
/// Pause between two short connections.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes that each short connection sends and must get back.
const ECHO: usize = 16_384;
/// Timeout of an echo. An echo takes longer only if the tunnel carries no packets.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time that iperf3 may run beyond its duration, because it ends slowly under load.
const SLACK: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// The traffic that was sent and the traffic that arrived.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Carried {
    pub(super) tcp_offered_mbit_per_s: f64,
    pub(super) tcp_mbit_per_s: f64,
    pub(super) tcp_retransmits: u64,
    pub(super) udp_offered_mbit_per_s: f64,
    pub(super) udp_sent: u64,
    pub(super) udp_received: u64,
    pub(super) connections: u64,
    pub(super) connections_failed: u64,
    /// Number of connections that received different bytes than they sent.
    pub(super) connections_damaged: u64,
}

/// Sends to the exit at a rate for a time. At the same time, it calls `watch` with a function that returns whether the load is
/// still running.
pub(super) fn carry_while<T>(
    bed: &Bed<'_>,
    mbit_per_s: f64,
    time: Duration,
    watch: impl FnOnce(&dyn Fn() -> bool) -> anyhow::Result<T>,
) -> anyhow::Result<(T, Carried)> {
    let (udp_mbit_per_s, tcp_mbit_per_s) = (mbit_per_s * UDP_SHARE, mbit_per_s * (1.0 - UDP_SHARE));
    // Setting `halt` ends the load early, after an interrupt or an error of `watch`.
    let halt = Interrupt::default();
    let (stop, stop_echo) = (Interrupt::default(), Interrupt::default());
    // The listener is bound before the threads start, so that the first connection is not refused.
    let listener = {
        let address = bed.tunnel.client_address.clone();
        let listen = move || TcpListener::bind((address.as_str(), PORT)).context("cannot listen");
        join(bed.topology.client.enter(listen)?)?
    };
    let echo_address = listener.local_addr().context("a listener has no address")?;
    thread::scope(|scope| {
        let tcp = scope.spawn(|| tcp(bed, tcp_mbit_per_s, time, &halt));
        let udp = scope.spawn(|| udp(bed, udp_mbit_per_s, time, &halt));
        let echo = scope.spawn(|| echo(&listener, &stop_echo));
        // As for the other load, the exit's host opens these connections to the client's host.
        let churn = scope.spawn(|| {
            // `Namespace::enter` would need a closure that borrows nothing.
            bed.topology.exit.enter_here()?;
            anyhow::Ok(churn(echo_address, &stop))
        });
        let watched = watch(&|| !tcp.is_finished());
        if watched.is_err() || bed.interrupt.is_set() {
            halt.set();
        }
        let (tcp, udp) = (finished(tcp.join()), finished(udp.join()));
        // The echo server stops only after the last connection has ended.
        stop.set();
        let churn = finished(churn.join());
        stop_echo.set();
        let echo = finished(echo.join());
        // All threads have ended, so errors can be returned.
        let watched = watched?;
        bed.interrupt.check()?;
        let ((received_mbit_per_s, tcp_retransmits), (udp_sent, udp_received), churn) = (tcp?, udp?, churn?);
        echo?;
        Ok((
            watched,
            Carried {
                tcp_offered_mbit_per_s: tcp_mbit_per_s,
                tcp_mbit_per_s: received_mbit_per_s,
                tcp_retransmits,
                udp_offered_mbit_per_s: udp_mbit_per_s,
                udp_sent,
                udp_received,
                ..churn
            },
        ))
    })
}

/// Sends TCP with iperf3, and returns the received rate in Mbit/s and the number of retransmissions.
fn tcp(bed: &Bed<'_>, mbit_per_s: f64, time: Duration, halt: &Interrupt) -> anyhow::Result<(f64, u64)> {
    let address = &bed.tunnel.client_address;
    let mut command = iperf_client(bed.topology, address, time.as_secs().max(1), FLOWS);
    // iperf3 applies --bitrate to each flow, so the rate is divided by the number of flows.
    command.args([
        "--reverse",
        "--interval",
        "10",
        "--bitrate",
        &format!("{:.0}K", mbit_per_s * 1e3 / f64::from(FLOWS)),
    ]);
    let ended = process::run_whatever_it_returns(&mut command, time + SLACK, halt)?;
    of_iperf(&ended.output)
}

fn of_iperf(json: &str) -> anyhow::Result<(f64, u64)> {
    let result = iperf_result(json)?;
    let rate = result.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    let retransmits = result.pointer("/end/sum_sent/retransmits").and_then(Value::as_u64);
    Ok((rate.context("iperf3 printed no rate")? / 1e6, retransmits.unwrap_or(0)))
}

/// Sends UDP with iperf3, and returns the numbers of packets sent and received.
fn udp(bed: &Bed<'_>, mbit_per_s: f64, time: Duration, halt: &Interrupt) -> anyhow::Result<(u64, u64)> {
    let per_second = mbit_per_s * 1e6 / 8.0 / f64::from(UDP_PAYLOAD);
    let (client, exit) = (&bed.tunnel.client_address, &bed.tunnel.exit_address);
    let seconds = u32::try_from(time.as_secs().max(1)).unwrap_or(u32::MAX);
    let (sizes, rate) = (Sizes::Fixed(UDP_PAYLOAD.into()), Rate::PacketsPerSecond(per_second));
    let delivered = carry(bed.topology, client, exit, Stream { sizes, rate, seconds }, halt)?;
    Ok((delivered.sent, delivered.received))
}

/// Echoes the bytes of each connection.
fn echo(listener: &TcpListener, stop: &Interrupt) -> anyhow::Result<()> {
    listener.set_nonblocking(true).context("cannot set up the listener")?;
    while !stop.is_set() {
        match listener.accept() {
            // Failures are ignored here, because `churn` counts them at the other end.
            Ok((stream, _)) => drop(give_back(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) => return Err(error).context("cannot accept connections"),
        }
    }
    Ok(())
}

fn give_back(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = vec![0; ECHO];
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.read_exact(&mut bytes)?;
    stream.write_all(&bytes)
}

/// Makes short connections one after another, and returns how many succeeded, failed and were damaged.
fn churn(to: SocketAddr, stop: &Interrupt) -> Carried {
    let mut churn = Carried::default();
    let mut number = 0_u8;
    while !stop.is_set() {
        number = number.wrapping_add(1);
        // Each connection sends different bytes, so that bytes of another connection are detected.
        let sent: Vec<u8> = (0..ECHO).map(|at| number.wrapping_add(at.to_le_bytes()[0])).collect();
        match exchange(to, &sent) {
            Ok(received) => {
                churn.connections += 1;
                churn.connections_damaged += u64::from(received != sent);
            }
            Err(_) => churn.connections_failed += 1,
        }
        thread::sleep(PAUSE);
    }
    churn
}

fn exchange(to: SocketAddr, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    let mut received = vec![0; bytes.len()];
    stream.read_exact(&mut received)?;
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_the_receivers() {
        let json = r#"{"end": {"sum_sent": {"bits_per_second": 2e8, "retransmits": 5},
            "sum_received": {"bits_per_second": 1.5e8}}}"#;
        assert_eq!(of_iperf(json).unwrap(), (150.0, 5));
        assert!(of_iperf(r#"{"error": "unable to connect"}"#).unwrap_err().to_string().contains("unable"));
        assert!(of_iperf("").is_err());
    }

    #[test]
    fn connections_come_back_with_their_bytes_and_failures_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let stop = Interrupt::default();
        let counted = thread::scope(|scope| {
            scope.spawn(|| echo(&listener, &stop).unwrap());
            let churn = scope.spawn(|| churn(to, &stop));
            thread::sleep(PAUSE * 3);
            stop.set();
            churn.join().unwrap()
        });
        assert!(counted.connections >= 1 && counted.connections_damaged == 0, "{counted:?}");
        drop(listener);
        assert!(exchange(to, b"x").is_err());
    }
}
