//! A history of a fleet as its clients, its operators and the internet see it, and a checker for it.
//!
//! The checker knows nothing of the exits and the store but what they answered, which packets have passed an exit, and who was
//! enrolled in the end. It finds a token with two keys, an acknowledged enrolment that is lost, an address with two keys at a time,
//! and a removed or disabled client that is served two seconds after the acknowledgement.
//!
//! During a fault, an exit may serve such a client for longer. [`Late`] has the times, which are those of the table of faults in
//! `docs/fleet.md`: five seconds while a leader is stopped, and two seconds after the end of a cut. A restored backup counts as a
//! store that was down, so all exits are up to date five seconds after it is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use super::real_clients::{Arrival, Outcome};
use super::seconds;

/// The time within which an exit has to know of a change elsewhere.
const KNOWN_WITHIN: Duration = seconds(2);

/// A step of a client or an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An operator makes an invitation.
    Invite,
    /// A client redeems the token of this number.
    Enrol(usize),
    /// A client opens a session. The address is set if the exit welcomes the client.
    Connect(Option<Ipv4Addr>),
    /// A client sends a packet. It is done if the packet has come back.
    Probe,
    /// An operator removes, disables or enables a client.
    Remove,
    Disable,
    Enable,
}

#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub what: What,
    /// The number of the client, which stands for its key. Unused by [`What::Invite`].
    pub client: usize,
    /// The exit that was asked.
    pub exit: usize,
    pub begun: Instant,
    pub ended: Instant,
    pub outcome: Outcome,
    /// Whether the exit has said that other exits do not know of the change yet, because the store does not answer.
    pub is_alone: bool,
}

/// How late a change may reach an exit because of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Late {
    /// This long after its acknowledgement.
    AfterAnswer(Duration),
    /// This long after the end of the fault.
    AfterFault(Duration),
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The exit that has the fault. `None` if it is the store's.
    pub exit: Option<usize>,
    pub from: Instant,
    pub until: Instant,
    pub late: Late,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub arrivals: Vec<Arrival>,
    pub faults: Vec<Fault>,
    /// The clients that each exit has in the end, and those of the store.
    pub enrolled: Vec<BTreeSet<usize>>,
}

/// An acknowledged change of a client.
#[derive(Clone, Copy, Debug)]
struct Change {
    exit: usize,
    begun: Instant,
    acknowledged: Instant,
    is_alone: bool,
}

/// A time in which no exit may serve a client.
#[derive(Clone, Copy, Debug)]
struct Shut {
    change: Change,
    /// When an operator began to enable the client again.
    until: Option<Instant>,
}

/// What the history says about one client.
#[derive(Default)]
struct Facts {
    enrolled: Option<Change>,
    /// When somebody first tried to remove the client, and when somebody first tried to remove or disable it.
    leaving: Option<Instant>,
    disturbed: Option<Instant>,
    is_removed: bool,
    shut: Vec<Shut>,
    /// The client's addresses, each with the end of the first Welcome that had it.
    addresses: BTreeMap<Ipv4Addr, Instant>,
}

#[derive(Default, Debug)]
pub struct Figures {
    pub operations: usize,
    handshakes: usize,
    enrolled: usize,
    refused_enrolments: usize,
    welcomed: usize,
    refused: usize,
    probes: usize,
    returned: usize,
    removed: usize,
    disabled: usize,
    /// Packets that have passed an exit after the acknowledgement of a removal, within the time that a fault allows.
    late: usize,
    /// For each removed client: the time from the command until its last packet. Only without faults.
    last_packets: Vec<Duration>,
}

impl Figures {
    /// Fails unless each kind of operation has had each outcome that the checker needs to see.
    #[track_caller]
    pub fn assert_something(&self) {
        let counts = [self.enrolled, self.refused_enrolments, self.welcomed, self.refused, self.returned];
        let all = [&counts[..], &[self.removed, self.disabled, self.late, self.last_packets.len()]].concat();
        assert!(all.iter().all(|count| *count > 0), "the history tests nothing: {self}");
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let part = |hundredths: usize| self.last_packets.get(self.last_packets.len() * hundredths / 100);
        write!(
            f,
            "{} operations, of which {} handshakes: {} enrolments and {} refused, {} sessions and {} refused, {} packets and {} back, \
             {} removals, {} disabled; last packets after the command for a removal without faults {:.3?} (median), {:.3?} (99th \
             percentile), {:.3?} (longest); {} packets after an acknowledgement during faults",
            self.operations,
            self.handshakes,
            self.enrolled,
            self.refused_enrolments,
            self.welcomed,
            self.refused,
            self.probes,
            self.returned,
            self.removed,
            self.disabled,
            part(50).unwrap_or(&Duration::ZERO),
            part(99).unwrap_or(&Duration::ZERO),
            self.last_packets.last().unwrap_or(&Duration::ZERO),
            self.late
        )
    }
}

