//! The load of a tunnel while it is measured: TCP by iperf3, UDP, and pings.
//!
//! Connections are opened from the exit to the client, whichever way the data goes. Warren's exit lets clients reach the
//! internet but drops connections to the exit itself, and the product is measured as shipped.

mod iperf;
mod ping;
mod udp;

pub(crate) use self::{
    iperf::{Iperf, iperf_client, iperf_result},
    ping::{Ping, first_reply},
    udp::{Delivered, Rate, Sizes, Stream, carry},
};
