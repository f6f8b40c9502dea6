use std::process::Command;

use super::*;

#[test]
fn whatever_stood_there_comes_back_as_it_was() {
    let odd = file_of(&[b'#', 0xff, 0xfe, b'\n'], 0o644);
    let strict = file_of(b"nameserver 192.0.2.1\noptions edns0", 0o640);
    for before in [Standing::Missing, link("../run/nowhere/stub-resolv.conf"), odd, strict] {
        let place = Place::with(&before);
        let ours = file("nameserver 10.66.0.1\n");

        assert!(replace(&place.path, &before, &ours).unwrap());
        assert_eq!(place.standing(), ours);
        assert!(replace(&place.path, &ours, &before).unwrap());

        assert_eq!(place.standing(), before);
        let record = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Standing>(&record).unwrap(), before);
        assert!(place.has_nothing_beside());
    }
}

#[test]
fn a_regular_file_stays_the_same_file() {
    let before = file("nameserver 192.0.2.1\nnameserver 192.0.2.2\n");
    let place = Place::with(&before);
    let inode = fs::metadata(&place.path).unwrap().ino();

    assert!(replace(&place.path, &before, &file("# short\n")).unwrap());

    assert_eq!(fs::read_to_string(&place.path).unwrap(), "# short\n");
    assert_eq!(fs::metadata(&place.path).unwrap().ino(), inode);
}

#[test]
fn what_a_link_leads_to_is_never_written() {
    let place = Place::with(&link("theirs"));
    let target = place.path.with_file_name("theirs");
    fs::write(&target, "theirs").unwrap();

    assert!(replace(&place.path, &link("theirs"), &file("ours")).unwrap());

    assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
    assert_eq!(fs::read_to_string(&place.path).unwrap(), "ours");
}

#[test]
fn object_that_another_program_puts_there_after_the_look_stays() {
    let kinds = |name: &str| [Standing::Missing, link(name), file(name)];
    for seen in kinds("seen") {
        for newer in kinds("newer") {
            for new in kinds("new") {
                let case = format!("{seen:?}, then {newer:?}, to be replaced by {new:?}");
                if (&seen, &new) == (&Standing::Missing, &Standing::Missing) || seen == newer {
                    continue;
                }
                let place = Place::with(&seen);
                place.put(&newer);

                assert!(!replace(&place.path, &seen, &new).unwrap(), "{case}");

                assert_eq!(place.standing(), newer, "{case}");
                assert!(place.has_nothing_beside(), "{case}");

                // As a control, if `seen` is read again just before the write, the newer object is lost.
                assert!(replace(&place.path, &place.standing(), &new).unwrap(), "{case}");
                assert_eq!(place.standing(), new, "{case}");
            }
        }
    }
}

#[test]
fn file_that_is_written_in_place_after_the_look_stays() {
    let place = Place::with(&file("seen"));
    fs::write(&place.path, "newer").unwrap();

    assert!(!replace(&place.path, &file("seen"), &file("new")).unwrap());

    assert_eq!(place.standing(), file("newer"));
}

#[test]
fn newest_object_stays_if_another_program_is_faster_twice() {
    let place = Place::with(&link("newer"));
    // Another program's file has replaced Warren's file before Warren could put the newer link back.
    fs::write(beside(&place.path), "newest").unwrap();

    assert!(!exchange(&place.path, &link("seen"), &file("ours")).unwrap());

    assert_eq!(place.standing(), file("newest"));
    assert!(place.has_nothing_beside());
}

#[test]
fn last_of_many_objects_stays_or_was_seen() {
    let mut races = 0;
    for _ in 0..100 {
        let place = Place::with(&link("0"));
        let (path, new) = (place.path.clone(), place.path.with_file_name("new"));
        let writer = std::thread::spawn(move || {
            for number in 1..=20 {
                symlink(number.to_string(), &new).unwrap();
                fs::rename(&new, &path).unwrap();
            }
        });
        let mut seen = link("0");
        loop {
            let is_last = writer.is_finished();
            let standing = place.standing();
            if standing != file("ours") {
                seen = standing;
                races += u32::from(!replace(&place.path, &seen, &file("ours")).unwrap());
            }
            if is_last {
                break;
            }
        }
        writer.join().unwrap();

        assert_eq!((place.standing(), seen), (file("ours"), link("20")));
        assert!(place.has_nothing_beside());
    }
    assert!(races > 0, "another program was faster at least once");
}

#[test]
fn without_an_exchange_an_object_that_is_newer_than_the_look_stays() {
    let place = Place::with(&link("seen"));
    prepare(&place.path, &file("ours")).unwrap();
    assert!(rename_over(&place.path, &link("seen")).unwrap());
    assert_eq!(place.standing(), file("ours"));

    place.put(&link("newer"));
    prepare(&place.path, &file("ours")).unwrap();
    assert!(!rename_over(&place.path, &link("seen")).unwrap());
    assert_eq!(place.standing(), link("newer"));
    assert!(place.has_nothing_beside());
}

/// Needs root. The test runs itself again in a mount namespace.
#[test]
fn mounted_file_is_written_in_place_and_emptied_instead_of_removed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Ok(path) = std::env::var("WARREN_TEST_MOUNTED") else {
        let place = Place::with(&file("beneath"));
        fs::write(place.path.with_file_name("above"), "above").unwrap();
        let name = "dns::replace::tests::mounted_file_is_written_in_place_and_emptied_instead_of_removed";
        let script = "mount --bind \"${1%/*}/above\" \"$1\" && shift && exec \"$@\"";
        let status = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(&place.path)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("WARREN_TEST_MOUNTED", &place.path)
            .status();
        assert!(status.unwrap().success());
        assert_eq!(place.standing(), file("beneath"));
        assert_eq!(fs::read_to_string(place.path.with_file_name("above")).unwrap(), "");
        return;
    };
    let path = Path::new(&path);
    let seen = Standing::at(path).unwrap();
    assert!(replace(path, &seen, &file("ours")).unwrap());
    assert_eq!(Standing::at(path).unwrap(), file("ours"));
    assert!(replace(path, &file("ours"), &Standing::Missing).unwrap());
    assert_eq!(Standing::at(path).unwrap(), file(""));
    assert_eq!(left_behind(path).unwrap(), Standing::Missing);
}

/// A path in a directory of its own.
struct Place {
    directory: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn with(standing: &Standing) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        let place = Self { directory, path };
        place.put(standing);
        place
    }

    /// Replaces the object in one step, as another program would.
    fn put(&self, standing: &Standing) {
        let new = self.directory.path().join("new");
        match standing {
            Standing::Missing => return durable_file::remove(&self.path).unwrap(),
            Standing::Link { target } => symlink(target, &new).unwrap(),
            Standing::File { content, mode, .. } => {
                fs::write(&new, content.bytes()).unwrap();
                fs::set_permissions(&new, Permissions::from_mode(*mode)).unwrap();
            }
        }
        fs::rename(new, &self.path).unwrap();
    }

    fn standing(&self) -> Standing {
        Standing::at(&self.path).unwrap()
    }

    fn has_nothing_beside(&self) -> bool {
        left_behind(&self.path).unwrap() == Standing::Missing
    }
}

fn link(target: &str) -> Standing {
    Standing::Link { target: target.into() }
}

fn file(text: &str) -> Standing {
    file_of(text.as_bytes(), 0o644)
}

fn file_of(content: &[u8], mode: u32) -> Standing {
    let Owner { user, group } = Owner::own();
    Standing::File { content: content.to_owned().into(), mode, user, group }
}
