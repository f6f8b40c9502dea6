//! The exits of the fleet: its members, their heartbeats, and how their clocks differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use warren_fleet_link::{ExitId, ExitState, FleetExit, Load, MAX_EXITS, RemovedExit};
use warren_session::PublicKey;

use crate::planted::{Bug, is_planted};

/// An exit that belongs to the fleet, `mb/ID`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// The exit's key. `None` until the exit has been linked once.
    pub(crate) key: Option<PublicKey>,
    #[serde(default)]
    pub(crate) endpoints: Vec<String>,
    /// How many seconds the exit serves its clients without the store. `None`: without limit.
    #[serde(default)]
    pub(crate) max_staleness: Option<u64>,
    /// A random number. An exit that joins again gets another one, so that a removal of its earlier membership can be recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) membership: Option<u64>,
    /// Whether the exit serves clients of the fleet although it was never linked, because it has brought them (`join --bring-clients`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) brings: bool,
}

/// Maximum number of endpoints of an exit, and maximum bytes of one: a host name and a port.
const MOST_ENDPOINTS: usize = 16;
const MOST_ENDPOINT: usize = 262;

impl Member {
    /// The first value of an exit that joins. Its link adds the rest.
    ///
    /// # Errors
    /// If the operating system gives no random bytes.
    pub(crate) fn joining() -> anyhow::Result<Self> {
        Ok(Self::joining_as(new_number()?))
    }

    /// As [`Self::joining`], with a number that was drawn before.
    pub(crate) fn joining_as(number: u64) -> Self {
        Self { membership: Some(number), ..Self::default() }
    }

    /// Whether the exit serves nobody, because it was never linked and has brought no clients.
    pub(crate) fn serves_nobody(&self) -> bool {
        self.key.is_none() && !self.brings
    }

    /// Returns the member without the endpoints that exceed these limits. Otherwise one exit could write more endpoints than
    /// others can pass on.
    pub(crate) fn bounded(mut self) -> Self {
        self.endpoints.retain(|endpoint| endpoint.len() <= MOST_ENDPOINT);
        self.endpoints.truncate(MOST_ENDPOINTS);
        self
    }
}

/// Draws the number of a membership.
///
/// # Errors
/// If the operating system gives no random bytes.
pub(crate) fn new_number() -> anyhow::Result<u64> {
    getrandom::u64().context("the operating system gave no random bytes")
}

/// An exit's heartbeat, `ex/ID`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) load: Load,
    pub(crate) state: ExitState,
    /// The serial of the fleet's newest roster that the exit has accepted. 0 if it has none.
    #[serde(default)]
    pub(crate) roster: u64,
    /// The revision up to which the exit has applied all changes.
    pub(crate) applied: i64,
    /// The exit's clock in milliseconds since 1970.
    pub(crate) clock: i64,
    /// The version of Warren.
    pub(crate) release: String,
}

/// The state of each exit, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    members: BTreeMap<ExitId, Member>,
    /// The members whose values cannot be read now. Each keeps its latest readable value, or has a value without a key if no
    /// value was ever readable.
    unreadable: BTreeSet<ExitId>,
    heartbeats: BTreeMap<ExitId, Seen>,
    /// The exits that were removed or have left.
    removed: BTreeMap<ExitId, Removed>,
    has_changed: bool,
    /// Counts changes of the state that is saved on disk: which exits are in the fleet, and which were removed.
    changes: u64,
    /// The link's own exit.
    me: Option<ExitId>,
    /// The number of the own exit's latest membership that was in the store, or with which the exit has joined.
    own: Option<u64>,
}

#[derive(Debug)]
struct Seen {
    heartbeat: Heartbeat,
    /// The exit's clock minus the clock of this exit. `None` until a heartbeat arrives right after it was written.
    clock_offset: Option<i64>,
}

impl Exits {
    /// The exits as the link of one of them knows them.
    pub(crate) fn of(me: ExitId) -> Self {
        Self { me: Some(me), ..Self::default() }
    }

    /// Sets the number with which the own exit has joined, until the store is read.
    pub(crate) fn joined_as(&mut self, number: Option<u64>) {
        self.own = self.own.or(number);
    }

