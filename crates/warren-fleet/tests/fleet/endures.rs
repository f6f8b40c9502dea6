//! Faults of the store, of a link's clock and of certificates, each with a control.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use warren_fleet_link::{Outcome, StoreLink};
use warren_session::clients::{RowChange, RowId};

use super::support::etcd::Store;
use super::support::exit::{Exit, key};
use super::support::{fleet_fails, my_turn, wait_for};
use super::{Fleet, client, invitation, number_key, three_exits, three_exits_one_behind_a_way};

#[test]
fn a_slow_store_delays_an_enrolment_by_at_most_three_seconds_or_says_so() {
    let (fleet, ways) = three_exits_one_behind_a_way();
    let [a, _, c] = &fleet.exits[..] else { panic!() };
    for slow in [Duration::ZERO, Duration::from_millis(500)] {
        ways.slow(slow);
        let (mut stored, mut longest) = (0, Duration::ZERO);
        for number in 0..8 {
            let number = usize::try_from(slow.as_millis()).unwrap() + number;
            let since = Instant::now();
            let answer = c.send(vec![client(&format!("client{number}"), number_key(number)).into()]);
            let (outcome, _) = answer.recv_timeout(Duration::from_secs(3)).expect("no answer within 3 s");
            longest = longest.max(since.elapsed());
            assert_ne!(outcome, Outcome::Conflict);
            stored += usize::from(matches!(outcome, Outcome::Stored { .. }));
        }
        println!("{slow:?} slower: {stored} of 8 stored, the longest took {longest:?}");
        // The control: the requests take at least as long as the delay of the path.
        assert!(longest >= slow && stored >= 6, "{longest:?}");
        // The other exits do not wait.
        let since = Instant::now();
        a.store(&[client(&format!("other{slow:?}"), number_key(9_000 + usize::from(slow.is_zero()))).into()]);
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    }
}

#[test]
fn a_clock_that_is_an_hour_wrong_is_noticed_at_its_exit_and_at_no_other() {
    let fleet = three_exits();
    let [a, b, c] = &fleet.exits[..] else { panic!() };
    let hour = 3_600_000;
    for (seconds, offset) in [(3_600, hour), (-3_600, -hour), (0, 0)] {
        std::fs::write(c.directory.join("clock"), seconds.to_string()).unwrap();
        let is_near = |found: i64| (found - offset).abs() < 5_000;
        c.wait_within("the exit knows how wrong its clock is", Duration::from_secs(10), |seen| {
            is_near(seen.own_clock_offset_ms).then_some(())
        });
        for exit in [a, b] {
            // The other exits show the wrong clock to their operators, and know that their own clocks are right.
            exit.wait_within("the others see it", Duration::from_secs(10), |seen| {
                let wrong = seen.exits.iter().find(|exit| exit.exit.as_str() == "c")?;
                (is_near(wrong.clock_offset_ms) && seen.own_clock_offset_ms.abs() < 5_000).then_some(())
            });
        }
    }
}

