//! A fleet with 100,000 clients. It prints figures.

use std::time::{Duration, Instant};

use warren_fleet_link::StoreLink;
use warren_session::clients::RowChange;

use super::support::exit::Exit;
use super::support::proxy::{CUT, OPEN};
use super::{client, number_key, removal, three_exits_one_behind_a_way};

const CLIENTS: usize = 100_000;

fn row(number: usize) -> RowChange {
    let mut enrolled = client(&format!("client{number}"), number_key(number));
    let [_, high, middle, low] = u32::try_from(number + 0x2_0000).unwrap().to_be_bytes();
    enrolled.leased_ipv4 = Some([10, high, middle, low].into());
    enrolled.into()
}

/// The resident memory of a link in bytes.
fn memory(exit: &Exit) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", exit.process())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

#[test]
#[ignore = "measures"]
fn figures_of_a_hundred_thousand_clients() {
    let (mut fleet, ways) = three_exits_one_behind_a_way();
    let empty = memory(&fleet.exits[2]);
    let rows: Vec<_> = (0..CLIENTS).map(row).collect();
    let since = Instant::now();
    let all = |exit: &Exit, count: usize| {
        exit.wait_within("all are known", Duration::from_secs(120), |seen| {
            (seen.rows.len() == count).then_some(())
        });
    };
    std::thread::scope(|scope| {
        for (part, exit) in rows.chunks(CLIENTS.div_ceil(2)).zip(&fleet.exits) {
            scope.spawn(move || {
                for rows in part.chunks(200) {
                    exit.store(rows);
                }
            });
        }
    });
    println!("{CLIENTS} clients stored in {:?}", since.elapsed());
    fleet.exits.iter().for_each(|exit| all(exit, CLIENTS));

    // A link that is behind a compaction.
    ways.set(CUT);
    fleet.exits[2]
        .wait("the store is away", |seen| matches!(seen.store, Some(StoreLink::Away { .. })).then_some(()));
    fleet.exits[0].store(&removal("client7", number_key(7)));
    fleet.exits[0].store(&[row(CLIENTS + 1)]);
    fleet.store.etcdctl_ok(&["compact", &fleet.store.revision().to_string()]);
    ways.set(OPEN);
    let since = Instant::now();
    let newest = number_key(CLIENTS + 1);
    while fleet.exits[2].client(newest).is_none() || fleet.exits[2].client(number_key(7)).is_some() {
        assert!(since.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("read again and compared {:?} after a compaction", since.elapsed());
    assert!(fleet.exits[2].log().contains("has compacted"), "the link went on where it was");
    let each = (memory(&fleet.exits[2]) - empty) / CLIENTS;
    println!("memory of a link: {} MiB, {each} bytes a client", memory(&fleet.exits[2]) >> 20);

    // Idle exits.
    std::thread::sleep(Duration::from_secs(3));
    let (revision, since) = (fleet.store.revision(), Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let writes = f64::from(i32::try_from(fleet.store.revision() - revision).unwrap());
    println!("idle: {:.2} writes a second for each exit", writes / since.elapsed().as_secs_f64() / 3.0);

    // A link that starts with its copy on disk, while the store is unreachable.
    fleet.exits[2].stop_link("TERM");
    ways.set(CUT);
    fleet.exits[2].seen(|seen| (seen.wholes, seen.rows) = (0, Default::default()));
    let since = Instant::now();
    fleet.exits[2].start_link();
    fleet.exits[2].wait_within("the copy on disk is there", Duration::from_secs(60), |seen| {
        (seen.wholes == 1).then_some(())
    });
    println!("started from the snapshot in {:?}", since.elapsed());
    all(&fleet.exits[2], CLIENTS + 1);
    ways.set(OPEN);
}
