//! HTTP for the metrics and the page.

pub(crate) mod server;