    /// Sets the exits. A member is `None` if its value cannot be read.
    pub(crate) fn replace(
        &mut self,
        members: BTreeMap<ExitId, Option<Member>>,
        heartbeats: BTreeMap<ExitId, Heartbeat>,
    ) {
        self.members.retain(|exit, _| members.contains_key(exit));
        self.unreadable.retain(|exit| members.contains_key(exit));
        for (exit, member) in members {
            match member {
                Some(member) => self.set_member(exit, member),
                None => self.cannot_read_member(exit),
            }
        }
        let mut before = std::mem::take(&mut self.heartbeats);
        self.heartbeats = heartbeats
            .into_iter()
            .map(|(exit, heartbeat)| {
                let clock_offset = before.remove(&exit).and_then(|seen| seen.clock_offset);
                (exit, Seen { heartbeat, clock_offset })
            })
            .collect();
        self.has_changed = true;
    }

    /// Sets or removes a member.
    pub(crate) fn member(&mut self, exit: ExitId, member: Option<Member>) {
        self.has_changed = true;
        self.changes += 1;
        match member {
            Some(member) => self.set_member(exit, member),
            None => {
                self.unreadable.remove(&exit);
                self.members.remove(&exit);
            }
        }
    }

    fn set_member(&mut self, exit: ExitId, member: Member) {
        self.unreadable.remove(&exit);
        if self.me.as_ref() == Some(&exit) {
            self.own = member.membership.or(self.own);
        }
        self.members.insert(exit, member.bounded());
    }

    /// Records that a member's value cannot be read. The member stays in the fleet. Otherwise a recovery would treat it as removed.
    pub(crate) fn cannot_read_member(&mut self, exit: ExitId) {
        self.changes += 1;
        self.members.entry(exit.clone()).or_default();
        self.unreadable.insert(exit);
    }

    /// Sets the removed exits.
    pub(crate) fn replace_removed(&mut self, removed: BTreeMap<ExitId, Removed>) {
        self.removed = removed;
    }

    /// Records that an exit was removed, or that it may come back.
    pub(crate) fn note_removed(&mut self, exit: ExitId, removed: Option<Removed>) {
        self.changes += 1;
        self.has_changed = true;
        match removed {
            Some(removed) => drop(self.removed.insert(exit, removed)),
            None => drop(self.removed.remove(&exit)),
        }
    }

    /// The removed exits that may still serve.
    pub(crate) fn lingering(&self) -> Vec<RemovedExit> {
        lingering(&self.removed)
    }

    pub(crate) fn removed(&self) -> &BTreeMap<ExitId, Removed> {
        &self.removed
    }

    /// The number of the own exit's membership, or of its last membership if it was removed. `saved` is the number on the link's disk. A
    /// removal may name another membership, so the removal's number is used only if no other number is known.
    pub(crate) fn membership(&self, saved: Option<u64>) -> Option<u64> {
        self.own.or(saved).or_else(|| self.removed.get(self.me.as_ref()?)?.membership)
    }

    /// The exit's value.
    pub(crate) fn get(&self, exit: &ExitId) -> Option<&Member> {
        self.members.get(exit)
    }

    /// Whether the exit must not serve anybody, because its key is not in the store yet or it was removed. If an operator removes an exit
    /// without a key, it counts as stopped at once. An exit that has brought its clients does not.
    pub(crate) fn may_not_serve(&self, exit: &ExitId) -> bool {
        let member = self.members.get(exit);
        let own = member.and_then(|member| member.membership);
        let is_removed = self.removed.get(exit).is_some_and(|removed| !removed.is_of_another(own));
        is_removed || member.is_some_and(Member::serves_nobody)
    }

