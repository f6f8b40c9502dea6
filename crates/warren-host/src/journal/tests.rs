//! Tests of reading complete and torn journals, and of the lock.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::*;
use crate::{DeviceName, Family, FirewallMark, Route, RouteKind, Rule, TableFamily, sysctl::Companion};

#[test]
fn what_was_begun_and_not_ended_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut journal = Journal::open(&path).unwrap().unwrap();

    journal.begin(table("a")).unwrap();
    let ended = journal.begin(table("b")).unwrap();
    journal.begin(table("c")).unwrap();
    journal.end(ended).unwrap();
    drop(journal);

    let journal = Journal::open(&path).unwrap().unwrap();
    assert_eq!(journal.outstanding().values().cloned().collect::<Vec<_>>(), [table("a"), table("c")]);
    assert_eq!(journal.place(), Some(&Place::here().unwrap()));
}

#[test]
fn journal_with_nothing_left_in_it_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut journal = Journal::open(&path).unwrap().unwrap();

    let entry = journal.begin(table("a")).unwrap();
    journal.end(entry).unwrap();
    drop(journal);

    assert!(!path.exists());
}

#[test]
fn open_journal_is_refused_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let _open = Journal::open(&path).unwrap().unwrap();

    assert!(Journal::open(&path).unwrap().is_none());
}

#[test]
fn torn_line_is_cut_off_before_more_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut journal = Journal::open(&path).unwrap().unwrap();
    journal.begin(table("a")).unwrap();
    drop(journal);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"begin\":{\"ent").unwrap();

    let mut journal = Journal::open(&path).unwrap().unwrap();
    journal.begin(table("b")).unwrap();
    drop(journal);

    let journal = Journal::open(&path).unwrap().unwrap();
    assert_eq!(journal.outstanding().values().cloned().collect::<Vec<_>>(), [table("a"), table("b")]);
    assert!(journal.damaged().is_empty());
}

