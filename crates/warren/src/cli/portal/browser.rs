//! Finds a browser, and the arguments that give it a profile of its own.
//!
//! If a browser already runs, a second start with the same profile would make the running browser open the page, outside the
//! portal's cgroup. So xdg-open cannot be used, and each browser is told to start a new instance.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// A browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Browser {
    program: PathBuf,
    kind: Kind,
}

/// The kind of browser, which decides the arguments for a separate profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Firefox,
    Chromium,
    Epiphany,
    /// A browser in a terminal, which has no profiles.
    Text,
}

impl Browser {
    /// Returns the first usable browser in `$BROWSER`, or else the first known browser on the search path.
    ///
    /// # Errors
    /// Why no browser can be used, and what to do.
    pub(super) fn find() -> anyhow::Result<Self> {
        let wanted = std::env::var_os("BROWSER").filter(|wanted| !wanted.is_empty());
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::among(wanted.as_deref(), &path)
    }

    fn among(wanted: Option<&OsStr>, path: &OsStr) -> anyhow::Result<Self> {
        let mut refused = Vec::new();
        // `$BROWSER` is a list separated by colons, as in sensible-browser(1).
        let wanted = wanted.map(|wanted| wanted.to_string_lossy().into_owned()).unwrap_or_default();
        let wanted = wanted.split(':').filter_map(|one| one.split_whitespace().next());
        for name in wanted.chain(KNOWN.iter().map(|(name, _)| *name)) {
            let Some(program) = on_path(name.as_ref(), path) else { continue };
            let own = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some((_, kind)) = KNOWN.iter().find(|(known, _)| *known == own) else {
                refused.push(format!("{name} is unknown"));
                continue;
            };
            if leaves_its_group(&program) {
                refused.push(format!(
                    "{name} is a snap or flatpak and would leave the control group that is let out"
                ));
                continue;
            }
            return Ok(Self { program, kind: *kind });
        }
        let refused = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join("; ")) };
        bail!(
            "found no browser that can be started with a profile of its own{refused}; install one of firefox-esr, chromium and w3m, or \
             name a program: `warren portal -- PROGRAM`"
        )
    }

    /// The command line that opens a page in a profile in `directory`.
    pub(super) fn words(&self, directory: &Path, page: &str) -> Vec<OsString> {
        let directory = directory.as_os_str();
        let mut words = vec![self.program.clone().into_os_string()];
        let option = |text: &str| {
            let mut word = OsString::from(text);
            word.push(directory);
            word
        };
        match self.kind {
            Kind::Firefox => words.extend(["--new-instance".into(), "--profile".into(), directory.into()]),
            Kind::Chromium => words.extend([
                option("--user-data-dir="),
                "--no-first-run".into(),
                "--no-default-browser-check".into(),
                "--new-window".into(),
            ]),
            Kind::Epiphany => words.extend([option("--profile="), "--private-instance".into()]),
            Kind::Text => {}
        }
        words.push(page.into());
        words
    }

    /// Makes a profile's directory for this browser.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn make_profile(&self) -> anyhow::Result<PathBuf> {
        let above = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let directory = above.join(format!("warren-portal-{:016x}", u64::from_ne_bytes(random)));
        let cannot = || format!("cannot make {}", directory.display());
        // Fails if something else already exists at this path.
        std::fs::DirBuilder::new().mode(0o700).create(&directory).with_context(cannot)?;
        if self.kind == Kind::Firefox {
            std::fs::write(directory.join("user.js"), FIREFOX_SETTINGS).with_context(cannot)?;
        }
        Ok(directory)
    }
}

/// DNS over HTTPS is switched off, because only the network's own resolver knows the login page.
const FIREFOX_SETTINGS: &str = "user_pref(\"network.trr.mode\", 5);\n\
                                user_pref(\"browser.aboutwelcome.enabled\", false);\n\
                                user_pref(\"datareporting.policy.dataSubmissionEnabled\", false);\n\
                                user_pref(\"dom.security.https_only_mode\", false);\n\
                                user_pref(\"dom.security.https_first\", false);\n";

const KNOWN: &[(&str, Kind)] = &[
    ("firefox", Kind::Firefox),
    ("firefox-esr", Kind::Firefox),
    ("librewolf", Kind::Firefox),
    ("chromium", Kind::Chromium),
    ("chromium-browser", Kind::Chromium),
    ("google-chrome", Kind::Chromium),
    ("google-chrome-stable", Kind::Chromium),
    ("brave-browser", Kind::Chromium),
    ("microsoft-edge", Kind::Chromium),
    ("vivaldi", Kind::Chromium),
    ("epiphany", Kind::Epiphany),
    ("epiphany-browser", Kind::Epiphany),
    ("w3m", Kind::Text),
    ("links", Kind::Text),
    ("lynx", Kind::Text),
    ("elinks", Kind::Text),
];

pub(in crate::cli) fn on_path(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    std::env::split_paths(path).map(|directory| directory.join(name)).find(is_program)
}

/// Whether a program is started by snapd or flatpak, which move it to a cgroup of their own. On Ubuntu, a browser's program file
/// may be a script that starts the snap.
pub(in crate::cli) fn leaves_its_group(program: &Path) -> bool {
    let behind_links = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let is_of_snap = |path: &Path| {
        path.starts_with("/snap") || path.starts_with("/var/lib/flatpak") || path.ends_with("bin/snap")
    };
    if is_of_snap(program) || is_of_snap(&behind_links) {
        return true;
    }
    let is_script = std::fs::metadata(&behind_links).is_ok_and(|found| found.len() < LARGEST_SCRIPT);
    is_script
        && std::fs::read_to_string(&behind_links).is_ok_and(|text| {
            text.starts_with("#!") && (text.contains("/snap/bin/") || text.contains("flatpak run"))
        })
}

const LARGEST_SCRIPT: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_is_a_new_one_with_a_profile_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().as_os_str();
        let install = |name: &str, text: &str| {
            let file = directory.path().join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let none = Browser::among(None, path).unwrap_err().to_string();
        assert!(none.contains("install one of") && !none.contains('('), "{none}");

        install("firefox", "#!/bin/sh\nexec /snap/bin/firefox \"$@\"\n");
        install("opera", "");
        let refused = Browser::among(Some(OsStr::new("opera:firefox")), path).unwrap_err().to_string();
        assert!(refused.contains("opera is unknown") && refused.contains("firefox is a snap"), "{refused}");

        install("chromium", "#!/bin/sh\n");
        let found = Browser::among(None, path).unwrap();
        let words = found.words(Path::new("/run/user/1/x"), "http://a/");
        assert_eq!(words[1], "--user-data-dir=/run/user/1/x");
        assert_eq!(words.last().unwrap(), "http://a/");
        install("w3m", "");
        assert_eq!(Browser::among(Some(OsStr::new("w3m %s")), path).unwrap().kind, Kind::Text);
    }
}
