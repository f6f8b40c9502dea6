use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::SystemTime;

use warren_session::PublicKey;
use warren_session::clients::Client;

use super::*;

fn registry_of(clients: u32) -> ClientRegistry {
    let mut registry = ClientRegistry::new();
    for number in 0..clients {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        let name = format!("client-{number}");
        registry.add(Client::new(name, PublicKey(key), SystemTime::UNIX_EPOCH)).unwrap();
    }
    registry
}

fn written(directory: &tempfile::TempDir, registry: &ClientRegistry) -> PathBuf {
    let path = directory.path().join("clients.toml");
    fs::write(&path, clients_text(&path, registry).unwrap()).unwrap();
    path
}

#[test]
fn store_is_beside_the_file_that_the_configuration_names() {
    for (clients, store) in [
        ("/a/clients.toml", "/a/clients.store"),
        ("/a/clients", "/a/clients.store"),
        ("x.store", "x.store.store"),
    ] {
        assert_eq!(store_path(Path::new(clients)), Path::new(store));
    }
}

#[test]
fn export_is_imported_again_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let registry = registry_of(9_000);
    let path = written(&directory, &registry);
    assert_eq!(load_clients(&path).unwrap(), registry, "without a store, the file counts");

    let import = ClientsImport::read(&path).unwrap().unwrap();
    assert_eq!(import.registry, registry);
    let (mut store, _) = ClientStore::open(store_path(&path)).unwrap();
    let mark = import.mark().to_owned();
    store.save_all(import.registry.rows(), Some(&mark)).unwrap();
    let kept = import.put_away(&path).unwrap();

    assert!(!path.exists() && kept.ends_with("clients.toml.imported"));
    assert_eq!(load_clients(&path).unwrap(), registry);
    assert_eq!(ClientStore::open(store_path(&path)).unwrap().0.imported(), mark);
    fs::write(&path, fs::read(kept).unwrap()).unwrap();
    let again = ClientsImport::read(&path).unwrap().unwrap();
    assert_ne!(again.mark(), mark, "another file with the same text is another import");
}

#[test]
fn emptied_file_is_told_from_one_that_says_there_is_no_client() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(&directory, &registry_of(0));
    let is_silent = || ClientsImport::read(&path).unwrap().unwrap().is_silent();
    assert!(!is_silent(), "an exit without clients exports such a file");
    for (text, expected) in [("", true), ("# gone\n", true), ("client = []\n", false)] {
        fs::write(&path, text).unwrap();
        assert_eq!(is_silent(), expected, "{text:?}");
    }
    written(&directory, &registry_of(1));
    assert!(!is_silent());
}

#[test]
fn file_that_others_may_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let import = written(&directory, &registry_of(1));
    let store = store_path(&import);
    ClientStore::open(store.clone())
        .unwrap()
        .0
        .save(&[], || registry_of(1).rows().collect::<Vec<_>>().into_iter())
        .unwrap();
    let open = |path: &Path| {
        let opened = if path == store {
            ClientStore::open(store.clone()).map(drop)
        } else {
            ClientsImport::read(&import).map(drop)
        };
        opened.map_err(|error| error.to_string())
    };
    for path in [&store, &import] {
        let modes = [(0o666, true), (0o620, true), (0o602, true), (0o644, false), (0o400, false)];
        for (mode, is_refused) in modes {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            // Mode 0400 is accepted, because root writes to such a file nevertheless.
            assert_eq!(open(path).is_err(), is_refused, "{path:?} {mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path, Some(1234), None).unwrap();
            let error = open(path).unwrap_err();
            assert!(error.contains("belongs to user 1234"), "{error}");
            std::os::unix::fs::chown(directory.path(), Some(1234), None).unwrap();
            open(path).unwrap();
            std::os::unix::fs::chown(directory.path(), Some(0), None).unwrap();
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
    }
}