    /// Whether the exit belongs to the fleet.
    pub(crate) fn has(&self, exit: &ExitId) -> bool {
        self.members.contains_key(exit) && !self.removed.contains_key(exit)
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the store has exactly this value for the exit.
    pub(crate) fn is_member(&self, exit: &ExitId, member: &Member) -> bool {
        self.members.get(exit) == Some(member) && !self.unreadable.contains(exit)
    }

    /// Handles a heartbeat. With `is_live`, the heartbeat was written just now, so its clock can be compared.
    pub(crate) fn heartbeat(
        &mut self,
        exit: ExitId,
        heartbeat: Option<Heartbeat>,
        is_live: bool,
        now: SystemTime,
    ) {
        self.has_changed = true;
        let before = self.heartbeats.remove(&exit);
        let Some(heartbeat) = heartbeat else { return };
        let measured = is_live.then(|| heartbeat.clock.saturating_sub(milliseconds(now)));
        let clock_offset = measured.or(before.and_then(|seen| seen.clock_offset));
        self.heartbeats.insert(exit, Seen { heartbeat, clock_offset });
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (&ExitId, &Member)> {
        self.members.iter()
    }

    /// Whether any exit has changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    pub(crate) fn list(&self) -> Vec<FleetExit> {
        let exits = self.members.iter().filter_map(|(exit, member)| {
            // An exit without a key was never linked.
            let key = member.key?;
            let seen = self.heartbeats.get(exit);
            let heartbeat = seen.map(|seen| &seen.heartbeat);
            Some(FleetExit {
                exit: exit.clone(),
                key,
                endpoints: member.endpoints.clone(),
                load: heartbeat.map(|heartbeat| heartbeat.load).unwrap_or_default(),
                state: heartbeat.map(|heartbeat| heartbeat.state).unwrap_or_default(),
                applied: heartbeat.map_or(0, |heartbeat| heartbeat.applied),
                is_alive: heartbeat.is_some(),
                clock_offset_ms: seen.and_then(|seen| seen.clock_offset).unwrap_or(0),
            })
        });
        // The exit refuses a longer list.
        exits.take(MAX_EXITS).collect()
    }

    /// Returns this exit's clock minus the median of all live exits' clocks. etcd does not report its own clock.
    ///
    /// With two exits, nobody can tell which of them is wrong, so each clock differs from the median by half of the difference.
    pub(crate) fn own_clock_offset(&self, me: &ExitId) -> i64 {
        let others = self.heartbeats.iter().filter(|(exit, _)| *exit != me);
        let mut offsets: Vec<i64> = others.filter_map(|(_, seen)| seen.clock_offset).collect();
        // This exit's own clock takes part in the median, with an offset of 0 from itself.
        offsets.push(0);
        offsets.sort_unstable();
        let middle = offsets.len() / 2;
        let upper = offsets.get(middle).copied().unwrap_or(0);
        let lower = offsets.get(middle.saturating_sub(1)).copied().unwrap_or(0);
        // Another exit may report any clock, even an impossible one.
        let median = if offsets.len().is_multiple_of(2) { lower.saturating_add(upper) / 2 } else { upper };
        median.saturating_neg()
    }
}

/// The value of `xr/ID` if the exit need not stop serving, because it has left by itself and keeps its clients, and its membership
/// has no number. Earlier releases also wrote it when a recovery repeated a removal.
const REMOVED: &str = "1";

/// The part of `xr/ID` that is there if an operator has removed the exit, which must then stop serving the fleet's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removal {
    /// When the exit stops by itself, in seconds since 1970. `None`: never.
    pub(crate) until: Option<i64>,
    /// Whether the exit has confirmed that it stops.
    pub(crate) has_stopped: bool,
}

impl Removal {
    /// Whether the exit may still serve clients.
    pub(crate) fn may_serve(&self, now: SystemTime) -> bool {
        !self.has_stopped && self.until.is_none_or(|until| until > milliseconds(now) / 1_000)
    }

    /// For how long the exit may serve clients, in words.
    pub(crate) fn how_long(until: Option<i64>, now: SystemTime) -> String {
        match until {
            Some(until) => {
                let left = until.saturating_sub(milliseconds(now) / 1_000).max(0);
                format!("for another {} min (its max_staleness)", left.saturating_add(59) / 60)
            }
            None => "for good, because its max_staleness is \"never\" or not known".to_owned(),
        }
    }
}

/// The part of `xr/ID` that names the membership that has ended.
#[derive(Serialize, Deserialize)]
struct Ended {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    membership: Option<u64>,
}

