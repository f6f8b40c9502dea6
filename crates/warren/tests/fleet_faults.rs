//! Faults that a fleet must survive. Three real exits, their links and a real etcd of three members are on nine hosts, and clients
//! count their packets through each fault. Each test makes several faults, one after the other, in one fleet.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use warren_client::EnrolError;
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::invite::Invite;

use crate::support::etcd::DAYS;
use crate::support::faulty_fleet::{EXITS, Faulty, Guest, MEMBERS, etcd};
use crate::support::library_client::{LibraryClient, runtime};
use crate::support::proxy::Ways;
use crate::support::real_fleet::{RealFleet, store_of};
use crate::support::{Exit, Namespace, Net, Preload, asked, eventually, seconds, timed};

/// The third exit's `max_staleness` in seconds.
const MAX_STALENESS: u64 = 30;

#[test]
fn a_fleet_survives_a_slow_stopped_dead_or_distant_store_and_a_wrong_clock() {
    let Some(net) = Net::new() else { return };
    let hosts = net.clients_beside(12);
    let Some(etcd) = etcd(&hosts) else { return };
    let mut fleet = RealFleet::at(&hosts[..EXITS], &etcd);
    // The second exit reaches the store through proxies that can be slow.
    let urls: Vec<String> = (0..MEMBERS).map(|member| etcd.url(member)).collect();
    let of_proxies: Vec<String> = urls.iter().map(|url| url.replace("https", "http")).collect();
    let ways = hosts[1].enter(move || Ways::to(&of_proxies)).join().unwrap();
    let config = fleet.exits[1].warren.config("fleet.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = urls
        .iter()
        .zip(&ways.urls)
        .fold(text, |text, (url, way)| text.replace(url, &way.replace("http", "https")));
    std::fs::write(&config, text).unwrap();
    // The third exit's clock can be set by the tests.
    let clock = fleet.exits[2].warren.config("clock");
    let preload = Preload::build("wall_clock");
    let stepped = [
        vec![preload.variable, format!("WALL_CLOCK={}", clock.display())],
        vec![format!("WARREN_FLEET_CLOCK={}", clock.display())],
    ];
    fleet.exits[2].configure(|config| config.with("fleet", "max_staleness", format!("{MAX_STALENESS}s")));
    fleet.run(&|number| if number == 2 { stepped.clone() } else { Default::default() });
    let mut faulty = Faulty::new(&net, &hosts, etcd, fleet);

    slow_store(&faulty, &ways);
    stopped_leader(&faulty);
    wrong_clock(&faulty, &clock);
    store_down(&mut faulty, seconds(6));
    compaction(&faulty);
    partition(&faulty);
    staleness(&faulty);
}

#[test]
fn a_fleet_survives_a_race_an_expired_certificate_and_an_old_backup() {
    let Some(net) = Net::new() else { return };
    let hosts = net.clients_beside(11);
    let Some(mut faulty) = Faulty::start(&net, &hosts) else { return };

    raced_tokens(&faulty);
    expired_certificate(&mut faulty);
    old_backup(&mut faulty);
}

/// `WARREN_STORE_DOWN` is the number of seconds.
#[test]
#[ignore = "takes ten minutes"]
fn a_store_that_is_down_for_ten_minutes_costs_no_packet() {
    let Some(net) = Net::new() else { return };
    let hosts = net.clients_beside(12);
    let Some(mut faulty) = Faulty::start(&net, &hosts) else { return };
    store_down(&mut faulty, seconds(asked("WARREN_STORE_DOWN").unwrap_or(600)));
}

/// Each operation of the second exit's store takes half a second longer.
fn slow_store(faulty: &Faulty<'_>, ways: &Ways) {
    const SLOW: Duration = Duration::from_millis(500);
    let (marks, exit, way) = (faulty.marks(), faulty.exit(1), faulty.way(1));
    let key = PrivateKey::generate().unwrap();
    exit.enrol_key("welcomed", &key.public().to_string());
    let invite = faulty.invite("invited-slowly");
    let before = welcomes(&faulty.net.client, way, &key);
    let quick = timed(|| drop(exit.enrol("quick")));

    ways.slow(SLOW);
    let during = welcomes(&faulty.net.client, way, &key);
    let (mut enrolments, mut enrolled) = (Vec::new(), 0);
    for number in 0..3 {
        let mut added = None;
        let line = format!("exit client add slow-{number}");
        enrolments.push(timed(|| added = Some(exit.warren.run(&line))));
        let added = added.unwrap();
        enrolled += usize::from(added.succeeded());
        assert!(added.succeeded() || added.stderr.contains("the fleet's store did not answer"), "{added:?}");
    }
    let mut redeemed = None;
    enrolments.push(timed(|| redeemed = Some(faulty.redeem(&invite, 1))));
    ways.slow(Duration::ZERO);

    match redeemed.unwrap() {
        Ok(name) => {
            assert_eq!(name, "invited-slowly");
            enrolled += 1;
        }
        Err(error) => assert!(format!("{error:?}").contains("try again"), "{error:?}"),
    }
    println!(
        "measured: slow store: Welcome after {before:.1?} before and {during:.1?} during (median); enrolments took {enrolments:.2?}, and \
         {quick:.2?} before"
    );
    assert!(enrolled > 0, "a slow store enrols nobody");
    // The goal is that a slow store delays a Welcome by at most 5 ms. On a busy machine the delay is longer, but still much
    // shorter than one operation of the store.
    assert!(during < before + SLOW / 4, "{during:?} instead of {before:?}");
    assert!(enrolments.iter().all(|took| *took < Duration::from_millis(4_500)), "{enrolments:?}");
    // The control: enrolments, which need the store, were slow, and were not before.
    assert!(enrolments.iter().all(|took| *took >= SLOW && *took > quick), "{enrolments:?} {quick:?}");
    faulty.assert_kept("slow store", &marks, &[0, 1, 2]);
}

/// The median time until a client that the exit knows is welcomed.
fn welcomes(host: &Namespace, way: (SocketAddr, PublicKey), key: &PrivateKey) -> Duration {
    let key = key.clone();
    let measuring = host.enter(move || {
        runtime().block_on(async {
            let mut times = Vec::new();
            // The first session is not counted, because in it the client gets its addresses.
            for _ in 0..14 {
                let start = Instant::now();
                let mut client = LibraryClient::start_in_fleet(way, key.clone(), 1);
                client.until("the exit welcomes its client", |client| client.attached() == 1).await;
                times.push(start.elapsed());
                client.leave().await;
            }
            times.remove(0);
            times.sort_unstable();
            times[times.len() / 2]
        })
    });
    measuring.join().unwrap()
}

/// The leader of the etcd members hangs.
fn stopped_leader(faulty: &Faulty<'_>) {
    let revoked = Guest::arrive(faulty.exit(1), &faulty.others[0], "revoked-by-leader");
    let leader = faulty.etcd.leader();
    let sessions = |exit: &Exit<'_>| exit.status().list("/sessions").len();
    let before: Vec<usize> = faulty.fleet.exits.iter().map(sessions).collect();
    let marks = faulty.marks();

    faulty.etcd.signal(leader, Signal::STOP);
    let since = faulty.remove(&revoked.name);
    let took = revoked.stops(since, seconds(5));
    let after: Vec<usize> = faulty.fleet.exits.iter().map(sessions).collect();
    faulty.etcd.signal(leader, Signal::CONT);

    println!("measured: stopped leader: a removed client's last packet {took:.2?} after the command began");
    assert_eq!(after, [before[0], before[1] - 1, before[2]], "no other session has ended");
    faulty.assert_kept("stopped leader", &marks, &[0, 1, 2]);
    revoked.leave();
}

/// The third exit's clock is an hour wrong.
fn wrong_clock(faulty: &Faulty<'_>, clock: &std::path::Path) {
    let is_wrong = |exit: usize| faulty.exit(exit).status().0["fleet"]["is_clock_wrong"] == true;
    let marks = faulty.marks();
    for (step, name) in [(3_600, "invited-ahead"), (-3_600, "invited-behind")] {
        let invite = faulty.invite(name);
        std::fs::write(clock, step.to_string()).unwrap();
        let offset = || faulty.metric(2, "warren_fleet_clock_offset_seconds")[0];
        let noticed = eventually(seconds(10), "the exit notices its clock", || {
            is_wrong(2) && (offset() - f64::from(step)).abs() < 5.0
        });

        let before = faulty.enrolled();
        let refused = faulty.redeem(&invite, 2);

        assert!(format!("{refused:?}").contains("try again"), "{refused:?}");
        assert_eq!(faulty.enrolled(), before);
        assert!(!is_wrong(0) && !is_wrong(1), "the others' clocks are right");
        // The control: another exit redeems the same invitation.
        assert_eq!(faulty.redeem(&invite, 1).as_deref(), Ok(name));
        println!("measured: clock {step} s off: noticed after {noticed:.1?}");
    }
    std::fs::write(clock, "0").unwrap();
    eventually(seconds(10), "the exit's clock is right", || !is_wrong(2));
    // The control: with a right clock, this exit redeems invitations, too.
    let invite = faulty.invite("invited-in-time");
    assert_eq!(faulty.redeem(&invite, 2).as_deref(), Ok("invited-in-time"));
    faulty.assert_kept("wrong clock", &marks, &[0, 1, 2]);
}

/// All members of etcd are dead for a while.
fn store_down(faulty: &mut Faulty<'_>, outage: Duration) {
    let revoked = Guest::arrive(faulty.exit(1), &faulty.others[0], "revoked-without-store");
    let left = Guest::arrive(faulty.exit(1), &faulty.others[1], "returning");
    let profile = left.profile.clone();
    left.leave();
    let invite = faulty.invite("invited-without-store");
    let (way, key) = (faulty.way(1), PrivateKey::generate().unwrap());
    faulty.exit(1).enrol_key("reconnecting", &key.public().to_string());
    let with_store = welcomes(&faulty.net.client, way, &key);
    let (before, marks) = (faulty.enrolled(), faulty.marks());

    let start = Instant::now();
    faulty.etcd.kill_all();
    faulty.wait_until_all_say("away", seconds(8));
    let since = faulty.remove(&revoked.name);
    let refused = faulty.exit(2).warren.run("exit client add nobody");
    assert!(refused.stderr.contains("the fleet's store does not answer"), "{refused:?}");
    let unredeemed = faulty.redeem(&invite, 2);
    assert!(format!("{unredeemed:?}").contains("try again"), "{unredeemed:?}");
    let returning = Guest::with(&faulty.others[1], "returning", profile);
    let without_store = welcomes(&faulty.net.client, way, &key);
    std::thread::sleep(outage.saturating_sub(start.elapsed()));
    assert_eq!(faulty.enrolled(), [before[0] - 1, before[1], before[2]], "nobody is enrolled");
    returning.assert_served();
    // The control: this exit still serves the removed client, so the store is really unreachable.
    revoked.assert_served();
    faulty.etcd.start_all();
    faulty.etcd.wait_until_ready();
    let back = Instant::now();
    let outage = start.elapsed();

    faulty.wait_until_all_say("reachable", seconds(5));
    let reachable = back.elapsed();
    revoked.stops(since, back.duration_since(since) + seconds(5));
    let caught_up = revoked.steady.last_answer().unwrap().saturating_duration_since(back);
    println!(
        "measured: store down for {outage:.1?}: Welcome after {without_store:.1?} instead of {with_store:.1?} (median); a removal \
         reached another exit {caught_up:.2?} after the store's return, and all were back after {reachable:.2?}"
    );
    assert!(without_store < with_store + Duration::from_millis(100), "{without_store:?}");
    // The control: the invitation still works.
    assert_eq!(faulty.redeem(&invite, 2).as_deref(), Ok("invited-without-store"));
    faulty.assert_kept("store down", &marks, &[0, 1, 2]);
    revoked.leave();
    returning.leave();
}

/// The third exit is cut off, and the store compacts changes that this exit has not seen.
fn compaction(faulty: &Faulty<'_>) {
    let revoked = Guest::arrive(faulty.exit(2), &faulty.others[0], "revoked-before-compaction");
    let marks = faulty.marks();
    let knows = |name: &str| faulty.exit(2).warren.run("exit client list").ok().contains(name);

    faulty.cut_off();
    eventually(seconds(6), "the exit is cut off", || store_of(faulty.exit(2)) == "away");
    faulty.remove(&revoked.name);
    faulty.exit(0).enrol("enrolled-before-compaction");
    faulty.etcd.compact();
    // The control: this exit still serves the removed client, so it is really cut off.
    revoked.assert_served();
    assert!(!knows("enrolled-before-compaction"));
    let healed = faulty.heal();

    let took = revoked.stops(healed, seconds(10));
    eventually(seconds(2), "the exit knows of the enrolment", || knows("enrolled-before-compaction"));
    println!(
        "measured: compaction: a removed client's last packet {took:.2?} after the exit reached the store"
    );
    let log = faulty.fleet.links[2].output();
    assert!(log.contains("the store has compacted changes"), "the link went on where it was: {log}");
    faulty.assert_kept("compaction", &marks, &[0, 1, 2]);
    revoked.leave();
}

/// The third exit is cut off for less than `max_staleness`. Meanwhile a client is removed, and another one connects elsewhere.
fn partition(faulty: &Faulty<'_>) {
    let [first, second, third] = [0, 1, 2].map(|host: usize| &faulty.others[host]);
    let revoked = Guest::arrive(faulty.exit(2), first, "revoked-behind-partition");
    let older = Guest::arrive(faulty.exit(2), second, "twice");
    let marks = faulty.marks();
    let has = |exit: usize, name: &str| {
        let status = faulty.exit(exit).status();
        status.list("/sessions").iter().any(|session| session["name"] == name)
    };

    faulty.cut_off();
    eventually(seconds(6), "the exit is cut off", || store_of(faulty.exit(2)) == "away");
    let newer = Guest::with(third, "twice", faulty.profile_at(&older.profile, 2, 0));
    faulty.remove(&revoked.name);
    // The control: the exit is cut off from the store, so it serves a removed client, and a key has two sessions.
    revoked.assert_served();
    assert!(has(0, "twice") && has(2, "twice"), "a key has two sessions");
    let healed = faulty.heal();

    eventually(seconds(2).saturating_sub(healed.elapsed()), "no key has two sessions", || {
        !(has(0, "twice") && has(2, "twice"))
    });
    let single = healed.elapsed();
    let took = revoked.stops(healed, seconds(2));
    assert!(has(0, "twice"), "the newer session is the one that stays");
    newer.assert_served();
    println!(
        "measured: partition: a removed client's last packet {took:.2?} after it, no key with two sessions after {single:.2?}"
    );
    faulty.assert_kept("partition", &marks, &[0, 1, 2]);
    [revoked, older, newer].into_iter().for_each(Guest::leave);
}

/// The third exit is cut off for longer than `max_staleness`.
fn staleness(faulty: &Faulty<'_>) {
    let limit = seconds(MAX_STALENESS);
    let (marks, keeper) = (faulty.marks(), &faulty.keepers[2]);
    faulty.cut_off();
    let since = Instant::now();

    eventually(limit + seconds(2), "the alert fires", || faulty.metric(2, "warren_fleet_stale") == [1.0]);
    let served = keeper.stops(since, limit + seconds(2));
    faulty.heal();
    let back = eventually(seconds(15), "the exit serves its client again", || {
        !keeper.steady.is_silent_for(Duration::from_millis(200))
    });

    println!(
        "measured: staleness: served for {served:.2?} with max_staleness = {limit:?}, again {back:.1?} after healing"
    );
    assert!(served >= limit - seconds(2), "{served:?}");
    // The control: clients of the exits that are not cut off have lost nothing.
    faulty.assert_kept("staleness", &marks, &[0, 1]);
}

/// Three keys compete for each invitation, one key at each exit. This is repeated until the exits have asked the store at the
/// same time.
fn raced_tokens(faulty: &Faulty<'_>) {
    const ROUNDS: usize = 10;
    let marks = faulty.marks();
    let conflicts = || (0..EXITS).map(|exit| faulty.conflicts(exit)).sum::<f64>();
    let before = conflicts();
    let mut rounds = 0;
    while conflicts() == before && rounds < ROUNDS {
        race_once(faulty, rounds);
        rounds += 1;
    }
    println!("measured: {} conflicts in {rounds} rounds", conflicts() - before);
    assert!(conflicts() > before, "the exits have asked the store at the same time");
    // The control: without a rival, the third exit enrols a key.
    let alone = faulty.invite("alone");
    assert_eq!(faulty.redeem(&alone, 2).as_deref(), Ok("alone"));
    faulty.assert_kept("raced tokens", &marks, &[0, 1, 2]);
}

fn race_once(faulty: &Faulty<'_>, round: usize) {
    const TOKENS: usize = 24;
    let mut invites: Vec<Invite> = (1..TOKENS)
        .map(|number| {
            let line = faulty.exit(0).warren.run(&format!("exit invite raced-{round}-{number}")).ok();
            line.split_whitespace().last().unwrap().parse().unwrap()
        })
        .collect();
    // Invitations are distributed in order, so an exit that knows the latest one knows all of them.
    invites.push(faulty.invite(&format!("raced-{round}-{TOKENS}")));
    let before = faulty.enrolled();
    let ways = [0, 1, 2].map(|exit: usize| faulty.way(exit));

    let start = Instant::now();
    let outcomes = faulty.race(invites, ways.to_vec());

    let took = start.elapsed();
    let mut won = [0; EXITS];
    for of_token in &outcomes {
        let winners: Vec<usize> = (0..EXITS).filter(|exit| of_token[*exit].is_ok()).collect();
        let refused = of_token.iter().filter(|outcome| matches!(outcome, Err(EnrolError::Refused(_))));
        assert_eq!((winners.len(), refused.count()), (1, EXITS - 1), "{of_token:?}");
        won[winners[0]] += 1;
    }
    println!("measured: {TOKENS} tokens raced in {took:.2?}, won by the exits {won:?}");
    eventually(seconds(5), "each exit has one client for each token", || {
        faulty.enrolled() == before.iter().map(|count| count + TOKENS as u64).collect::<Vec<_>>()
    });
}

/// The members' certificate expires soon, and then has expired.
fn expired_certificate(faulty: &mut Faulty<'_>) {
    let marks = faulty.marks();
    let days = |faulty: &Faulty<'_>| {
        let all = faulty.metric(1, "warren_fleet_certificate_days");
        all.into_iter().min_by(f64::total_cmp)
    };
    // The control: before, the certificate is valid for more than the alert's limit.
    assert!(days(faulty).is_some_and(|days| days > 14.0), "{:?}", days(faulty));
    faulty.etcd.start_anew(13);
    // A link checks the certificates when it starts and every ten minutes.
    faulty.restart_link(1);
    let warned = eventually(seconds(30), "the exit warns", || days(faulty).is_some_and(|days| days < 14.0));
    let said = faulty.exit(1).warren.run("status exit").ok();
    assert!(said.contains("of the fleet's store expires in 12 days"), "{said}");

    faulty.etcd.start_anew(-1);
    let noticed = faulty.wait_until_all_say("away", seconds(10));
    // Keys with leases may vanish now, because no link renews the leases. So only keys without a lease show whether somebody
    // writes.
    let (lasting, before) = (faulty.etcd.lasting(), faulty.enrolled());
    let refused = faulty.exit(0).warren.run("exit client add nobody");
    assert!(refused.stderr.contains("the fleet's store does not answer"), "{refused:?}");
    eventually(seconds(5), "the reason is the certificate", || {
        faulty.exit(1).warren.run("status exit").ok().contains("xpired")
    });
    faulty.restart_link(1);
    eventually(seconds(5), "the alert fires", || days(faulty).is_some_and(|days| days < 0.0));
    std::thread::sleep(seconds(2));
    assert_eq!(faulty.etcd.lasting(), lasting, "nobody has written to a store whose certificate has expired");
    assert_eq!(faulty.enrolled(), before);
    // The control: the store works for a client that does not verify its certificate.
    faulty.etcd.ctl_unverified("put used 1").ok();
    assert_ne!(faulty.etcd.lasting(), lasting);

    faulty.etcd.start_anew(DAYS);
    let back = faulty.wait_until_all_say("reachable", seconds(10));
    faulty.exit(2).enrol("enrolled-with-a-new-certificate");
    println!(
        "measured: certificate: warned after {warned:.1?}, expired: away after {noticed:.1?}, renewed: back after {back:.1?}"
    );
    faulty.assert_kept("expired certificate", &marks, &[0, 1, 2]);
}

