//! The rosters that the operator gives to the exit, one after the other.

use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use crate::key::tests_key;
use crate::roster::{ExitState, FleetKey, RosterChange, RosterExit, SignedRoster, begin, change};

/// How many rosters there are.
pub(super) const ROSTERS: u64 = 40;

/// The roster with a serial, from 1 to [`ROSTERS`].
pub(super) fn roster(serial: u64) -> &'static SignedRoster {
    static ALL: OnceLock<Vec<SignedRoster>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let key = FleetKey::from_file_text("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=").unwrap();
        let exit = RosterExit {
            name: "ams1".to_owned(),
            public_keys: vec![tests_key(0)],
            endpoints: vec!["192.0.2.1:443".parse().unwrap()],
            region: String::new(),
            weight: 1,
            state: ExitState::Serving,
        };
        let mut all = vec![begin("acme".parse().unwrap(), vec![exit], &key, UNIX_EPOCH).unwrap()];
        for weight in 2..=u32::try_from(ROSTERS).unwrap() {
            let heavier = RosterChange::Weight { name: "ams1".to_owned(), weight };
            all.push(change(all.last().unwrap(), heavier, &key, UNIX_EPOCH).unwrap());
        }
        all
    });
    &all[usize::try_from(serial).unwrap() - 1]
}
