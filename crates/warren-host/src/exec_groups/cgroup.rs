//! The cgroups whose programs are inside or outside of a tunnel: their paths and their processes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// A side of a tunnel on which a program can be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Inside the tunnel. The host's own traffic may be outside.
    Inside,
    /// Outside the tunnel, while the host's own traffic is inside.
    Outside,
}

/// A profile's cgroup for one side, in the hierarchy of cgroup v2.
///
/// The cgroup is a systemd slice, so that systemd can put units into it. A slice itself may not contain processes, so `warren
/// exec` uses another cgroup below the slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecGroup {
    root: PathBuf,
    slice: String,
}

impl ExecGroup {
    /// Returns the cgroup of the profile `name` for one side.
    ///
    /// # Errors
    /// If cgroup v2 is not mounted where nft looks for it.
    pub fn of(name: &str, side: Side) -> io::Result<Self> {
        let parent = match side {
            Side::Inside => "warren",
            Side::Outside => "warren_outside",
        };
        Self::below(parent, name)
    }

    /// The cgroup of the profile `name` for a browser that opens a login page ([`crate::portal`]).
    ///
    /// # Errors
    /// If cgroup v2 is not mounted where nft looks for it.
    pub fn of_portal(name: &str) -> io::Result<Self> {
        Self::below("warren_portal", name)
    }

    fn below(parent: &str, name: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let root = root(&mounts).ok_or_else(|| {
            io::Error::other(
                "cgroup v2 is not mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified; run `mount -t cgroup2 none \
                 /sys/fs/cgroup` if nothing is mounted there",
            )
        })?;
        Ok(Self { root: root.into(), slice: slice_path(name, parent) })
    }

    /// The cgroup's path in nft's syntax, relative to /sys/fs/cgroup.
    pub fn nft_path(&self) -> String {
        let hybrid = self.root.strip_prefix(NFT_ROOT).unwrap_or(Path::new(""));
        hybrid.join(&self.slice).display().to_string()
    }

    /// Creates the cgroup if it is missing. A table that refers to it must be loaded again, because nft resolves the path when it
    /// loads the table.
    ///
    /// # Errors
    /// If the kernel refuses. The error names the path.
    pub fn make(&self) -> io::Result<()> {
        let leaf = self.leaf();
        fs::create_dir_all(&leaf).map_err(|error| named(&leaf, &error))
    }

    /// Returns the kernel's number of the cgroup, which nft's rules refer to. `None` if the cgroup does not exist.
    pub fn id(&self) -> Option<u64> {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(self.directory()).ok().map(|found| found.ino())
    }

    /// Returns the numbers of the cgroup and of all cgroups below it.
    pub(super) fn ids(&self) -> Vec<u64> {
        use std::os::unix::fs::DirEntryExt as _;
        let mut found: Vec<u64> = self.id().into_iter().collect();
        let mut directories = vec![self.directory()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    found.push(entry.ino());
                    directories.push(entry.path());
                }
            }
        }
        found
    }

    /// Moves a process into the cgroup. 0 is the calling process.
    ///
    /// # Errors
    /// If the kernel refuses. The error names the path.
    pub fn take_in(&self, process: u32) -> io::Result<()> {
        let file = self.entrance();
        fs::write(&file, process.to_string()).map_err(|error| named(&file, &error))
    }

    /// Moves a process that was taken in by mistake to its parent's cgroup, if it is still in this one.
    ///
    /// # Errors
    /// If the kernel refuses. The error names the path.
    pub fn put_back(&self, process: u32) -> io::Result<()> {
        let listing = |process: &str| fs::read_to_string(format!("/proc/{process}/cgroup"));
        let status = fs::read_to_string(format!("/proc/{process}/status"));
        let (Ok(own), Ok(status)) = (listing(&process.to_string()), status) else { return Ok(()) };
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or_default().trim();
        if !self.has_in(&own) {
            return Ok(());
        }
        let parents = listing(parent)?;
        let path = parents.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let file = self.root.join(path).join("cgroup.procs");
        fs::write(&file, process.to_string()).map_err(|error| named(&file, &error))
    }

    /// Whether `listing`, the content of a process's `/proc/PID/cgroup`, says that the process is in the cgroup.
    pub fn has_in(&self, listing: &str) -> bool {
        let own = format!("/{}/", self.slice);
        listing.lines().filter_map(|line| line.strip_prefix("0::")).any(|path| path.starts_with(&own))
    }

    /// Whether any process is in the cgroup or below.
    pub fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.directory().join("cgroup.events"));
        events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// The file into which a process ID is written to move the process into the cgroup.
    pub fn entrance(&self) -> PathBuf {
        self.leaf().join("cgroup.procs")
    }

    /// Ends every process in the cgroup and below, at once. Does nothing on Linux before 5.14, which cannot do
    /// this.
    pub(crate) fn kill(&self) {
        // An error is ignored, because a cgroup that no longer exists has no processes.
        drop(fs::write(self.directory().join("cgroup.kill"), "1"));
    }

    /// Removes the cgroup if it has no processes. A cgroup that systemd uses stays.
    pub fn remove(&self) {
        let slice = self.directory();
        for directory in [self.leaf(), slice.clone()].iter().map(PathBuf::as_path).chain(slice.parent()) {
            // The kernel refuses to remove a cgroup that has processes or contains another profile's cgroup.
            if fs::remove_dir(directory).is_err() {
                return;
            }
        }
    }

    fn directory(&self) -> PathBuf {
        self.root.join(&self.slice)
    }

    fn leaf(&self) -> PathBuf {
        self.directory().join(LEAF)
    }
}

