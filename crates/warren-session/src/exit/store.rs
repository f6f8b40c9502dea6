//! The boundary to the store that keeps the registry: requests go out as actions, results and changes of others come in.

use crate::clients::RowChange;

/// Number of a request. Later requests have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreRequestId(pub u64);

/// Changes that the store makes in one transaction: all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// Its number.
    pub id: StoreRequestId,
    /// The changed rows, each once.
    pub changes: Vec<RowChange>,
}

/// Why the store has not carried out a request. It has changed nothing then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreRefusal {
    /// The store cannot be reached or cannot write. Trying again later may work.
    Unavailable,
    /// The name, key, address or token belongs to somebody else.
    Conflict,
}