/// All of `xr/ID`.
#[derive(Serialize)]
struct Value {
    #[serde(flatten)]
    removal: Removal,
    #[serde(flatten)]
    ended: Ended,
}

/// An exit's `xr/ID`, which says that the exit was removed or has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The revision of the value.
    pub(crate) at: i64,
    /// Given if an operator has removed the exit.
    pub(crate) removal: Option<Removal>,
    /// The number of the membership that has ended.
    pub(crate) membership: Option<u64>,
}

impl Removed {
    /// Reads the value of `xr/ID`, which any exit can write.
    pub(crate) fn read(value: &[u8], at: i64) -> Self {
        let ended = serde_json::from_slice::<Ended>(value).ok();
        Self {
            at,
            removal: serde_json::from_slice(value).ok(),
            membership: ended.and_then(|ended| ended.membership),
        }
    }

    /// The value of `xr/ID`.
    pub(crate) fn value(&self) -> serde_json::Result<Vec<u8>> {
        let ended = Ended { membership: self.membership };
        match (self.removal, self.membership) {
            (Some(removal), _) => serde_json::to_vec(&Value { removal, ended }),
            (None, Some(_)) => serde_json::to_vec(&ended),
            (None, None) => Ok(REMOVED.into()),
        }
    }

    /// Whether the exit must stop serving.
    pub(crate) fn must_stop(&self) -> bool {
        self.removal.is_some()
    }

    /// Whether the exit has confirmed that it stops.
    pub(crate) fn has_stopped(&self) -> bool {
        self.removal.is_some_and(|removal| removal.has_stopped)
    }

    /// Whether this is another removal, or the same removal with other content.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        (self.removal, self.membership) != (other.removal, other.membership)
    }

    /// Whether the exit may still serve, because it has not confirmed that it stops, and its time is not over.
    pub(crate) fn may_serve(&self, now: SystemTime) -> bool {
        self.removal.is_some_and(|removal| removal.may_serve(now))
    }

    /// Whether the exit with this membership must stop serving.
    pub(crate) fn stops(&self, membership: Option<u64>) -> bool {
        self.must_stop() && !self.is_of_another(membership)
    }

    /// Whether the membership that has ended is certainly not the one with this number.
    pub(crate) fn is_of_another(&self, membership: Option<u64>) -> bool {
        let differs = self.membership.zip(membership).is_some_and(|(ended, own)| ended != own);
        differs && !is_planted(Bug::EarlierRemovalObeyed)
    }

    /// The entry for the list of removed exits that may still serve, if this one may.
    fn lingering(&self, exit: &ExitId) -> Option<RemovedExit> {
        let Removal { until, has_stopped } = self.removal?;
        (!has_stopped).then(|| RemovedExit { exit: exit.clone(), until })
    }
}

/// The removed exits that have not confirmed that they have stopped.
pub(crate) fn lingering(removed: &BTreeMap<ExitId, Removed>) -> Vec<RemovedExit> {
    let lingering = removed.iter().filter_map(|(exit, removed)| removed.lingering(exit));
    // The exit refuses a longer list.
    lingering.take(MAX_EXITS).collect()
}

