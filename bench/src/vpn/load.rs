//! What goes through a tunnel while it is measured: iperf3's TCP, own UDP, and ping.
//!
//! Connections are opened from the exit to the client, whichever way the data then goes: an exit that lets clients
//! reach the internet alone drops what they would open to itself, and it is the product as shipped that is measured.

mod iperf;
mod ping;
mod udp;

pub(crate) use self::{
    iperf::Iperf,
    ping::{Ping, first_reply},
    udp::{Delivered, Rate, Sizes, carry},
};
