//! A store of three members on loopback.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::certificates::{make_authority, make_certificate};
use super::{signal, wait_for};

pub(crate) struct Store {
    pub(crate) directory: tempfile::TempDir,
    members: Vec<Member>,
    is_secure: bool,
}

struct Member {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Store {
    /// Three members without TLS.
    pub(crate) fn start() -> Self {
        Self::with(false)
    }

    /// Three members that require client certificates.
    pub(crate) fn start_secure() -> Self {
        Self::with(true)
    }

    fn with(is_secure: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        if is_secure {
            make_authority(directory.path());
            make_certificate(directory.path(), ("server", "server"), 2, &loopback());
        }
        let ports = free_ports(6);
        let members = (0..3).map(|index| Member {
            name: format!("m{index}"),
            client: ports[index],
            peer: ports[index + 3],
            process: None,
        });
        let mut store = Self { directory, members: members.collect(), is_secure };
        for index in 0..3 {
            store.start_member(index);
        }
        store.wait_until_ready();
        store
    }

    fn scheme(&self) -> &'static str {
        if self.is_secure { "https" } else { "http" }
    }

    pub(crate) fn url(&self, index: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.members[index].client)
    }

    pub(crate) fn members(&self) -> Vec<String> {
        (0..3).map(|index| self.url(index)).collect()
    }

    /// The value of `--store`.
    pub(crate) fn urls(&self) -> String {
        (0..3).map(|index| self.url(index)).collect::<Vec<_>>().join(",")
    }

    fn cluster(&self) -> String {
        let members =
            self.members.iter().map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer));
        members.collect::<Vec<_>>().join(",")
    }

    fn data(&self, index: usize) -> PathBuf {
        self.directory.path().join(&self.members[index].name)
    }

    pub(crate) fn start_member(&mut self, index: usize) {
        let url = self.url(index);
        let peer = format!("http://127.0.0.1:{}", self.members[index].peer);
        let log = std::fs::File::create(self.directory.path().join(format!("m{index}.log"))).unwrap();
        let mut command = Command::new(program("etcd", "etcd-server"));
        command
            .args(["--name", &self.members[index].name, "--data-dir"])
            .arg(self.data(index))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.cluster(), "--initial-cluster-state", "new", "--logger", "zap"])
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .stdout(Stdio::null())
            .stderr(log);
        if self.is_secure {
            let file = |name: &str| self.directory.path().join(name);
            command.arg("--cert-file").arg(file("server.pem")).arg("--key-file").arg(file("server.key"));
            command.arg("--trusted-ca-file").arg(file("ca.pem")).arg("--client-cert-auth");
        }
        self.members[index].process =
            Some(command.spawn().expect("etcd is not installed: run scripts/setup"));
    }

    pub(crate) fn wait_until_ready(&self) {
        wait_for("the store answers", Duration::from_secs(30), || {
            self.etcdctl(&["put", "ready", "1"]).status.success().then_some(())
        });
    }

    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> Output {
        let mut command = self.etcdctl_at(&self.urls());
        command.args(["--command-timeout", "3s"]).args(arguments);
        command.output().expect("etcdctl is not installed: run scripts/setup")
    }

    /// `etcdctl` for these members, as root.
    fn etcdctl_at(&self, urls: &str) -> Command {
        let mut command = etcdctl();
        command.args(["--endpoints", urls]);
        if self.is_secure {
            let file = |name: &str| self.directory.path().join(name);
            let root = if file("root.pem").exists() { "root" } else { "server" };
            command.arg("--cacert").arg(file("ca.pem"));
            command
                .arg("--cert")
                .arg(file(&format!("{root}.pem")))
                .arg("--key")
                .arg(file(&format!("{root}.key")));
        }
        command
    }

    pub(crate) fn etcdctl_ok(&self, arguments: &[&str]) -> String {
        let output = self.etcdctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The member that leads.
    pub(crate) fn leader(&self) -> usize {
        let status = self.etcdctl_ok(&["endpoint", "status", "--write-out", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let leader = status
            .as_array()
            .unwrap()
            .iter()
            .position(|member| member["Status"]["header"]["member_id"] == member["Status"]["leader"]);
        leader.unwrap()
    }

    pub(crate) fn revision(&self) -> i64 {
        let status = self.etcdctl_ok(&["get", "none", "--write-out", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["header"]["revision"].as_i64().unwrap()
    }

    pub(crate) fn signal(&self, index: usize, name: &str) {
        signal(self.members[index].process.as_ref().unwrap().id(), name);
    }

    pub(crate) fn signal_all(&self, name: &str) {
        (0..3).for_each(|index| self.signal(index, name));
    }

    /// Writes a snapshot of the store into a file.
    pub(crate) fn back_up(&self) -> PathBuf {
        let file = self.directory.path().join("backup.db");
        let mut command = self.etcdctl_at(&self.url(0));
        let output = command.args(["snapshot", "save"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        file
    }

    /// Replaces the whole store by an old backup, as an operator does.
    pub(crate) fn restore(&mut self, backup: &Path) {
        for index in 0..3 {
            self.stop_member(index);
            std::fs::remove_dir_all(self.data(index)).unwrap();
            let peer = format!("http://127.0.0.1:{}", self.members[index].peer);
            let restored = restoring()
                .args(["snapshot", "restore"])
                .arg(backup)
                .args(["--name", &self.members[index].name, "--initial-cluster", &self.cluster()])
                .args(["--initial-advertise-peer-urls", &peer, "--data-dir"])
                .arg(self.data(index))
                .output()
                .unwrap();
            assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        }
        (0..3).for_each(|index| self.start_member(index));
        self.wait_until_ready();
    }

    /// Kills a member.
    pub(crate) fn stop_member(&mut self, index: usize) {
        if let Some(mut process) = self.members[index].process.take() {
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    /// Gives all members a certificate that is valid for this many days from now, and starts them again. A negative number makes it
    /// expired.
    pub(crate) fn renew(&mut self, days: i32) {
        make_certificate(self.directory.path(), ("server", "server"), days, &loopback());
        for index in 0..3 {
            self.stop_member(index);
            self.start_member(index);
        }
    }

    /// A certificate whose common name is a user of the store.
    pub(crate) fn certificate(&self, user: &str) -> (PathBuf, PathBuf) {
        make_certificate(self.directory.path(), (user, user), 2, &loopback());
        (self.directory.path().join(format!("{user}.pem")), self.directory.path().join(format!("{user}.key")))
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        (0..3).for_each(|index| self.stop_member(index));
    }
}

/// The control program of etcd, for version 3 of its interface.
pub(crate) fn etcdctl() -> Command {
    let mut command = Command::new(program("etcdctl", "etcd-client"));
    command.env("ETCDCTL_API", "3");
    command
}

/// The command that restores backups. Release 3.6 of etcd has a separate program for that.
fn restoring() -> Command {
    let own = std::env::var_os("WARREN_ETCD").map(|directory| Path::new(&directory).join("etcdutl"));
    own.filter(|program| program.exists()).map_or_else(etcdctl, Command::new)
}

/// The path of a program: in the directory that `WARREN_ETCD` names, on this machine, or in a package that scripts/setup has
/// unpacked.
fn program(name: &str, package: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("WARREN_ETCD") {
        return Path::new(&directory).join(name);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.exists());
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/packages");
    installed.unwrap_or_else(|| packages.join(package).join("usr/bin").join(name))
}

fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn loopback() -> [String; 1] {
    ["127.0.0.1".to_owned()]
}
