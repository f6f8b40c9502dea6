//! The Debian package: its content, and its effects on a host from installation to removal.
#![allow(clippy::indexing_slicing, clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

mod container;
mod debian;
mod fleet_guide;
mod guide;
mod lifecycle;
mod recipes;

use std::process::Command;

use crate::support::finished;
use debian::Package;

#[test]
fn package_has_everything_that_belongs_on_a_host() {
    let package = Package::of_this_build("1.0-1");
    let listed = package.ask("--contents");
    for file in FILES {
        assert!(listed.lines().any(|line| line.ends_with(file)), "{file} is not in\n{listed}");
    }
    let others = listed.lines().filter(|line| !line.contains(" root/root "));
    assert_eq!(others.count(), 0, "every file belongs to root: {listed}");
    let is_others_to_write = |line: &&str| {
        let mode = line.as_bytes();
        mode[0] != b'l' && (mode[5] == b'w' || mode[8] == b'w')
    };
    assert_eq!(listed.lines().filter(is_others_to_write).count(), 0, "only root may write: {listed}");

    let control = package.ask("--field");
    for field in ["Package: warren", "Version: 1.0-1", "nftables", "libc6 (>= 2."] {
        assert!(control.contains(field), "{field:?} is not in\n{control}");
    }
    let scripts = package.ask("--info");
    for script in ["postinst", "prerm", "postrm", "md5sums"] {
        assert!(scripts.contains(script), "{script} is not in\n{scripts}");
    }
}

#[test]
fn the_package_of_a_fleet_has_its_unit_user_pages_and_completions_and_shares_no_file() {
    let Some(package) = Package::of_fleet("1.0-1") else { return };
    let listed = package.ask("--contents");
    for file in FLEET_FILES {
        assert!(listed.lines().any(|line| line.ends_with(file)), "{file} is not in\n{listed}");
    }
    assert_eq!(listed.lines().filter(|line| !line.contains(" root/root ")).count(), 0, "{listed}");
    let control = package.ask("--field");
    for field in
        ["Package: warren-fleet", "Depends: libc6 (>= 2.", "warren (= 1.0-1)", "Breaks: warren (<< 1.0-1)"]
    {
        assert!(control.contains(field), "{field:?} is not in\n{control}");
    }
    // The packages must not have a file in common, because dpkg refuses this.
    let files = |listed: &str| {
        let files = listed.lines().filter(|line| !line.starts_with('d'));
        let names = files.map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let (warren, fleet) = (files(&Package::of_this_build("1.0-1").ask("--contents")), files(&listed));
    assert_eq!(warren.intersection(&fleet).next(), None);
    assert!(fleet.len() > 20 && warren.contains("./usr/share/man/man1/warren.1.gz"), "{fleet:?}");
}

#[test]
fn every_man_page_is_rendered_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().to_str().unwrap();
    finished(Command::new(env!("CARGO_BIN_EXE_warren")).args(["man", into])).ok();
    let line = format!(
        "cd {into}; for page in man?/*; do man --warnings=all --encoding=UTF-8 -l $page 2>&1 >$page.text || exit; \
         test -s $page.text || echo $page is empty; done; ls man1/*.1 | wc -l >count"
    );
    let rendered = finished(Command::new("sh").env("MANWIDTH", "80").args(["-c", &line]));
    assert_eq!(rendered.ok(), "");
    let text = |page: &str| std::fs::read_to_string(directory.path().join(page)).unwrap();
    assert!(text("man1/warren-exit-client-add.1.text").contains("--public-key"));
    assert!(text("man5/warren.toml.5.text").contains("[kill_switch]"));
    let count: usize = text("count").trim().parse().unwrap();
    assert!(count > 30, "there are only {count} pages");
}

/// The expected files of the package `warren-fleet`, in the same form as [`FILES`].
const FLEET_FILES: [&str; 11] = [
    " ./usr/bin/warren-fleet",
    " ./usr/lib/systemd/system/warren-fleet.service",
    " ./usr/lib/sysusers.d/warren-fleet.conf",
    " ./usr/share/bash-completion/completions/warren-fleet",
    " ./usr/share/fish/vendor_completions.d/warren-fleet.fish",
    " ./usr/share/zsh/vendor-completions/_warren-fleet",
    " ./usr/share/man/man1/warren-fleet.1.gz",
    " ./usr/share/man/man1/warren-fleet-status.1.gz",
    " ./usr/share/man/man1/warren-fleet-rotate-key.1.gz",
    " ./usr/share/doc/warren-fleet/copyright",
    " ./usr/share/doc/warren-fleet/third-party.gz",
];

/// Expected line endings of `dpkg-deb --contents`.
const FILES: [&str; 18] = [
    " ./usr/bin/warren",
    " ./etc/warren/",
    " ./usr/lib/systemd/system/warren-exit.service",
    " ./usr/lib/systemd/system/warren@.service",
    " ./usr/lib/systemd/system/warren-lockdown@.service",
    " ./usr/lib/systemd/system/warren-cleanup.service",
    " ./usr/lib/systemd/system/sysinit.target.wants/warren-cleanup.service -> ../warren-cleanup.service",
    " ./usr/lib/sysusers.d/warren.conf",
    " ./usr/share/bash-completion/completions/warren",
    " ./usr/share/fish/vendor_completions.d/warren.fish",
    " ./usr/share/zsh/vendor-completions/_warren",
    " ./usr/share/man/man1/warren.1.gz",
    " ./usr/share/man/man1/warren-exit-init.1.gz",
    " ./usr/share/man/man5/warren.toml.5.gz",
    " ./usr/share/doc/warren/changelog.gz",
    " ./usr/share/doc/warren/copyright",
    " ./usr/share/doc/warren/third-party.gz",
    " ./usr/share/doc/warren/examples/60-warren.conf",
];
