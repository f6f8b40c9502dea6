//! The exit's figures for Prometheus: a page of OpenMetrics text, served over HTTP where `[metrics]` says.
//!
//! A scrape asks the daemon, as the command line does. However many scrapes there are, the daemon is asked at most twice a second.

mod events;
mod families;
mod page;
mod server;

pub(super) use events::EventCounts;
pub(super) use page::{ClientFigures, MetricsPage};
pub(super) use server::{Scrape, serve};
