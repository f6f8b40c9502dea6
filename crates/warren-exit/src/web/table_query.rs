//! Which page of the table of clients somebody asks for.

use serde::Deserialize;

/// Which page of the table is asked for.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableQuery {
    /// Part of a name, or an inner address.
    #[serde(default)]
    pub(crate) search: String,
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
    /// Those with a session first.
    Connected,
    /// Those that carried most first.
    Traffic,
    /// Those seen last first.
    Seen,
}
