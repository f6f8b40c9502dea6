//! Files that cannot be read, and which file an argument means.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{PRIVATE_KEY, PUBLIC_KEY, profile_text};
use crate::{ClientsImport, clients_text, find_profile, load_exit, load_profile, lock_clients};

fn write(path: &Path, content: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The error for a file with this content, without the directory's path.
fn error_of(content: impl AsRef<[u8]>, mode: u32) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("home.toml");
    write(&path, content, mode);
    let error = load_profile(&path).unwrap_err().to_string();
    error.replace(&format!("{}/", directory.path().display()), "")
}

#[test]
fn whole_profile_is_loaded_with_the_key_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let key_line = format!("private_key = \"{PRIVATE_KEY}\"");
    write(
        &directory.path().join("home.toml"),
        profile_text("").replace(&key_line, "private_key_file = \"home.key\""),
        0o644,
    );
    write(&directory.path().join("home.key"), PRIVATE_KEY, 0o600);
    let profile = load_profile(&directory.path().join("home.toml")).unwrap();
    assert_eq!(profile.private_key.to_base64().as_str(), PRIVATE_KEY);
}

#[test]
fn key_that_others_can_read_is_refused() {
    for mode in [0o644, 0o640, 0o604, 0o660] {
        let error = error_of(profile_text(""), mode);
        assert_eq!(
            error,
            format!(
                "home.toml:2: private_key is in a file that other users can access (mode {mode:04o}); \
                 run: chmod 600 home.toml"
            )
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("home.key");
    write(&key, PRIVATE_KEY, 0o644);
    let text = format!(
        "[client]\nprivate_key_file = \"{}\"\n[[exit]]\nendpoint = \"a\"\npublic_key = \"{PUBLIC_KEY}\"\n",
        key.display()
    );
    let error = error_of(text, 0o600);
    assert!(error.starts_with("home.toml:2: private_key_file: ") && error.contains("chmod 600"), "{error}");
}

#[test]
fn what_is_no_text_is_refused() {
    assert_eq!(
        error_of(b"[tun]\nname = \"\xff\"\n", 0o600),
        "home.toml:2: is not UTF-8 text; save the file as UTF-8"
    );
    assert_eq!(
        error_of(b"[tun]\n\nname = \"\0\"\n", 0o600),
        "home.toml:3: holds a NUL byte; the file is damaged or not text, so restore it"
    );
    let large = "#\n".repeat(5 * 1024 * 1024);
    assert_eq!(error_of(large, 0o600), "home.toml: is larger than 1 MiB; this is not a Warren configuration");
}

#[test]
fn what_is_no_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("home.toml");
    let error = load_profile(&path).unwrap_err().to_string();
    assert!(
        error
            .ends_with("home.toml: does not exist; check the name, or ask the exit's operator for a profile"),
        "{error}"
    );
    let error = load_exit(&directory.path().join("exit.toml")).unwrap_err().to_string();
    assert!(
        error.ends_with("exit.toml: does not exist; set up an exit with: warren exit init --endpoint HOST"),
        "{error}"
    );
    fs::create_dir(&path).unwrap();
    let error = load_profile(&path).unwrap_err().to_string();
    assert!(error.ends_with("home.toml: is a directory; name a configuration file in it"), "{error}");
    fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let error = load_profile(&path).unwrap_err().to_string();
    assert!(error.ends_with("home.toml: is not a regular file; copy the configuration to one"), "{error}");
}

#[test]
fn profile_cannot_have_the_name_of_the_exit_or_no_name() {
    for (file, reason) in [
        ("exit.toml", "is the exit's own"),
        ("exit_hold.toml", "is the exit's own"),
        (".toml", "is empty"),
        ("-x.toml", "has characters"),
        ("a b.toml", "has characters"),
    ] {
        let error = load_profile(&Path::new("/nowhere").join(file)).unwrap_err().to_string();
        assert!(error.contains(reason) && error.ends_with("; rename the file"), "{error}");
    }
}

#[test]
fn argument_is_a_profile_name_or_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path();
    let find = |argument: Option<&str>| {
        find_profile(config, argument.map(OsStr::new)).map_err(|error| error.to_string())
    };
    assert!(
        find(None)
            .unwrap_err()
            .ends_with("has no profile; make one with `warren join`, or name a profile's file")
    );

    write(&config.join("home.toml"), "", 0o600);
    write(&config.join("exit.toml"), "", 0o600);
    write(&config.join("home.key"), "", 0o600);
    assert_eq!(find(None).unwrap(), config.join("home.toml"));
    assert_eq!(find(Some("home")).unwrap(), config.join("home.toml"));
    assert_eq!(find(Some("./home")).unwrap(), Path::new("./home"));
    assert_eq!(find(Some("other.toml")).unwrap(), Path::new("other.toml"));
    assert!(find(Some("hoem")).unwrap_err().ends_with("hoem.toml: does not exist; did you mean home?"));
    assert!(find(Some("exit")).unwrap_err().contains("is the exit's own"));

    write(&config.join("work.toml"), "", 0o600);
    assert!(find(None).unwrap_err().ends_with("has several profiles; name one of home, work"));
    assert!(
        find(Some("zzz")).unwrap_err().ends_with("zzz.toml: does not exist; choose an existing profile (home, work), or make this one from an invitation with `warren join INVITE --name zzz`")
    );
}

#[test]
fn export_survives_its_file_and_names_the_line_that_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("clients.toml");
    assert!(ClientsImport::read(&path).unwrap().is_none());
    let mut registry = warren_session::clients::ClientRegistry::new();
    let key = PUBLIC_KEY.parse().unwrap();
    registry
        .add(warren_session::clients::Client::new("laptop", key, std::time::SystemTime::UNIX_EPOCH))
        .unwrap();
    write(&path, clients_text(&path, &registry).unwrap(), 0o600);
    assert_eq!(ClientsImport::read(&path).unwrap().unwrap().registry, registry);

    for (text, expected) in [
        ("[[client]]\nname = 5\n", ":2: "),
        ("[[client]]\nname = \"a\"\npublic_key = \"x\"\n", ":3: "),
        ("[[client\n", ":1: unclosed array table"),
        ("[[client]]\nnam = \"a\"\n", ":2: unknown field"),
    ] {
        fs::write(&path, text).unwrap();
        let error = ClientsImport::read(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("clients.toml{expected}")), "{error}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn registry_has_one_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("clients.toml");
    let held = lock_clients(&path, std::time::Duration::ZERO).unwrap();
    let error = lock_clients(&path, std::time::Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("clients.toml.lock: is held by a running exit or another command"), "{error}");
    drop(held);
    assert!(lock_clients(&path, std::time::Duration::ZERO).is_ok());
}