/// Checks a whole history.
///
/// # Errors
/// The first violation.
pub fn check(history: &History) -> Result<Figures, String> {
    let facts = history.facts();
    let mut figures = history.count();
    history.check_tokens()?;
    history.check_enrolments(&facts)?;
    history.check_in_the_end(&facts)?;
    history.check_addresses(&facts)?;
    history.check_sessions(&facts)?;
    history.check_packets(&facts, &mut figures)?;
    Ok(figures)
}

impl History {
    fn count(&self) -> Figures {
        let mut figures = Figures { operations: self.operations.len(), ..Figures::default() };
        for operation in &self.operations {
            let is_done = operation.outcome == Outcome::Done;
            let (all, done, refused) = match operation.what {
                What::Invite | What::Enable => continue,
                What::Enrol(_) => {
                    (&mut figures.handshakes, &mut figures.enrolled, Some(&mut figures.refused_enrolments))
                }
                What::Connect(_) => {
                    (&mut figures.handshakes, &mut figures.welcomed, Some(&mut figures.refused))
                }
                What::Probe => (&mut figures.probes, &mut figures.returned, None),
                What::Remove => (&mut 0, &mut figures.removed, None),
                What::Disable => (&mut 0, &mut figures.disabled, None),
            };
            *all += 1;
            *done += usize::from(is_done);
            if let Some(refused) = refused {
                *refused += usize::from(operation.outcome == Outcome::Refused);
            }
        }
        figures
    }

    fn facts(&self) -> BTreeMap<usize, Facts> {
        let mut operations: Vec<&Operation> = self.operations.iter().collect();
        operations.sort_by_key(|operation| operation.ended);
        let mut all: BTreeMap<usize, Facts> = BTreeMap::new();
        for operation in operations {
            let Operation { what, client, exit, begun, ended: acknowledged, outcome, is_alone } = *operation;
            let facts = all.entry(client).or_default();
            let change = Change { exit, begun, acknowledged, is_alone };
            let is_done = outcome == Outcome::Done;
            let earlier = |before: Option<Instant>| Some(before.map_or(begun, |before| before.min(begun)));
            if let What::Remove | What::Disable = what {
                facts.disturbed = earlier(facts.disturbed);
                facts.shut.extend(is_done.then_some(Shut { change, until: None }));
            }
            match what {
                What::Enrol(_) if is_done => _ = facts.enrolled.get_or_insert(change),
                What::Connect(Some(address)) => _ = facts.addresses.entry(address).or_insert(acknowledged),
                What::Remove => {
                    facts.leaving = earlier(facts.leaving);
                    facts.is_removed |= is_done;
                }
                // Even if nobody has acknowledged it, the client may be admitted from now on.
                What::Enable => facts.shut.iter_mut().for_each(|shut| _ = shut.until.get_or_insert(begun)),
                What::Invite | What::Enrol(_) | What::Connect(_) | What::Probe | What::Disable => {}
            }
        }
        all
    }

    /// When an exit has to know of a change, and whether a fault has put that off.
    fn due(&self, change: Change, exit: usize) -> (Instant, bool) {
        let Change { exit: asked, acknowledged, is_alone, .. } = change;
        let usual = acknowledged + KNOWN_WITHIN;
        let concerns = |fault: &&Fault| {
            let is_cut_off = fault.exit.is_none_or(|cut| cut == exit || (cut == asked && is_alone));
            is_cut_off && fault.from < usual && acknowledged < fault.until
        };
        let late = self.faults.iter().filter(concerns).map(|fault| match fault.late {
            Late::AfterAnswer(time) => acknowledged + time,
            Late::AfterFault(time) => fault.until + time,
        });
        let late = late.max();
        // An exit cuts a client off before it acknowledges that.
        if exit == asked {
            (usual, false)
        } else {
            (late.map_or(usual, |late| late.max(usual)), late.is_some())
        }
    }

    /// Checks that each token has enrolled one key only.
    fn check_tokens(&self) -> Result<(), String> {
        let welcomed: BTreeSet<usize> = self.of(|what| matches!(what, What::Connect(Some(_))));
        let mut keys: BTreeMap<usize, usize> = BTreeMap::new();
        for operation in &self.operations {
            let What::Enrol(token) = operation.what else { continue };
            let client = operation.client;
            let has_key = operation.outcome == Outcome::Done || welcomed.contains(&client);
            if has_key && let Some(other) = keys.insert(token, client).filter(|other| *other != client) {
                return Err(format!("token {token} has enrolled two keys: {other} and {client}"));
            }
        }
        Ok(())
    }

