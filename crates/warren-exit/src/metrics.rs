//! The exit's figures for Prometheus: a page of OpenMetrics text, served over HTTP at the address in `[metrics]`.
//!
//! A scrape asks the daemon, as the command line does. The daemon is asked at most twice a second, no matter how many scrapes there
//! are.

mod events;
mod families;
mod page;
mod server;

pub(super) use events::EventCounts;
pub(super) use page::{ClientFigures, MetricsPage};
pub(super) use server::{Scrape, serve};