/// The file is in memory and cannot grow. The kernel writes up to the end of its first page, as on a full disk.
#[test]
fn line_that_a_full_disk_takes_in_part_is_cut_off() {
    const PAGE: u16 = 4_096;
    let file = File::from(memfd_create("journal", MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(PAGE.into()).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut journal = Journal { path, file, contents: Contents::default(), next: 0 };
    journal.begin(table("a")).unwrap();
    let small = line(&Record::Begin { entry: 2, undo: table("c") }).len();
    let filling = u64::from(PAGE) - journal.file.stream_position().unwrap() - small as u64;
    journal
        .file
        .write_all(&[vec![b' '; usize::try_from(filling).unwrap() - 1], b"\n".to_vec()].concat())
        .unwrap();
    fcntl_add_seals(&journal.file, SealFlags::GROW).unwrap();

    // The control: the kernel takes a part of the line.
    let long = line(&Record::Begin { entry: 1, undo: table(&"b".repeat(PAGE.into())) });
    let start = journal.file.stream_position().unwrap();
    assert_eq!(journal.file.write(&long).unwrap(), small);
    journal.file.seek(SeekFrom::Start(start)).unwrap();
    assert!(journal.begin(table(&"b".repeat(PAGE.into()))).is_err());
    assert_eq!(
        (journal.file.metadata().unwrap().len(), journal.file.stream_position().unwrap()),
        (start, start)
    );
}

#[test]
fn damaged_line_is_reported_and_the_others_count() {
    let begin = |entry, name| line(&Record::Begin { entry, undo: table(name) });
    let text = [begin(0, "a"), b"rubbish\n".to_vec(), begin(1, "b")].concat();

    let contents = Contents::read(&text);

    assert_eq!(contents.damaged, [2]);
    assert_eq!(contents.outstanding.len(), 2);
}

proptest! {
    #[test]
    fn every_record_reads_as_it_was_written(undo in undo(), entry: u64) {
        let record = Record::Begin { entry, undo };
        let read: Record = serde_json::from_slice(&line(&record)).unwrap();
        prop_assert_eq!(read, record);
    }

    #[test]
    fn journal_cut_anywhere_means_what_its_whole_lines_mean(
        steps in proptest::collection::vec((undo(), any::<bool>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut lines = Vec::new();
        for (entry, (undo, ends)) in steps.into_iter().enumerate() {
            let entry = entry as u64;
            lines.push(Record::Begin { entry, undo });
            if ends {
                lines.push(Record::End { entry });
            }
        }
        let text: Vec<u8> = lines.iter().flat_map(line).collect();
        let torn = &text[..cut.index(text.len() + 1)];
        let whole_lines = torn.iter().filter(|byte| **byte == b'\n').count();

        let contents = Contents::read(torn);

        let mut expected = BTreeMap::new();
        for record in lines.into_iter().take(whole_lines) {
            match record {
                Record::Begin { entry, undo } => drop(expected.insert(entry, undo)),
                Record::End { entry } => drop(expected.remove(&entry)),
                Record::Place(_) => {}
            }
        }
        prop_assert_eq!(contents.outstanding, expected);
        prop_assert!(contents.damaged.is_empty());
    }

    #[test]
    fn any_bytes_can_be_read(text: Vec<u8>) {
        Contents::read(&text);
    }
}

fn table(name: &str) -> Undo {
    Undo::Nftables { family: TableFamily::Inet, table: name.into() }
}

fn line(record: &Record) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).unwrap();
    line.push(b'\n');
    line
}

fn undo() -> impl Strategy<Value = Undo> {
    prop_oneof![
        (device(), any::<u32>(), network()).prop_map(|(device, index, address)| Undo::Address {
            device,
            index,
            address
        }),
        (device(), any::<u32>(), any::<bool>(), any::<u32>(), any::<Option<u8>>(), any::<Option<u32>>())
            .prop_map(|(device, index, was_up, mtu, address_generation, group)| Undo::Link {
                device,
                index,
                was_up,
                mtu,
                address_generation,
                group
            }),
        (route(), any::<Option<u32>>()).prop_map(|(route, index)| Undo::Route { route, index }),
        rule().prop_map(Undo::Rule),
        (
            any::<String>(),
            any::<Option<u32>>(),
            any::<String>(),
            any::<String>(),
            proptest::collection::vec(companion(), 0..4)
        )
            .prop_map(|(key, index, set, previous, companions)| Undo::Sysctl {
                key,
                index,
                set,
                previous,
                companions
            }),
        any::<String>().prop_map(|table| Undo::Nftables { family: TableFamily::Inet, table }),
        any::<String>().prop_map(|table| Undo::Nftables { family: TableFamily::Arp, table }),
    ]
}

fn companion() -> impl Strategy<Value = Companion> {
    (any::<String>(), any::<String>(), any::<String>()).prop_map(|(key, previous, set)| Companion {
        key,
        previous,
        set,
    })
}

fn route() -> impl Strategy<Value = Route> {
    (network(), proptest::option::of(device()), any::<u32>(), any::<bool>(), any::<u32>()).prop_map(
        |(destination, device, table, leads, metric)| {
            let kind = if leads { RouteKind::Unicast } else { RouteKind::Unreachable };
            Route { destination, device, table, kind, metric }
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    let matches = (any::<Option<(u32, u32)>>(), any::<bool>(), proptest::option::of(device()));
    (any::<bool>(), any::<u32>(), matches, any::<u32>(), any::<Option<u32>>()).prop_map(
        |(is_ipv4, priority, (fwmark, invert, iif), table, suppress_prefix_length)| Rule {
            family: if is_ipv4 { Family::Ipv4 } else { Family::Ipv6 },
            priority,
            fwmark: fwmark.map(|(mark, mask)| FirewallMark { mark, mask }),
            invert,
            table,
            suppress_prefix_length,
            from: None,
            iif,
        },
    )
}

fn device() -> impl Strategy<Value = DeviceName> {
    "[a-z][a-z0-9._-]{0,14}".prop_map(|name| DeviceName::new(name).unwrap())
}

fn network() -> impl Strategy<Value = ipnet::IpNet> {
    let ipv4 = (any::<[u8; 4]>(), 0..=32_u8)
        .prop_map(|(address, length)| ipnet::IpNet::new(address.into(), length).unwrap());
    let ipv6 = (any::<[u8; 16]>(), 0..=128_u8)
        .prop_map(|(address, length)| ipnet::IpNet::new(address.into(), length).unwrap());
    prop_oneof![ipv4, ipv6]
}
