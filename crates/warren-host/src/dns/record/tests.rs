use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;
use crate::dns::nameservers;

#[test]
fn the_last_profile_up_is_asked_and_the_original_comes_back_in_either_order() {
    for order in [["home", "work"], ["work", "home"]] {
        let host = Host::with("nameserver 192.0.2.1\n");
        host.record().add("home", &servers(1), false).unwrap();
        host.record().add("work", &servers(2), false).unwrap();
        assert_eq!(host.asked(), servers(2));

        assert!(host.record().remove(order[0]).unwrap());
        let other = if order[0] == "home" { 2 } else { 1 };
        assert_eq!(host.asked(), servers(other));
        assert!(host.record().remove(order[1]).unwrap());

        assert_eq!(host.text(), "nameserver 192.0.2.1\n");
        assert!(!host.has_record());
    }
}

#[test]
fn stub_leaves_the_originals_other_settings_and_knows_whom_it_replaces() {
    let host = Host::with("search lan\nnameserver 192.0.2.1\noptions edns0\n");
    let asked =
        |record: &Record, owner| record.below(owner).iter().map(ToString::to_string).collect::<Vec<_>>();
    host.record().add("home", &servers(1), true).unwrap();
    assert!(host.text().ends_with("nameserver 10.66.0.1\nsearch lan\noptions edns0\n"), "{}", host.text());
    assert_eq!(asked(&host.record(), "home"), ["192.0.2.1:53"]);
    assert_eq!(host.record().repair().unwrap(), Found::Ours);

    host.write("search office\nnameserver 192.0.2.9\n");
    assert_eq!(host.record().repair().unwrap(), Found::Foreign);
    assert!(host.text().ends_with("nameserver 10.66.0.1\nsearch office\n"), "{}", host.text());
    assert_eq!(asked(&host.record(), "home"), ["192.0.2.9:53"]);

    // With several split tunnels, the stub of the second profile asks the stub of the first. A full tunnel removes the network's
    // other settings.
    host.record().add("work", &servers(2), true).unwrap();
    assert_eq!(asked(&host.record(), "work"), ["10.66.0.1:53"]);
    host.record().add("full", &servers(3), false).unwrap();
    assert!(!host.text().contains("search"), "{}", host.text());
    for owner in ["full", "work", "home"] {
        host.record().remove(owner).unwrap();
    }
    assert_eq!(host.text(), "search office\nnameserver 192.0.2.9\n");
}

#[test]
fn what_a_dhcp_client_writes_meanwhile_is_what_comes_back() {
    let host = Host::with("nameserver 192.0.2.1\n");
    host.record().add("home", &servers(1), false).unwrap();

    host.write("nameserver 192.0.2.99\n");
    assert_eq!(host.record().repair().unwrap(), Found::Foreign);

    assert_eq!(host.asked(), servers(1));
    assert_eq!(host.record().repair().unwrap(), Found::Ours);
    host.record().remove("home").unwrap();
    assert_eq!(host.text(), "nameserver 192.0.2.99\n");
}

#[test]
fn resolver_of_a_vpn_that_came_later_and_went_is_forgotten() {
    let host = Host::with("nameserver 192.0.2.1\n");
    host.record().add("home", &servers(1), false).unwrap();
    let ours = host.text();
    host.write("nameserver 100.64.0.1\n");
    host.record().repair().unwrap();

    // The VPN saved Warren's text as the original, and now puts it back.
    host.write(&ours);
    assert_eq!(host.record().repair().unwrap(), Found::Ours);

    host.record().remove("home").unwrap();
    assert_eq!(host.text(), "nameserver 192.0.2.1\n");
}

#[test]
fn what_was_written_after_a_daemon_was_killed_stays() {
    let host = Host::with("nameserver 192.0.2.1\n");
    host.record().add("home", &servers(1), false).unwrap();
    host.write("nameserver 192.0.2.99\n");

    host.record().remove("home").unwrap();

    assert_eq!(host.text(), "nameserver 192.0.2.99\n");
    assert!(!host.has_record());
}

#[test]
fn own_text_that_another_program_put_back_after_the_end_is_told_from_another_warren_s() {
    let host = Host::with("nameserver 192.0.2.1\n");
    host.record().add("home", &servers(1), false).unwrap();
    let ours = host.text();
    host.record().remove("home").unwrap();
    host.write(&ours);

    let error = host.record().add("home", &servers(1), false).unwrap_err();

    assert!(matches!(&error, DnsError::Returned(_)), "{error}");
    assert_eq!(host.text(), ours);
}

#[test]
fn text_of_a_warren_with_another_record_is_never_an_original() {
    let host = Host::with("");
    let other = Path::new("/var/lib/other/dns/resolv.conf.1");
    host.write(&text("home", &servers(9), other));

    let error = host.record().add("home", &servers(1), false).unwrap_err();

    assert!(matches!(&error, DnsError::OtherWarren { record, .. } if record == other), "{error}");
    assert_eq!(host.asked(), servers(9));
    assert!(!host.has_record());
}

