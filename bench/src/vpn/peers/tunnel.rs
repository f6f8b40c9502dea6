//! An installed peer, and the tunnel that it makes.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use aws_lc_rs::digest::{SHA256, digest};

use super::{
    super::{load::first_reply, process::Process, topology::Topology},
    peer::Peer,
};
use crate::interrupt::Interrupt;

/// Longest time for a tunnel to come up.
pub(super) const UP: Duration = Duration::from_secs(15);
/// The inner addresses of tunnels that don't choose their own.
pub(super) const CLIENT: &str = "10.98.0.2";
pub(super) const EXIT: &str = "10.98.0.1";

/// A peer that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) peer: Peer,
    /// The version as the peer prints it.
    pub(crate) version: String,
    /// Paths of the programs: one for both ends, or the exit's and the client's.
    pub(super) programs: Vec<PathBuf>,
}

impl Installed {
    /// Returns the SHA-256 of each program in hexadecimal. A program that cannot be read is left out.
    pub(crate) fn fingerprints(&self) -> Vec<String> {
        let fingerprint = |path: &PathBuf| {
            let hash = digest(&SHA256, &std::fs::read(path).ok()?);
            Some(hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
        };
        self.programs.iter().filter_map(fingerprint).collect()
    }

    pub(crate) fn program(&self, index: usize) -> anyhow::Result<&str> {
        let path = self.programs.get(index).context("the peer has a program for each end")?;
        path.to_str().context("the path of a peer's program is not UTF-8")
    }
}

/// The arguments for starting a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    pub(super) topology: &'a Topology,
    pub(super) interrupt: &'a Interrupt,
    pub(super) installed: &'a Installed,
}

/// A tunnel that is up. Dropping this value ends the tunnel's processes.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// The client's IPv4 address inside the tunnel.
    pub(crate) client_address: String,
    pub(crate) exit_address: String,
    pub(crate) client_pids: Vec<u32>,
    pub(crate) exit_pids: Vec<u32>,
    /// Time from the client's start to the first reply through the tunnel. None for peers without a tunnel setup.
    pub(crate) setup: Option<Duration>,
    pub(super) _processes: Vec<Process>,
    pub(super) _files: Vec<RemovedFile>,
}

/// The times that a Warren tunnel took to go down and to come up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Time from the start of `warren up` to the first reply.
    pub(crate) up: Duration,
    /// The run time of `warren down`.
    pub(crate) down: Duration,
}

impl Start<'_> {
    /// Waits for the first reply through the tunnel of two processes, and returns the tunnel.
    pub(super) fn tunnel(&self, began: Instant, client: Process, exit: Process) -> anyhow::Result<Tunnel> {
        first_reply(self.topology, EXIT, UP, self.interrupt)?;
        Ok(Tunnel {
            client_address: CLIENT.to_owned(),
            exit_address: EXIT.to_owned(),
            client_pids: vec![client.id()],
            exit_pids: vec![exit.id()],
            setup: Some(began.elapsed()),
            _processes: vec![client, exit],
            _files: Vec::new(),
        })
    }

    /// Writes a file that only its owner can read, and returns its path.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
        let path = self.topology.path().join(name);
        let mut options = std::fs::OpenOptions::new();
        options
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// A file outside the topology's directory. Dropping this value removes the file.
#[derive(Debug)]
pub(super) struct RemovedFile(pub(super) PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        // Fails if the program that made the file has already removed it, which does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::peer::Kind, *};

    impl Installed {
        pub(in crate::vpn) fn for_test(peer: Peer) -> Self {
            Self { peer, version: "1".to_owned(), programs: Vec::new() }
        }
    }

    #[test]
    fn program_is_told_by_its_sha_256() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        std::fs::write(&program, "abc").unwrap();
        let absent = directory.path().join("absent");
        let installed =
            Installed { programs: vec![absent, program], ..Installed::for_test(Peer::plain(Kind::Quincy)) };
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(installed.fingerprints(), [abc]);
    }
}
