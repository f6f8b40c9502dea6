//! The exits' keys that a profile's daemon has learnt in its sessions, in a file that outlives it.
//!
//! The profile belongs to its owner and may be read-only. So the daemon stores the learnt keys in the state directory. A learnt
//! key is valid only while the profile pins the key by which the exit had proven itself when it announced the learnt key.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use warren_host::read_plain;
use warren_session::PublicKey;
use warren_session::client::{ExitKeys, KeyNews};

use warren_config::{ClientProfile, RemoteExit, describe};
use warren_daemon::directories::learnt_exit_keys;

/// Maximum number of new keys that exits may announce within [`PERIOD`]. Each costs a durable write.
const MOST_LEARNT: usize = 8;
const PERIOD: Duration = Duration::from_secs(3_600);

/// Maximum size of a file in bytes. An exit's entry takes about 2 KiB at most.
const LONGEST: u64 = 1024 * 1024;

/// The exits' keys that a profile's daemon has learnt.
#[derive(Debug)]
pub(crate) struct LearntKeys {
    /// The learnt keys, by endpoint.
    exits: BTreeMap<String, ExitKeys>,
    is_unsaved: bool,
    /// When new keys were learnt recently.
    learnt: VecDeque<Instant>,
    /// For each endpoint, when the daemon last logged that the exit announces keys that are not accepted.
    complained: BTreeMap<String, Instant>,
}

impl LearntKeys {
    /// Reads the keys that were learnt before.
    pub(crate) fn load(state_dir: &Path, profile: &str) -> Self {
        let file = learnt_exit_keys(state_dir, profile);
        let exits = match read_plain(&file, LONGEST) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(
                    "{} is damaged: {error}; only the keys in the profile count; delete the file",
                    file.display()
                );
                BTreeMap::new()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(
                        "{} cannot be read: {}; only the keys in the profile count",
                        file.display(),
                        describe(&error)
                    );
                }
                BTreeMap::new()
            }
        };
        Self { exits, is_unsaved: false, learnt: VecDeque::new(), complained: BTreeMap::new() }
    }

    /// The keys that are accepted for an exit of the profile.
    pub(crate) fn accepted(&self, exit: &RemoteExit) -> Vec<PublicKey> {
        self.of(exit).accepted()
    }

    /// A learnt key with which the exit has not completed a handshake yet.
    pub(crate) fn unproven(&self, exit: &RemoteExit) -> Option<PublicKey> {
        self.of(exit).unproven()
    }

    /// Handles the keys that an exit announces in a session whose connection has proven the key `by`.
    pub(crate) fn told(&mut self, now: Instant, exit: &RemoteExit, keys: &[PublicKey], by: PublicKey) {
        let mut known = self.of(exit);
        let mut news = known.told(keys, by);
        if news.iter().any(|news| matches!(news, KeyNews::Learnt(_))) && !self.may_learn(now) {
            return;
        }
        news.retain(|news| {
            !matches!(news, KeyNews::Refused(_) | KeyNews::TooMany(_)) || self.may_complain(now, exit)
        });
        self.take(exit, known, news);
    }

    /// Records that an exit has proven a key in a handshake.
    pub(crate) fn shown(&mut self, exit: &RemoteExit, key: PublicKey) {
        let mut known = self.of(exit);
        if let Some(news) = known.shown(key) {
            self.take(exit, known, vec![news]);
        }
    }

    /// Stores an exit's keys if they have changed, and logs each change.
    fn take(&mut self, exit: &RemoteExit, known: ExitKeys, news: Vec<KeyNews>) {
        let endpoint = exit.endpoint.to_string();
        if known != self.of(exit) {
            self.exits.insert(endpoint.clone(), known);
            self.is_unsaved = true;
        }
        for news in news {
            log(&endpoint, news);
        }
    }

    /// The content to save, if it has changed since the last call.
    pub(crate) fn unsaved(&mut self) -> Option<BTreeMap<String, ExitKeys>> {
        let is_unsaved = std::mem::take(&mut self.is_unsaved);
        let learnt = self.exits.iter().filter(|(_, known)| known.has_learnt());
        is_unsaved.then(|| learnt.map(|(endpoint, known)| (endpoint.clone(), known.clone())).collect())
    }

    fn of(&self, exit: &RemoteExit) -> ExitKeys {
        let known = self.exits.get(&exit.endpoint.to_string());
        let known = known.filter(|known| known.is_of(&exit.public_keys));
        known.cloned().unwrap_or_else(|| ExitKeys::new(exit.public_keys.clone()))
    }

    /// Whether to log that an exit announces keys that are not accepted. The exit may announce such keys at any time and on every
    /// connection, so messages must be limited.
    fn may_complain(&mut self, now: Instant, exit: &RemoteExit) -> bool {
        let endpoint = exit.endpoint.to_string();
        let last = self.complained.get(&endpoint);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(*last) >= PERIOD);
        if is_due {
            self.complained.insert(endpoint, now);
        }
        is_due
    }

    /// Whether an exit may announce a new key now. An exit that announces keys all the time could wear out
    /// the disk.
    fn may_learn(&mut self, now: Instant) -> bool {
        self.learnt.retain(|then| now.saturating_duration_since(*then) < PERIOD);
        if self.learnt.len() >= MOST_LEARNT {
            tracing::debug!("an exit names too many new keys; the latest one is not accepted yet");
            return false;
        }
        self.learnt.push_back(now);
        true
    }
}

