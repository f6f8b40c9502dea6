//! The load of a tunnel while it is measured: TCP by iperf3, UDP, and pings.
//!
//! The exit's host always connects to the client's host, for data in either direction. The reason is that Warren's exit lets
//! clients reach the internet but, by default, drops connections to the exit itself.

mod iperf;
mod ping;
mod udp;

pub(crate) use self::{
    iperf::{Iperf, iperf_client, iperf_result},
    ping::{Ping, first_reply},
    udp::{Delivered, Rate, Sizes, Stream, carry},
};
