//! A request for one page of the table of clients.

use serde::Deserialize;

/// A request for one page of the table of clients.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableQuery {
    /// Part of a name, or an inner address.
    #[serde(default)]
    pub(crate) search: String,
    #[serde(default)]
    pub(crate) state: Which,
    #[serde(default)]
    pub(crate) sort: Sort,
    /// The page's number, from 0.
    #[serde(default)]
    pub(crate) page: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sort {
    #[default]
    Name,
    /// Clients with a session first.
    Connected,
    /// Clients with the highest current rates first.
    Rate,
    /// Clients with the most traffic first.
    Traffic,
    /// Clients that were seen most recently first.
    Seen,
}

/// Which clients are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Which {
    #[default]
    All,
    /// Clients with a session.
    Connected,
    /// Clients that are not disabled and have no session.
    Offline,
    /// Clients that have never connected.
    Never,
    Disabled,
    /// Clients with a rate limit.
    Limited,
}
