//! `FollowedFleet`: the fleet that a client or an exit follows, and the rules for accepting its rosters.

use serde::{Deserialize, Serialize};

use super::content::Roster;
use super::error::RosterError;
use super::handover;
use super::key::FleetPublicKey;
use super::refusal::RosterRefusal;
use super::signed::SignedRoster;

/// A fleet's newest known roster. Its signer is the fleet's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FollowedFleet {
    newest: SignedRoster,
}

/// How an accepted roster relates to the newest roster known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RosterNews {
    /// The roster was known already.
    Known,
    /// The roster is newer.
    Newer,
    /// The roster is newer, and signed by another key, to which the earlier key has handed over.
    NewKey,
}

impl FollowedFleet {
    /// Follows the fleet of a roster. The roster's signer is taken to be the fleet's key, so the caller must have a reason to
    /// trust that key.
    pub fn begin(newest: SignedRoster) -> Self {
        Self { newest }
    }

    /// Accepts a roster from a peer, if it is a newer one of this fleet.
    ///
    /// # Errors
    ///
    /// Why the roster is not accepted. In that case nothing changes.
    pub fn take(&mut self, bytes: &[u8]) -> Result<RosterNews, RosterRefusal> {
        // No signature is checked here, because peers send the known roster again and again.
        if bytes == self.newest.as_bytes() {
            return Ok(RosterNews::Known);
        }
        let offered = SignedRoster::decode(bytes)?;
        let (known, new) = (self.newest.content(), offered.content());
        if known.fleet != new.fleet {
            let (followed, offered) = (known.fleet.clone(), new.fleet.clone());
            return Err(RosterRefusal::OtherFleet { followed, offered });
        }
        if !is_successor(new, known.signer) {
            return Err(RosterRefusal::OtherSigner { key: known.signer, signer: new.signer });
        }
        if new.serial < known.serial {
            return Err(RosterRefusal::Older { newest: known.serial, offered: new.serial });
        }
        // The first check has shown that the bytes differ.
        if new.serial == known.serial {
            return Err(RosterRefusal::Conflicting { serial: known.serial });
        }
        let news = if new.signer == known.signer { RosterNews::Newer } else { RosterNews::NewKey };
        self.newest = offered;
        Ok(news)
    }

    /// The fleet's key.
    pub fn key(&self) -> FleetPublicKey {
        self.newest.content().signer
    }

    /// The newest roster.
    pub fn roster(&self) -> &Roster {
        self.newest.content()
    }

    /// The newest roster with its signature.
    pub fn signed(&self) -> &SignedRoster {
        &self.newest
    }
}

/// Whether a roster's signer is this key, or a later one to which this key has handed over.
fn is_successor(roster: &Roster, key: FleetPublicKey) -> bool {
    let chain = handover::keys(&roster.handovers);
    let mut later = chain.iter().skip_while(|each| **each != key);
    roster.signer == key || later.any(|each| *each == roster.signer)
}

impl TryFrom<String> for FollowedFleet {
    type Error = RosterError;

    fn try_from(text: String) -> Result<Self, RosterError> {
        SignedRoster::from_text(&text).map(Self::begin)
    }
}

impl From<FollowedFleet> for String {
    fn from(fleet: FollowedFleet) -> Self {
        fleet.newest.to_line().trim_end().to_owned()
    }
}