#[test]
fn profile_that_is_up_may_change_its_resolvers() {
    let host = Host::with("nameserver 192.0.2.1\n");
    host.record().add("home", &servers(1), false).unwrap();
    host.record().add("home", &servers(2), false).unwrap();

    assert_eq!(host.asked(), servers(2));
    host.record().remove("home").unwrap();
    assert_eq!(host.text(), "nameserver 192.0.2.1\n");
}

#[test]
fn file_that_another_program_wrote_into_at_the_same_time_is_no_original() {
    let host = Host::with("nameserver 192.0.2.1\n");
    host.record().add("home", &servers(1), false).unwrap();

    host.write(&format!("{}server 192.0.2.99\n", host.text()));

    assert_eq!(host.record().repair().unwrap(), Found::Garbled);
    assert_eq!(host.record().repair().unwrap(), Found::Ours);
    host.record().remove("home").unwrap();
    assert_eq!(host.text(), "nameserver 192.0.2.1\n");
}

#[test]
fn link_comes_back_as_a_link() {
    let host = Host::with("");
    fs::remove_file(&host.file).unwrap();
    symlink("../run/manager/resolv.conf", &host.file).unwrap();

    host.record().add("home", &servers(1), false).unwrap();
    assert_eq!(host.asked(), servers(1));
    host.record().remove("home").unwrap();

    assert_eq!(fs::read_link(&host.file).unwrap(), Path::new("../run/manager/resolv.conf"));
}

#[test]
fn text_that_another_program_writes_between_the_look_and_the_write_is_what_comes_back() {
    for newest in newest_objects() {
        let host = Host::with("nameserver 192.0.2.1\n");
        host.record().add("home", &servers(1), false).unwrap();
        host.write("# the network is down\n");
        let mut record = host.record();
        let (standing, found) = record.look().unwrap();
        assert_eq!(found, Found::Foreign);

        host.put(&newest);
        record.write(standing).unwrap();

        assert_eq!(host.asked(), servers(1));
        drop(record);
        host.record().remove("home").unwrap();
        assert_eq!(host.standing(), newest);

        // As a control, a write that replaces the current object, instead of the one that `look` found, loses the newest text.
        host.write("nameserver 192.0.2.1\n");
        host.record().add("home", &servers(1), false).unwrap();
        host.write("# the network is down\n");
        let mut record = host.record();
        record.look().unwrap();
        host.put(&newest);
        record.write(host.standing()).unwrap();
        drop(record);
        host.record().remove("home").unwrap();
        assert_eq!(host.text(), "# the network is down\n");
    }
}

#[test]
fn text_that_another_program_writes_before_the_first_write_is_what_comes_back() {
    for newest in newest_objects() {
        let host = Host::with("nameserver 192.0.2.1\n");
        let standing = host.standing();
        let mut record = host.record();
        let layer = Layer { owner: "home".to_owned(), servers: servers(1), is_split: false };
        record.contents = Contents { originals: vec![standing.clone()], layers: vec![layer], written: None };

        host.put(&newest);
        record.write(standing).unwrap();

        assert_eq!(host.asked(), servers(1));
        assert!(record.remove("home").unwrap());
        assert_eq!(host.standing(), newest);
    }
}

/// A kill between two system calls leaves each of these states on the disk.
#[test]
fn another_programs_object_comes_back_after_a_kill_between_two_steps() {
    let newer = file("nameserver 192.0.2.99\n");
    for original in [link("original"), Standing::Missing] {
        // For each state: the object at the path, the object beside it, and the object that must be restored. `None` stands for
        // Warren's text.
        let states = [
            ("before Warren's text takes the link's place", Some(&original), None, &original),
            ("after that", None, Some(&original), &original),
            ("after it took the place of a newer text", None, Some(&newer), &newer),
            ("after that, and the newer text is back", Some(&newer), None, &newer),
            ("before the original takes the place of Warren's text", None, Some(&original), &original),
            ("after the original took the place of a newer text", Some(&original), Some(&newer), &newer),
        ];
        for (moment, at_path, at_side, returns) in states {
            let host = Host::with("");
            host.put(&original);
            host.record().add("home", &servers(1), false).unwrap();
            let ours = host.standing();
            let mut record = host.record();
            record.contents.written = None;
            record.keep().unwrap();
            drop(record);
            host.put_at(&replace::beside(&host.file), at_side.unwrap_or(&ours));
            host.put(at_path.unwrap_or(&ours));

            host.record().remove("home").unwrap();

            assert_eq!(&host.standing(), returns, "{original:?}: killed {moment}");
            assert_eq!(replace::left_behind(&host.file).unwrap(), Standing::Missing, "{moment}");
            assert!(!host.has_record());
        }
    }
}

#[test]
fn incomplete_file_of_a_killed_process_is_no_original() {
    let host = Host::with("");
    host.put(&link("original"));
    host.record().add("home", &servers(1), false).unwrap();
    host.put_at(&replace::beside(&host.file), &file(""));

    host.record().remove("home").unwrap();

    assert_eq!(host.standing(), link("original"));
    assert_eq!(replace::left_behind(&host.file).unwrap(), Standing::Missing);
}

