//! A store of three real members of etcd, each on a host of its own.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::certificates::{make_authority, make_certificate};
use super::daemon::repository;
use super::{Finished, Namespace, Running, eventually, seconds};

/// The members. Dropping it ends them.
#[derive(Debug)]
pub struct Etcd<'net> {
    hosts: &'net [Namespace],
    addresses: Vec<String>,
    members: Vec<Option<Running>>,
    directory: tempfile::TempDir,
}

/// How long the certificates of members and users are valid.
pub const DAYS: i32 = 300;

impl<'net> Etcd<'net> {
    /// Starts a member on each host. The members require client certificates. Returns `None` if etcd is not available.
    pub fn start(hosts: &'net [Namespace], addresses: Vec<String>) -> Option<Self> {
        program("etcd")?;
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let members = hosts.iter().map(|_| None).collect();
        let mut etcd = Self { hosts, addresses, members, directory };
        make_authority(etcd.directory.path());
        etcd.renew(DAYS);
        etcd.certificate("root");
        etcd.start_all();
        etcd.wait_until_ready();
        for line in ["user add root --no-password", "user grant-role root root", "auth enable"] {
            etcd.ctl(line).ok();
        }
        Some(etcd)
    }

    /// The options of `warren fleet init` for this store.
    pub fn init_options(&self) -> String {
        let [ca, certificate, key] = self.root();
        format!("--store {} --ca {ca} --certificate {certificate} --key {key}", self.urls())
    }

    fn root(&self) -> [String; 3] {
        ["ca.pem", "root.pem", "root.key"].map(|name| self.file(name))
    }

    /// The options of `warren fleet ticket` for an exit of this name.
    pub fn ticket_options(&self, exit: &str) -> String {
        let user = format!("warren-fleet-{exit}");
        self.certificate(&user);
        let [certificate, key] = ["pem", "key"].map(|end| self.file(&format!("{user}.{end}")));
        format!("--certificate {certificate} --key {key}")
    }

    fn certificate(&self, user: &str) {
        make_certificate(self.directory.path(), (user, user), DAYS, &self.addresses);
    }

    /// Gives the members a certificate for this many days, which they use from their next start on. With a negative number, the
    /// certificate has expired.
    fn renew(&self, days: i32) {
        // An exit may also reach a member through a proxy on its own host.
        let addresses = [&self.addresses[..], &["127.0.0.1".to_owned()]].concat();
        make_certificate(self.directory.path(), ("server", "server"), days, &addresses);
    }

    pub fn url(&self, member: usize) -> String {
        format!("https://{}:2379", self.addresses[member])
    }