/// The path of a slice as systemd makes it. In a slice's name, a dash separates levels of the hierarchy, so dashes in a profile's
/// name are escaped (systemd.unit(5)).
fn slice_path(name: &str, parent: &str) -> String {
    let name = name.replace('-', r"\x2d");
    format!("{parent}.slice/{parent}-{name}.slice")
}

/// The mount point of cgroup v2 according to `/proc/self/mountinfo` (proc(5)).
fn root(mounts: &str) -> Option<&'static str> {
    let is_mounted = |wanted: &str| {
        mounts.lines().any(|line| {
            let (own, kind) = line.split_once(" - ").unwrap_or_default();
            own.split(' ').nth(4) == Some(wanted) && kind.starts_with("cgroup2 ")
        })
    };
    [NFT_ROOT, "/sys/fs/cgroup/unified"].into_iter().find(|root| is_mounted(root))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The directory in which nft looks for cgroups.
const NFT_ROOT: &str = "/sys/fs/cgroup";
/// The cgroup below a slice that `warren exec` uses.
const LEAF: &str = "exec";
/// The level of a slice in the cgroup hierarchy, for nft's `socket cgroupv2 level`. It is the same for both sides.
pub(crate) const LEVEL: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_has_the_path_of_a_systemd_slice_of_two_levels() {
        let unified = ExecGroup { root: NFT_ROOT.into(), slice: slice_path("home", "warren") };
        let hybrid = ExecGroup {
            root: "/sys/fs/cgroup/unified".into(),
            slice: slice_path("my-home", "warren_outside"),
        };

        assert_eq!(unified.nft_path(), "warren.slice/warren-home.slice");
        assert_eq!(hybrid.nft_path(), r"unified/warren_outside.slice/warren_outside-my\x2dhome.slice");
        assert!(unified.has_in("4:memory:/x\n0::/warren.slice/warren-home.slice/exec\n"));
        assert!(!unified.has_in("0::/warren.slice/warren-home.slice2/exec\n"));
        assert!(!unified.has_in("1:name=systemd:/warren.slice/warren-home.slice/exec\n0::/\n"));
    }

    #[test]
    fn root_is_found_where_nft_can_look() {
        let line =
            |at: &str, kind: &str| format!("30 23 0:26 / {at} rw,relatime shared:4 - {kind} none rw\n");
        assert_eq!(root(&line("/sys/fs/cgroup", "cgroup2")), Some("/sys/fs/cgroup"));
        let hybrid = line("/sys/fs/cgroup", "tmpfs") + &line("/sys/fs/cgroup/unified", "cgroup2");
        assert_eq!(root(&hybrid), Some("/sys/fs/cgroup/unified"));
        assert_eq!(root(&line("/mnt", "cgroup2")), None);
    }
}