/// Adds the keys that the profile's daemon has learnt to those that are accepted for its exits.
pub fn accept_learnt_keys(state_dir: &Path, profile: &mut ClientProfile) {
    let learnt = LearntKeys::load(state_dir, profile.name.as_str());
    for exit in std::iter::once(&mut profile.exit).chain(&mut profile.other_exits) {
        exit.public_keys = learnt.accepted(exit);
    }
}

fn log(endpoint: &str, news: KeyNews) {
    match news {
        KeyNews::Learnt(key) => tracing::info!(
            "the exit {endpoint} has a second key, {key}, for which its present key vouches; both are accepted from now on"
        ),
        KeyNews::Proven(key) => tracing::info!("the exit {endpoint} has shown that it has the key {key}"),
        KeyNews::Retired(key) => tracing::info!(
            "the exit {endpoint} has retired its key {key}, which is not accepted any more; the profile may still have it"
        ),
        KeyNews::Withdrawn(key) => {
            tracing::info!("the exit {endpoint} has taken back its key {key}, which it has never shown");
        }
        KeyNews::Refused(key) => tracing::warn!(
            "the exit {endpoint} names the key {key}, which it had retired; the key stays refused; if the operator wants it back, write \
             it into the profile"
        ),
        KeyNews::TooMany(key) => tracing::warn!(
            "the exit {endpoint} names the key {key}, but has not yet proven the key that it named earlier; {key} is not accepted yet"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_quic::key::PrivateKey;

    #[test]
    fn what_was_learnt_is_there_after_a_restart_and_gone_with_the_key_that_vouched_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new, other] = keys();
        let now = Instant::now();
        let mut learnt = LearntKeys::load(directory.path(), "home");
        learnt.told(now, &exit(&[old]), &[new, old], old);
        learnt.shown(&exit(&[old]), new);
        keep(directory.path(), &mut learnt);

        let mut learnt = LearntKeys::load(directory.path(), "home");
        assert_eq!(learnt.accepted(&exit(&[old])), [new, old]);
        assert_eq!(learnt.unproven(&exit(&[old])), None);
        assert_eq!(learnt.accepted(&exit(&[other])), [other], "the profile has changed");
        assert_eq!(LearntKeys::load(directory.path(), "work").accepted(&exit(&[old])), [old]);

        learnt.told(now, &exit(&[old]), &[new], new);
        keep(directory.path(), &mut learnt);
        assert_eq!(learnt.unsaved(), None, "it is saved once");
        assert_eq!(LearntKeys::load(directory.path(), "home").accepted(&exit(&[old])), [new]);
    }

    #[test]
    fn a_damaged_file_leaves_the_profile_s_keys() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new, _] = keys();
        let mut learnt = LearntKeys::load(directory.path(), "home");
        learnt.told(Instant::now(), &exit(&[old]), &[new, old], old);
        keep(directory.path(), &mut learnt);
        let file = learnt_exit_keys(directory.path(), "home");
        let text = std::fs::read(&file).unwrap();
        assert!(!text.is_empty());
        for length in 0..text.len() {
            std::fs::write(&file, text.get(..length).unwrap()).unwrap();
            assert_eq!(LearntKeys::load(directory.path(), "home").accepted(&exit(&[old])), [old]);
        }
    }

    #[test]
    fn an_exit_that_names_new_keys_all_the_time_is_not_believed() {
        let directory = tempfile::tempdir().unwrap();
        let [old, _, _] = keys();
        let mut learnt = LearntKeys::load(directory.path(), "home");
        let now = Instant::now();
        let mut believed = |now| {
            let key = PrivateKey::generate().unwrap().public();
            learnt.told(now, &exit(&[old]), &[key, old], old);
            learnt.accepted(&exit(&[old])).contains(&key)
        };
        let believes: Vec<bool> = (0..10).map(|_| believed(now)).collect();
        assert_eq!(believes.iter().filter(|believes| **believes).count(), MOST_LEARNT);
        assert!(believed(now + PERIOD));
    }

    fn keep(state_dir: &Path, learnt: &mut LearntKeys) {
        let file = learnt_exit_keys(state_dir, "home");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, serde_json::to_string(&learnt.unsaved().unwrap()).unwrap()).unwrap();
    }

    #[test]
    fn exit_that_names_refused_keys_all_the_time_is_logged_once_an_hour() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other, _] = keys();
        let mut learnt = LearntKeys::load(directory.path(), "home");
        let now = Instant::now();
        let elsewhere = RemoteExit { endpoint: "b.example.net:443".parse().unwrap(), ..exit(&[other]) };
        assert!(learnt.may_complain(now, &exit(&[one])));
        assert!(!learnt.may_complain(now + PERIOD / 2, &exit(&[one])));
        assert!(learnt.may_complain(now + PERIOD / 2, &elsewhere), "another exit");
        assert!(learnt.may_complain(now + PERIOD, &exit(&[one])));
    }

    fn keys() -> [PublicKey; 3] {
        std::array::from_fn(|_| PrivateKey::generate().unwrap().public())
    }

    fn exit(pinned: &[PublicKey]) -> RemoteExit {
        RemoteExit {
            endpoint: "exit.example:443".parse().unwrap(),
            public_keys: pinned.to_vec(),
            server_name: None,
        }
    }
}