    fn of(&self, is: impl Fn(What) -> bool) -> BTreeSet<usize> {
        self.operations
            .iter()
            .filter(|operation| is(operation.what))
            .map(|operation| operation.client)
            .collect()
    }

    /// Checks that no exit refuses a client whose enrolment it has to know.
    fn check_enrolments(&self, facts: &BTreeMap<usize, Facts>) -> Result<(), String> {
        for operation in &self.operations {
            let (What::Connect(None), Outcome::Refused) = (operation.what, operation.outcome) else {
                continue;
            };
            let facts = &facts[&operation.client];
            let Some(enrolled) = facts.enrolled else { continue };
            let (due, _) = self.due(enrolled, operation.exit);
            // An exit that has not heard yet that a client is enabled again refuses it, too.
            let is_disturbed = facts.disturbed.is_some_and(|disturbed| disturbed < operation.ended);
            if operation.begun > due && !is_disturbed {
                return Err(format!(
                    "the acknowledged enrolment of {} is lost: exit {} refused the client {:?} after the acknowledgement",
                    operation.client,
                    operation.exit,
                    operation.ended.saturating_duration_since(enrolled.acknowledged)
                ));
            }
        }
        Ok(())
    }

    /// Checks that in the end, all exits and the store have the same clients, and that those are the right ones.
    fn check_in_the_end(&self, facts: &BTreeMap<usize, Facts>) -> Result<(), String> {
        let Some(store) = self.enrolled.last() else { return Err("nobody has looked in the end".to_owned()) };
        for (exit, enrolled) in self.enrolled.iter().enumerate() {
            if let Some(client) = enrolled.symmetric_difference(store).next() {
                return Err(format!("exit {exit} and the store do not agree on {client}"));
            }
        }
        for (client, facts) in facts {
            if facts.enrolled.is_some() && facts.leaving.is_none() && !store.contains(client) {
                return Err(format!("the acknowledged enrolment of {client} is lost in the end"));
            }
            if facts.is_removed && store.contains(client) {
                return Err(format!("the removed client {client} is enrolled in the end"));
            }
        }
        Ok(())
    }

    /// Checks that no client gets an address before the end of the client that has it.
    fn check_addresses(&self, facts: &BTreeMap<usize, Facts>) -> Result<(), String> {
        let mut holders: BTreeMap<Ipv4Addr, Vec<(Instant, usize)>> = BTreeMap::new();
        for (client, facts) in facts {
            for (address, since) in &facts.addresses {
                holders.entry(*address).or_default().push((*since, *client));
            }
        }
        for (address, mut holders) in holders {
            holders.sort_unstable();
            for pair in holders.windows(2) {
                let ((_, first), (since, second)) = (pair[0], pair[1]);
                if facts[&first].leaving.is_none_or(|leaving| leaving > since) {
                    return Err(format!("{address} has two keys at a time: {first} and {second}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that no exit admits a client that is removed or disabled.
    fn check_sessions(&self, facts: &BTreeMap<usize, Facts>) -> Result<(), String> {
        for operation in &self.operations {
            let Operation { what: What::Connect(Some(_)), client, exit, begun, ended, .. } = *operation
            else {
                continue;
            };
            for shut in &facts[&client].shut {
                let (due, _) = self.due(shut.change, exit);
                if begun > due && shut.until.is_none_or(|until| ended < until) {
                    let after = begun.saturating_duration_since(shut.change.acknowledged);
                    return Err(format!(
                        "exit {exit} has admitted {client}, which asked {after:?} after the acknowledgement of its removal"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that no packet of a client that is removed or disabled passes an exit.
    fn check_packets(&self, facts: &BTreeMap<usize, Facts>, figures: &mut Figures) -> Result<(), String> {
        let mut last: BTreeMap<usize, Duration> = BTreeMap::new();
        for Arrival { client, exit, at } in &self.arrivals {
            let Some(facts) = facts.get(client) else { return Err(format!("nobody is client {client}")) };
            for Shut { change, until } in &facts.shut {
                if until.is_some_and(|until| *at >= until) {
                    continue;
                }
                let after = at.saturating_duration_since(change.acknowledged);
                let (due, is_late) = self.due(*change, *exit);
                if *at > due {
                    return Err(format!(
                        "a packet of {client} has passed exit {exit} {after:?} after the acknowledgement of its removal at exit {}",
                        change.exit
                    ));
                }
                figures.late += usize::from(is_late && !after.is_zero());
                let since = at.saturating_duration_since(change.begun);
                if !is_late && !since.is_zero() && until.is_none() {
                    let longest = last.entry(*client).or_default();
                    *longest = since.max(*longest);
                }
            }
        }
        figures.last_packets = last.into_values().collect();
        figures.last_packets.sort_unstable();
        Ok(())
    }
}
