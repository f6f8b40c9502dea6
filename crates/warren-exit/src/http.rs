//! HTTP/1.1 for the metrics and the page for operators: each connection carries one request and one answer.
//!
//! A [`Site`] answers requests. A [`Server`] serves the site on a [`Socket`], and bounds connections, times and sizes.

mod answer;
mod peer;
mod request;
mod server;
mod socket;

pub(crate) use answer::Answer;
pub(crate) use peer::Peer;
pub(crate) use request::{BadHead, Head};
pub(crate) use server::{Body, Server, Site, next_question};
pub(crate) use socket::{Socket, UnixSocket};

#[cfg(test)]
pub(crate) use server::{CONNECTIONS, TIME};
