//! A package of this build, and Debian systems to install it on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::daemon::repository;
use crate::support::{Files, Finished, Namespace, Net, Systemd, finished};

/// A package with the tested binary.
#[derive(Debug)]
pub(super) struct Package {
    directory: tempfile::TempDir,
    name: String,
}

impl Package {
    pub(super) fn of_this_build(version: &str) -> Self {
        Self::made(version, Path::new(env!("CARGO_BIN_EXE_warren")), &[])
    }

    /// The package of the link to a fleet. `None` if its program is not built.
    pub(super) fn of_fleet(version: &str) -> Option<Self> {
        let program = Path::new(env!("CARGO_BIN_EXE_warren")).with_file_name("warren-fleet");
        if !program.exists() {
            println!(
                "skipped: this test needs target/debug/warren-fleet; cargo build -p warren-fleet makes it"
            );
            return None;
        }
        Some(Self::made(version, &program, &["--fleet"]))
    }

    fn made(version: &str, binary: &Path, more: &[&str]) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let mut make = Command::new(repository().join("scripts/package"));
        make.args(more).args(["--quick", "--version", version, "--binary"]).arg(binary).arg("--output");
        let path = PathBuf::from(finished(make.arg(directory.path())).ok());
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        Self { directory, name }
    }

    /// The output of `dpkg-deb` about the package.
    pub(super) fn ask(&self, what: &str) -> String {
        finished(Command::new("dpkg-deb").arg(what).arg(self.path())).ok()
    }

    /// Copies the package to root's home directory on a host.
    pub(super) fn give_to(&self, files: &Files) {
        let home = files.path("root");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::copy(self.path(), home.join(&self.name)).unwrap();
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }
}

/// The root directory of a Debian like that of a typical VPS, made once by debootstrap.
pub(super) fn debian_root() -> PathBuf {
    made("debian-root", &[])
}

/// The root directory of a Debian without systemd, like a container image.
pub(super) fn slim_root() -> PathBuf {
    made("slim-root", &["slim"])
}

fn made(name: &str, more: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("packages").join(name);
    std::fs::create_dir_all(root.parent().unwrap()).unwrap();
    finished(Command::new(repository().join("scripts/lib/debian-root")).arg(&root).args(more)).ok();
    root
}

/// Boots a host with these packages in root's home directory.
pub(super) fn boot<'net>(host: &'net Namespace, packages: &[&Package]) -> Systemd<'net> {
    let files = Files::of(&debian_root());
    for package in packages {
        package.give_to(&files);
    }
    Systemd::boot(host, files)
}

/// Lets clients of a running exit reach the test's internet, which has documentation addresses.
pub(super) fn allow_internet(exit: &Systemd<'_>) {
    let add = format!("echo '{}' >> /etc/warren/exit.toml && warren reload exit", Net::ALLOW_INTERNET);
    typed(exit, &add).ok();
}

/// Runs a shell line in root's home directory, like a logged-in user.
pub(super) fn typed(host: &Systemd<'_>, line: &str) -> Finished {
    let line = format!("cd; {line}");
    let login = [
        "HOME=/root",
        "DEBIAN_FRONTEND=noninteractive",
        "timeout",
        "-k",
        "5",
        "300",
        "sh",
        "-e",
        "-c",
        &line,
    ];
    host.run(&[&["env"], &login[..]].concat())
}

/// Writes a file on a running host.
pub(super) fn write(host: &Systemd<'_>, path: &str, text: &str) {
    host.run(&["sh", "-c", "printf %s \"$1\" >\"$0\"", path, text]).ok();
}

/// Lists all files of a host with type, mode, owner and link target, without logs, caches and the data of apt and dpkg.
pub(super) fn files_of(host: &Systemd<'_>) -> BTreeSet<String> {
    let listed = host.sh(
        "find / -xdev \\( -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \
         -o -path /root -o -path /var/lib/systemd -o -name '*-' -path '/etc/*' \\) -prune \
         -o -printf '%M %u:%g %p %l\\n'",
    );
    listed.ok().lines().map(|line| line.trim_end().to_owned()).collect()
}