pub(crate) fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn heartbeat(clock: i64) -> Heartbeat {
        let (load, state) = (Load::default(), ExitState::Serving);
        Heartbeat { load, state, roster: 0, applied: 0, clock, release: "1".to_owned() }
    }

    fn id(name: &str) -> ExitId {
        ExitId::try_from(name.to_owned()).unwrap()
    }

    #[test]
    fn the_exit_whose_clock_differs_from_the_others_is_found() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let hour = 3_600_000;
        let mut exits = Exits::default();
        exits.heartbeat(id("b"), Some(heartbeat(10_000_000 + hour)), true, now);
        exits.heartbeat(id("c"), Some(heartbeat(10_000_000 + hour)), true, now);
        assert_eq!(exits.own_clock_offset(&id("a")), -hour);

        exits.heartbeat(id("c"), Some(heartbeat(10_000_000)), true, now);
        assert_eq!(exits.own_clock_offset(&id("a")), 0);
    }

    #[test]
    fn of_two_exits_both_notice_that_their_clocks_differ() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let mut exits = Exits::default();
        exits.heartbeat(id("b"), Some(heartbeat(10_200_000)), true, now);
        assert_eq!(exits.own_clock_offset(&id("a")), -100_000);
    }

    #[test]
    fn an_impossible_clock_of_another_exit_does_no_harm() {
        let mut exits = Exits::default();
        exits.heartbeat(id("b"), Some(heartbeat(i64::MIN)), true, SystemTime::now());
        assert_eq!(exits.own_clock_offset(&id("a")), i64::MAX / 2 + 1);
        exits.heartbeat(id("c"), Some(heartbeat(i64::MAX)), true, SystemTime::now());
        assert_eq!(exits.own_clock_offset(&id("a")), 0);
    }

    #[test]
    fn what_another_exit_writes_is_bounded() {
        let mut exits = Exits::default();
        let endpoints: Vec<_> = (0..1000).map(|number| format!("a{number}.example.net:443")).collect();
        let long = vec!["x".repeat(10_000), "a.example.net:443".to_owned()];
        let key = Some(PublicKey([7; 32]));
        exits.member(id("b"), Some(Member { key, endpoints, ..Member::default() }));
        exits.member(id("c"), Some(Member { key, endpoints: long, ..Member::default() }));
        (0..2000).for_each(|number| {
            exits.member(id(&format!("n{number}")), Some(Member { key, ..Member::default() }))
        });
        let listed = exits.list();
        assert_eq!((listed.len(), listed[0].endpoints.len()), (MAX_EXITS, MOST_ENDPOINTS));
        assert_eq!(listed[1].endpoints, ["a.example.net:443"]);
    }

    #[test]
    fn an_old_heartbeat_says_nothing_about_a_clock() {
        let mut exits = Exits::default();
        exits.heartbeat(id("b"), Some(heartbeat(0)), false, SystemTime::now());
        assert_eq!(exits.own_clock_offset(&id("a")), 0);
    }

    #[test]
    fn an_exit_keeps_its_own_number_if_the_removal_names_another_one() {
        let member = |membership| Some(Member { membership, ..Member::default() });
        let ended = Some(Removed { at: 7, membership: Some(1), ..Removed::default() });
        let mut exits = Exits::of(id("b"));
        exits.member(id("c"), member(Some(5)));
        assert_eq!((exits.membership(None), exits.membership(Some(3))), (None, Some(3)));
        exits.note_removed(id("b"), ended);
        assert_eq!(exits.membership(None), Some(1), "no other number is known");
        assert_eq!(exits.membership(Some(2)), Some(2), "the disk has another number");
        exits.note_removed(id("b"), None);
        exits.member(id("b"), member(Some(4)));
        exits.member(id("b"), None);
        exits.note_removed(id("b"), ended);
        assert_eq!(exits.membership(Some(2)), Some(4));
        exits.replace(BTreeMap::new(), BTreeMap::new());
        assert_eq!(exits.membership(None), Some(4));
        // It has joined again.
        exits.member(id("b"), member(Some(6)));
        assert_eq!(exits.membership(None), Some(6));
    }

    #[test]
    fn a_removal_names_the_membership_that_has_ended() {
        let removal = Some(Removal { until: None, has_stopped: true });
        for removal in [None, removal] {
            for membership in [None, Some(u64::MAX)] {
                let removed = Removed { at: 7, removal, membership };
                let value = removed.value().unwrap();
                assert_eq!(Removed::read(&value, 7), removed, "{}", String::from_utf8_lossy(&value));
                assert!(!removed.is_of_another(membership) && !removed.is_of_another(None));
                assert_eq!(removed.is_of_another(Some(3)), membership.is_some());
            }
        }
        assert_eq!(Removed::read(b"1", 7), Removed { at: 7, ..Removed::default() });
        assert_eq!(Removed::read(b"{", 7), Removed { at: 7, ..Removed::default() });
        // What an earlier release has written.
        assert_eq!(Removed::read(br#"{"until":5,"has_stopped":false}"#, 7).membership, None);
    }
}
