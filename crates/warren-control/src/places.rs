//! Limits the number of simultaneous connections of each user.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::protocol::RequestRefused;

/// The connections of each user.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// For each user, a counter of connections: each connection holds a reference.
    of_users: HashMap<u32, Weak<()>>,
}

/// Maximum number of simultaneous connections of one user. Each takes a descriptor of the daemon.
pub(crate) const MOST_OF_A_USER: usize = 32;

impl Places {
    /// Returns a reference that counts one more connection of the user as long as it is held.
    ///
    /// # Errors
    /// If the user has too many.
    pub(crate) fn take(&mut self, user: u32) -> Result<Arc<()>, RequestRefused> {
        let place = self.of_users.get(&user).and_then(Weak::upgrade).unwrap_or_default();
        // The new connection's own reference is already counted.
        if Arc::strong_count(&place) > MOST_OF_A_USER {
            return Err(RequestRefused::new(format!(
                "{MOST_OF_A_USER} programs of user {user} are asking at this moment; run this again"
            )));
        }
        self.of_users.insert(user, Arc::downgrade(&place));
        Ok(place)
    }
}