#[test]
fn a_store_whose_certificate_has_expired_is_away_and_never_used() {
    let _turn = my_turn();
    let mut store = Store::start_secure();
    let directory = tempfile::tempdir().unwrap();
    let text = |path: std::path::PathBuf| path.display().to_string();
    let (root, root_key) = store.certificate("root");
    let (ca, urls, root, root_key) = (text(store.ca()), store.urls(), text(root), text(root_key));
    let init = ["--store", &urls, "--ca", &ca, "--certificate", &root, "--key", &root_key];
    let exit = Exit::first(&directory.path().join("a"), "a", &init).ready();
    exit.store(&[client("anna", key(1)).into()]);

    store.renew(-1);
    let reason = exit.wait_within("the exit is told", Duration::from_secs(20), |seen| match &seen.store {
        Some(StoreLink::Away { reason, .. }) if reason.contains("xpired") => Some(reason.clone()),
        _ => None,
    });
    println!("{reason}");
    for _ in 0..20 {
        assert_eq!(exit.request(vec![client("bert", key(2)).into()]), Outcome::Unavailable);
        assert!(exit.seen(|seen| matches!(seen.store, Some(StoreLink::Away { .. }))));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(exit.client(key(1)).is_some(), "known clients stay");
    let said = fleet_fails(&exit.directory, &["status"]);
    assert!(said.contains("xpired"), "{said}");
    // The control: with a valid certificate, the link works again.
    store.renew(2);
    exit.wait("the store is back", |seen| (seen.store == Some(StoreLink::Reachable)).then_some(()));
    exit.store(&[client("bert", key(2)).into()]);
}

#[test]
fn a_thousand_tokens_that_three_exits_race_for_enrol_one_key_each() {
    race(1_000);
}

#[test]
#[ignore = "takes a minute"]
fn ten_thousand_tokens_that_three_exits_race_for_enrol_one_key_each() {
    race(10_000);
}

/// Each exit enrols another key with each token, under another name, so that only the token decides.
fn race(tokens: u16) {
    const UNDER_WAY: usize = 64;
    let fleet = three_exits();
    let open: Vec<RowChange> = (0..tokens).map(|token| invitation("raced", token, None).into()).collect();
    for part in open.chunks(500) {
        fleet.exits[0].store(part);
    }
    for exit in &fleet.exits {
        exit.wait_within("the invitations are known", Duration::from_secs(60), |seen| {
            (seen.rows.len() == open.len()).then_some(())
        });
    }
    let (since, start) = (Instant::now(), Barrier::new(3));
    let outcomes: Vec<Vec<Outcome>> = std::thread::scope(|scope| {
        let racing: Vec<_> = (0..3)
            .map(|index| {
                let (exit, start) = (&fleet.exits[index], &start);
                scope.spawn(move || {
                    start.wait();
                    let answer = |answer: Receiver<(Outcome, Instant)>| {
                        answer.recv_timeout(Duration::from_secs(3)).expect("no answer within 3 s").0
                    };
                    let (mut outcomes, mut waiting) = (Vec::new(), VecDeque::new());
                    for token in 0..tokens {
                        let key = number_key(usize::from(token) * 3 + index);
                        let enrolled = client(&format!("client{token}-{index}"), key);
                        let used = invitation("raced", token, Some(key));
                        waiting.push_back(exit.send(vec![enrolled.into(), used.into()]));
                        if waiting.len() >= UNDER_WAY {
                            outcomes.extend(waiting.pop_front().map(answer));
                        }
                    }
                    outcomes.extend(waiting.into_iter().map(answer));
                    outcomes
                })
            })
            .collect();
        racing.into_iter().map(|exit| exit.join().unwrap()).collect()
    });
    println!("{tokens} tokens raced at three exits in {:?}", since.elapsed());
    let mut won = [0; 3];
    for token in 0..usize::from(tokens) {
        let winners: Vec<_> =
            (0..3).filter(|exit| matches!(outcomes[*exit][token], Outcome::Stored { .. })).collect();
        let refused = outcomes.iter().filter(|exit| exit[token] == Outcome::Conflict).count();
        assert_eq!((winners.len(), refused), (1, 2), "token {token}");
        won[winners[0]] += 1;
    }
    println!("won by the exits: {won:?}");
    check_race(&fleet, tokens);
}

fn check_race(fleet: &Fleet, tokens: u16) {
    let rows = fleet.exits[0].seen(|seen| seen.rows.clone());
    for exit in &fleet.exits {
        exit.wait_within("the exits agree", Duration::from_secs(20), |seen| {
            (seen.rows.len() == 2 * usize::from(tokens)).then_some(())
        });
        wait_for("the exits agree", Duration::from_secs(20), || {
            exit.seen(|seen| (seen.rows == rows).then_some(()))
        });
    }
    let mut enrolled = std::collections::BTreeSet::new();
    for token in 0..tokens {
        let open = RowChange::from(invitation("raced", token, None));
        let Some(RowChange::Invitation { invitation: Some(used), .. }) = rows.get(&open.id()) else {
            panic!()
        };
        let key = used.used_by.expect("each token is used");
        assert!(rows.contains_key(&RowId::Client(key)), "token {token}");
        assert!(enrolled.insert(key), "token {token}");
    }
}