    fn urls(&self) -> String {
        (0..self.hosts.len()).map(|member| self.url(member)).collect::<Vec<_>>().join(",")
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn peer(&self, member: usize) -> String {
        format!("http://{}:2380", self.addresses[member])
    }

    fn cluster(&self) -> String {
        let members = (0..self.hosts.len()).map(|member| format!("m{member}={}", self.peer(member)));
        members.collect::<Vec<_>>().join(",")
    }

    pub fn start_all(&mut self) {
        (0..self.hosts.len()).for_each(|member| self.start_member(member));
    }

    pub fn start_member(&mut self, member: usize) {
        let (url, peer) = (self.url(member), self.peer(member));
        let mut line = format!(
            "{} --name m{member} --data-dir {} --listen-client-urls {url} --advertise-client-urls {url} --listen-peer-urls {peer} \
             --initial-advertise-peer-urls {peer} --initial-cluster {} --initial-cluster-state new --logger zap --log-level error",
            program("etcd").unwrap().display(),
            self.file(&format!("m{member}")),
            self.cluster()
        );
        let [certificate, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| self.file(name));
        line +=
            &format!(" --cert-file {certificate} --key-file {key} --trusted-ca-file {ca} --client-cert-auth");
        let words: Vec<&str> = line.split_whitespace().collect();
        self.members[member] = Some(self.hosts[member].start(&words));
    }

    /// Kills all members.
    pub fn kill_all(&mut self) {
        self.members.iter_mut().for_each(|member| *member = None);
    }

    pub fn kill_member(&mut self, member: usize) {
        self.members[member] = None;
    }

    pub fn signal(&self, member: usize, which: Signal) {
        self.members[member].as_ref().unwrap().signal(which);
    }

    /// Restarts all members with a certificate for this many days.
    pub fn start_anew(&mut self, days: i32) {
        self.renew(days);
        self.kill_all();
        self.start_all();
        eventually(seconds(30), "the store answers", || self.ctl_unverified("put ready 1").succeeded());
    }

    pub fn wait_until_ready(&self) {
        eventually(seconds(30), "the store answers", || self.ctl("put ready 1").succeeded());
    }

    /// Runs `etcdctl LINE` for all members, as root.
    pub fn ctl(&self, line: &str) -> Finished {
        self.ctl_at(&self.urls(), line)
    }

    /// Like [`Self::ctl`], but does not verify the members' certificates.
    pub fn ctl_unverified(&self, line: &str) -> Finished {
        self.ctl_at(&self.urls(), &format!("--insecure-skip-tls-verify {line}"))
    }

    fn ctl_at(&self, urls: &str, line: &str) -> Finished {
        let [ca, certificate, key] = self.root();
        let options = format!(
            "--endpoints {urls} --command-timeout 3s --dial-timeout 3s --cacert {ca} --cert {certificate} --key {key}"
        );
        let program = program("etcdctl").expect("etcdctl is beside etcd");
        self.hosts[0].sh(&format!("ETCDCTL_API=3 {} {options} {line}", program.display()))
    }

    /// The number of the member that is the leader.
    pub fn leader(&self) -> usize {
        let status = json(self.ctl("endpoint status --write-out json"));
        let leads = |member: &serde_json::Value| {
            member["Status"]["header"]["member_id"] == member["Status"]["leader"]
        };
        status.as_array().unwrap().iter().position(leads).unwrap()
    }

    /// The revision of the latest change. Does not verify the members' certificates.
    pub fn revision(&self) -> u64 {
        let answer = json(self.ctl_unverified("get none --write-out json"));
        answer["header"]["revision"].as_u64().unwrap()
    }

    /// Each key that has no lease, with the revision of its latest change. Does not verify the members' certificates.
    pub fn lasting(&self) -> Vec<(String, u64)> {
        let answer = json(self.ctl_unverified("get \"\" --prefix --write-out json"));
        let keys = answer["kvs"].as_array().unwrap().iter();
        keys.filter(|key| key["lease"].as_u64().is_none_or(|lease| lease == 0))
            .map(|key| (key["key"].as_str().unwrap().to_owned(), key["mod_revision"].as_u64().unwrap()))
            .collect()
    }

    /// Compacts the store's history up to now.
    pub fn compact(&self) {
        self.ctl(&format!("compact {}", self.revision())).ok();
    }

    /// The values of all keys that begin with `prefix`.
    pub fn values(&self, prefix: &str) -> Vec<String> {
        let printed = self.ctl(&format!("get --prefix {prefix} --print-value-only")).ok();
        printed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Writes a snapshot of the store into a file.
    pub fn back_up(&self) -> PathBuf {
        let file = self.directory.path().join("backup.db");
        self.ctl_at(&self.url(0), &format!("snapshot save {}", file.display())).ok();
        file
    }

    /// Replaces the whole store by an old backup, as an operator does.
    pub fn restore(&mut self, backup: &Path) {
        self.kill_all();
        let program = program("etcdctl").expect("etcdctl is beside etcd");
        for (member, host) in self.hosts.iter().enumerate() {
            let data = self.file(&format!("m{member}"));
            std::fs::remove_dir_all(&data).unwrap();
            host.sh(&format!(
                "ETCDCTL_API=3 {} snapshot restore {} --name m{member} --initial-cluster {} --initial-advertise-peer-urls {} --data-dir {data}",
                program.display(),
                backup.display(),
                self.cluster(),
                self.peer(member)
            ))
            .ok();
        }
        self.start_all();
        self.wait_until_ready();
    }
}

fn json(finished: Finished) -> serde_json::Value {
    serde_json::from_str(&finished.ok()).unwrap()
}

/// A program of etcd: installed, or unpacked by `scripts/setup`.
pub fn program(name: &str) -> Option<PathBuf> {
    let package = if name == "etcd" { "etcd-server" } else { "etcd-client" };
    let unpacked = repository().join("target/packages").join(package).join("usr/bin").join(name);
    let found = [unpacked, Path::new("/usr/bin").join(name)].into_iter().find(|path| path.exists());
    if found.is_none() {
        println!("skipped: this test needs {name}; scripts/setup unpacks it");
    }
    found
}