/// An old backup of the store is restored, which lacks a removal and an enrolment.
fn old_backup(faulty: &mut Faulty<'_>) {
    let revoked = Guest::arrive(faulty.exit(1), &faulty.others[0], "revoked-after-backup");
    let backup = faulty.etcd.back_up();
    let since = faulty.remove(&revoked.name);
    revoked.stops(since, seconds(2));
    let later = Guest::arrive(faulty.exit(1), &faulty.others[1], "later-than-backup");
    let (marks, mark) = (faulty.marks(), later.steady.mark());
    let clients = |faulty: &Faulty<'_>| faulty.etcd.values("/warren/fleet/cl/").concat();
    assert!(!clients(faulty).contains(&revoked.name) && clients(faulty).contains(&later.name));
    // The links write their copies to disk within a second.
    std::thread::sleep(seconds(2));

    faulty.etcd.restore(&backup);
    let noticed = faulty.wait_until_all_say("refused", seconds(15));
    // The control: the backup has the removed client, and lacks the later one.
    assert!(clients(faulty).contains(&revoked.name) && !clients(faulty).contains(&later.name));
    assert!((0..EXITS).all(|exit| faulty.metric(exit, "warren_fleet_store_refused") == [1.0]));
    let refused = faulty.exit(2).warren.run("exit client add nobody");
    assert!(!refused.succeeded(), "{refused:?}");
    faulty.assert_out(&revoked);
    std::thread::sleep(seconds(1));
    let said = faulty.exit(0).warren.run("fleet recover").ok();
    println!("{said}");
    let back = faulty.wait_until_all_say("reachable", seconds(15));

    faulty.assert_out(&revoked);
    assert!(!clients(faulty).contains(&revoked.name) && clients(faulty).contains(&later.name));
    assert_eq!(later.steady.lost_since(mark).0, 0, "a client that the backup lacks");
    faulty.assert_kept("old backup", &marks, &[0, 1, 2]);
    println!("measured: old backup: noticed after {noticed:.1?}, used again {back:.1?} after the recovery");
    // The control: the later client may connect, also at another exit.
    let profile = faulty.profile_at(&later.profile, 1, 0);
    later.leave();
    Guest::with(&faulty.others[1], "later-than-backup", profile).leave();
    revoked.leave();
}