/// The process that the next test starts and kills. It is not a test itself.
#[test]
fn process_that_adds_and_removes_a_layer() {
    let Ok(directory) = std::env::var("WARREN_TEST_RESOLV_CONF") else { return };
    let (file, state) = (Path::new(&directory).join("resolv.conf"), Path::new(&directory).join("state"));
    loop {
        Record::open(&state, &file).unwrap().add("home", &servers(1), false).unwrap();
        Record::open(&state, &file).unwrap().repair().unwrap();
        Record::open(&state, &file).unwrap().remove("home").unwrap();
    }
}

#[test]
fn last_object_of_another_program_comes_back_after_a_kill_at_any_moment() {
    let mut found = 0;
    for moment in 0..60_u32 {
        let host = Host::with("");
        host.put(&link("0"));
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "dns::record::tests::process_that_adds_and_removes_a_layer"])
            .env("WARREN_TEST_RESOLV_CONF", host.directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while !host.has_record() && begin.elapsed().as_secs() < 20 {
            thread::yield_now();
        }
        let writes = 1 + moment % 4;
        let objects: Vec<Standing> =
            (1..=writes).map(|number| newest_objects()[(number + moment) as usize % 3].clone()).collect();
        for object in &objects {
            host.put(object);
            thread::sleep(Duration::from_micros(u64::from(moment) * 613 % 9_000));
        }
        process.kill().unwrap();
        process.wait().unwrap();
        found += usize::from(host.record().has("home"));

        host.record().remove("home").unwrap();

        assert_eq!(Some(&host.standing()), objects.last(), "moment {moment}");
        assert_eq!(host.record().contents, Contents::default());
    }
    assert!(found > 0, "no kill left anything to put back");
}

#[test]
fn what_is_neither_file_nor_link_is_refused() {
    let host = Host::with("");
    fs::remove_file(&host.file).unwrap();
    fs::create_dir(&host.file).unwrap();

    assert!(matches!(Record::open(&host.state(), &host.file), Err(DnsError::NotAFile(_))));
    assert!(!host.has_record());
}

proptest! {
    // There are few cases, because each step syncs files to the disk.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Profiles are added, changed and removed while other programs write the file. In the end, the file contains the last text
    /// that another program wrote.
    #[test]
    fn the_newest_foreign_text_is_what_remains(steps in prop::collection::vec((0..4_u8, 0..3_usize), 0..24)) {
        let owners = ["a", "b", "c"];
        let host = Host::with("original 0\n");
        let mut newest = host.text();
        for (number, (action, which)) in steps.into_iter().enumerate() {
            match action {
                0 => host.record().add(owners[which], &servers(u8::try_from(number).unwrap()), false).unwrap(),
                1 => assert!(host.record().remove(owners[which]).is_ok()),
                2 => assert!(host.record().repair().is_ok()),
                _ => {
                    newest = format!("foreign {number}\n");
                    host.write(&newest);
                }
            }
        }
        for owner in owners {
            host.record().remove(owner).unwrap();
        }
        prop_assert_eq!(host.text(), newest);
        prop_assert!(!host.has_record());
    }
}

/// A directory with a `resolv.conf` and a place for records.
struct Host {
    directory: tempfile::TempDir,
    file: PathBuf,
}

impl Host {
    fn with(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("resolv.conf");
        fs::create_dir(directory.path().join("state")).unwrap();
        let host = Self { directory, file };
        host.write(text);
        host
    }

    fn record(&self) -> Record {
        Record::open(&self.state(), &self.file).unwrap()
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Replaces the file with a new one of the same name, as another program would.
    fn write(&self, text: &str) {
        self.put(&file(text));
    }

    /// Puts an object at the file's path in one step, as another program would.
    fn put(&self, standing: &Standing) {
        self.put_at(&self.file, standing);
    }

    fn put_at(&self, path: &Path, standing: &Standing) {
        let new = self.directory.path().join("new");
        match standing {
            Standing::Missing => return state::remove(path).unwrap(),
            Standing::Link { target } => symlink(target, &new).unwrap(),
            Standing::File { content, .. } => fs::write(&new, content.bytes()).unwrap(),
        }
        fs::rename(new, path).unwrap();
    }

    fn standing(&self) -> Standing {
        Standing::at(&self.file).unwrap()
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    fn asked(&self) -> Vec<IpAddr> {
        nameservers(&self.text())
    }

    fn has_record(&self) -> bool {
        let names = fs::read_dir(self.state()).unwrap().map(|entry| entry.unwrap().file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with(PREFIX))
    }
}

/// Objects that another program may put at the file's path.
fn newest_objects() -> [Standing; 3] {
    [file("nameserver 192.0.2.99\n"), link("../run/manager/resolv.conf"), file("search lan\n")]
}

fn link(target: &str) -> Standing {
    Standing::Link { target: target.into() }
}

fn file(text: &str) -> Standing {
    let Owner { user, group } = Owner::own();
    Standing::File { content: text.to_owned().into_bytes().into(), mode: 0o644, user, group }
}

fn servers(last: u8) -> Vec<IpAddr> {
    vec![IpAddr::from([10, 66, 0, last])]
}
