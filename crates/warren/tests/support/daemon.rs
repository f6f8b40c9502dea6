//! The warren binary on a host: commands that a person types, and daemons.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::memory_limit::MemoryLimit;
use super::namespace::{finished, signal};
use super::{Finished, HostState, Namespace, Net, Profile, Running, Status, Terminal, eventually, seconds};

/// Warren's three directories on one host, and its commands there.
#[derive(Debug)]
pub struct Warren<'net> {
    pub host: &'net Namespace,
    directory: TempDir,
    program: PathBuf,
}

impl<'net> Warren<'net> {
    pub fn on(host: &'net Namespace) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        for name in ["config", "runtime", "state"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { host, directory, program: env!("CARGO_BIN_EXE_warren").into() }
    }

    /// Uses a copy of the program in a directory with only these scripts.
    pub fn copied(host: &'net Namespace, scripts: &[(&str, &str)]) -> Self {
        let mut this = Self::on(host);
        this.program = this.write("warren", 0o755, "");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_warren")).arg(&this.program).status();
        assert!(copied.unwrap().success());
        for (name, text) in scripts {
            this.write(name, 0o755, text);
        }
        this
    }

    pub fn config(&self, file: &str) -> PathBuf {
        self.directory.path().join("config").join(file)
    }

    pub fn state(&self, file: &str) -> PathBuf {
        self.directory.path().join("state").join(file)
    }

    /// Runs `warren LINE` to its end. The line is split at spaces.
    pub fn run(&self, line: &str) -> Finished {
        finished(&mut self.command(line))
    }

    /// Runs `warren LINE` as an unprivileged user.
    pub fn run_as_nobody(&self, line: &str) -> Finished {
        let program = self.directory.path().join("warren");
        // The file is copied by `cp`. If this process wrote it, a child process of another test could inherit the open
        // descriptor, and executing the file would fail (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_warren")).arg(&program).status();
        assert!(copied.unwrap().success());
        let mut arguments = vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let own = self.arguments(line);
        arguments.push(program.to_str().unwrap());
        arguments.extend(own.iter().map(String::as_str));
        finished(&mut self.host.command(&arguments))
    }

    /// Starts `warren LINE` and leaves it running.
    pub fn start(&self, line: &str) -> Running {
        Running::new(self.command(line))
    }

    /// Starts `warren LINE` through a wrapper program.
    pub fn start_under(&self, program: &[&str], line: &str) -> Running {
        let own = self.arguments(line);
        let mut arguments = program.to_vec();
        arguments.push(env!("CARGO_BIN_EXE_warren"));
        arguments.extend(own.iter().map(String::as_str));
        Running::new(self.host.command(&arguments))
    }

    /// Starts `warren LINE` with a memory limit.
    pub fn start_within(&self, memory: &MemoryLimit, line: &str) -> Running {
        Running::new(memory.bound(&self.command(line)))
    }

    /// Starts `warren LINE` on a terminal of 80 columns and 24 rows.
    pub fn on_terminal(&self, line: &str) -> Terminal {
        let own = self.arguments(line);
        let mut arguments = vec![env!("CARGO_BIN_EXE_warren")];
        arguments.extend(own.iter().map(String::as_str));
        Terminal::start(self.host, &arguments, 80, 24)
    }

    pub fn write(&self, file: &str, mode: u32, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.config(file);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// The output of `warren pubkey` for a private key.
    pub fn public_key(&self, private: &str) -> String {
        let file = self.write("private", 0o600, private);
        self.host.sh(&format!("{} pubkey < {}", env!("CARGO_BIN_EXE_warren"), file.display())).ok()
    }

    /// The files in Warren's directories.
    pub fn files(&self) -> String {
        finished(Command::new("find").arg(self.directory.path()).args(["-not", "-name", "log"])).ok()
    }

    /// The output of `warren status --json`, if a daemon answers.
    pub fn status(&self) -> Option<Status> {
        let finished = self.run("status --json");
        finished.succeeded().then(|| Status(serde_json::from_str(&finished.stdout).unwrap()))
    }

    fn command(&self, line: &str) -> Command {
        let own = self.arguments(line);
        let mut arguments = vec![self.program.to_str().unwrap()];
        arguments.extend(own.iter().map(String::as_str));
        self.host.command(&arguments)
    }

    fn arguments(&self, line: &str) -> Vec<String> {
        let options = ["config", "runtime", "state"]
            .map(|name| format!("--{name}-dir={}", self.directory.path().join(name).display()));
        options.into_iter().chain(line.split_whitespace().map(str::to_owned)).collect()
    }
}

impl Drop for Warren<'_> {
    /// Prints the daemon's status if the test has failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = self.run("status --json");
            let zero = |line: &str| line.trim_end_matches(',').ends_with(" 0");
            let counted = status.stdout.lines().filter(|line| !zero(line));
            println!("--- status of {}\n{}", self.host.name(), counted.collect::<Vec<_>>().join("\n"));
            let log = self.directory.path().join("runtime/home/log");
            println!("{}{}", status.stderr, std::fs::read_to_string(log).unwrap_or_default());
        }
    }
}

/// Options for creating an exit.
#[derive(Clone, Debug)]
pub struct ExitOptions {
    /// `HOST[:PORT]` as clients reach the exit.
    pub endpoint: String,
    pub ipv4: String,
    pub ipv6: String,
}

impl Default for ExitOptions {
    fn default() -> Self {
        Self {
            endpoint: format!("{}:443", Net::EXIT_V4),
            ipv4: "10.66.0.0/16".into(),
            ipv6: "fd66:6666::/64".into(),
        }
    }
}

impl ExitOptions {
    /// Options for an exit on the second client's host, with other pools.
    pub fn second() -> Self {
        Self { endpoint: "192.0.3.2:443".into(), ipv4: "10.77.0.0/16".into(), ipv6: "fd77:7777::/64".into() }
    }
}

/// The exit's host with its daemon.
#[derive(Debug)]
pub struct Exit<'net> {
    pub warren: Warren<'net>,
    daemon: Option<Running>,
}

impl<'net> Exit<'net> {
    /// Creates an exit with the usual addresses and starts it.
    pub fn start(net: &'net Net) -> Self {
        Self::start_with(net, &ExitOptions::default())
    }

    pub fn start_with(net: &'net Net, options: &ExitOptions) -> Self {
        let mut exit = Self::init(net, options);
        exit.run();
        exit
    }

    /// Creates an exit that is not running yet.
    pub fn init(net: &'net Net, options: &ExitOptions) -> Self {
        Self::init_on(&net.exit, options)
    }

    /// Creates an exit on another host.
    pub fn init_on(host: &'net Namespace, options: &ExitOptions) -> Self {
        let warren = Warren::on(host);
        let ExitOptions { endpoint, ipv4, ipv6 } = options;
        warren.run(&format!("exit init --endpoint {endpoint} --ipv4 {ipv4} --ipv6 {ipv6}")).ok();
        let config = warren.config("exit.toml");
        std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + Net::ALLOW_INTERNET).unwrap();
        Self { warren, daemon: None }
    }

    /// Creates an exit that joins a fleet with a ticket.
    pub fn join(host: &'net Namespace, endpoint: &str, ticket: &str) -> Self {
        let warren = Warren::on(host);
        warren.run(&format!("exit init --endpoint {endpoint} --fleet {ticket}")).ok();
        let config = warren.config("exit.toml");
        std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + Net::ALLOW_INTERNET).unwrap();
        Self { warren, daemon: None }
    }

    /// Starts the daemon and waits until it listens.
    pub fn run(&mut self) {
        self.daemon = Some(self.warren.start("--log info exit run"));
        self.wait_until_it_listens();
    }

    /// Starts the daemon with a log filter, and waits until it listens.
    pub fn run_with_log(&mut self, filter: &str) {
        self.daemon = Some(self.warren.start(&format!("--log {filter} exit run")));
        self.wait_until_it_listens();
    }

    /// Starts the daemon through a wrapper program, and waits until it listens.
    pub fn run_under(&mut self, program: &[&str]) {
        self.daemon = Some(self.warren.start_under(program, "--log info exit run"));
        self.wait_until_it_listens();
    }

    /// Starts the daemon with a memory limit, and waits until it listens.
    pub fn run_within(&mut self, memory: &MemoryLimit) {
        self.daemon = Some(self.warren.start_within(memory, "--log info exit run"));
        self.wait_until_it_listens();
    }

    fn wait_until_it_listens(&mut self) {
        eventually(seconds(30), "the exit answers", || {
            let daemon = self.daemon();
            assert!(daemon.is_running(), "the exit ended: {}", daemon.output());
            self.warren.status().is_some()
        });
    }

    pub fn daemon(&mut self) -> &mut Running {
        self.daemon.as_mut().expect("the exit was started")
    }

    /// Enrols a client and returns the profile that the exit prints for it.
    pub fn enrol(&self, name: &str) -> Profile {
        Profile::parse(&self.warren.run(&format!("exit client add {name}")).ok())
    }

    /// Enrols a client that already has a key. The returned profile lacks only the private key.
    pub fn enrol_key(&self, name: &str, public_key: &str) -> Profile {
        Profile::parse(&self.warren.run(&format!("exit client add {name} --public-key {public_key}")).ok())
    }

    #[track_caller]
    pub fn status(&self) -> Status {
        self.warren.status().expect("the exit answers")
    }

    /// Sends a signal to the daemon and waits for its end.
    pub fn stop(&mut self, with: Signal) {
        let daemon = self.daemon();
        daemon.signal(with);
        daemon.wait(seconds(10));
    }

    /// All clients, as a command exports them.
    #[track_caller]
    pub fn export(&self) -> String {
        self.warren.run("exit client export").ok() + "\n"
    }

    /// Edits the exit's clients. The exit imports them when it starts or reloads.
    pub fn edit_clients(&self, edit: impl FnOnce(&mut Vec<toml::Value>)) {
        let mut file: toml::Table = self.export().parse().unwrap();
        edit(file["client"].as_array_mut().unwrap());
        std::fs::write(self.warren.state("exit/clients.toml"), file.to_string()).unwrap();
    }

    /// Changes the exit's configuration.
    pub fn configure(&self, change: impl FnOnce(Profile) -> Profile) {
        let path = self.warren.config("exit.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, change(Profile::parse(&text)).text()).unwrap();
    }
}

/// A client's host with its profile `home`.
#[derive(Debug)]
pub struct Client<'net> {
    pub warren: Warren<'net>,
    before: HostState,
}

impl<'net> Client<'net> {
    /// Gives a profile to the net's client host.
    pub fn with(net: &'net Net, profile: &Profile) -> Self {
        Self::on(&net.client, profile)
    }

    pub fn on(host: &'net Namespace, profile: &Profile) -> Self {
        let warren = Warren::on(host);
        warren.write("home.toml", 0o600, &profile.text());
        Self { before: HostState::of(host), warren }
    }

    /// A host without any profile.
    pub fn bare(host: &'net Namespace) -> Self {
        Self { before: HostState::of(host), warren: Warren::on(host) }
    }

    /// Brings the tunnel up. Fails unless that works.
    #[track_caller]
    pub fn up(&self) {
        self.warren.run("up home").ok();
    }

    /// Runs the daemon in the foreground with the log filter `log`, and waits until the tunnel is up.
    #[track_caller]
    pub fn run(&self, log: &str) -> Running {
        self.run_under(&[], log)
    }

    /// Does [`Self::run`] through a wrapper program.
    #[track_caller]
    pub fn run_under(&self, program: &[&str], log: &str) -> Running {
        let profile = self.warren.config("home.toml");
        let line = format!("--log {log} client run {}", profile.display());
        let mut daemon = self.warren.start_under(program, &line);
        eventually(seconds(40), "the tunnel is up", || {
            assert!(daemon.is_running(), "the client ended: {}", daemon.output());
            self.warren.status().is_some_and(|status| status.text("/state") == "up")
        });
        daemon
    }

    /// Takes the tunnel down. Fails unless that works and the host is as it was before `up`.
    #[track_caller]
    pub fn down(&self) {
        self.warren.run("down home").ok();
        self.assert_host_unchanged();
    }

    #[track_caller]
    pub fn assert_host_unchanged(&self) {
        self.before.assert_same(&HostState::of(self.warren.host));
    }

    /// Runs a shell line on the client's host and returns its output. Fails unless it succeeds.
    #[track_caller]
    pub fn sh(&self, line: &str) -> String {
        self.warren.host.sh(line).ok()
    }

    /// Runs iperf3 on the client's host. Tries again if the server is still busy with the previous run.
    #[track_caller]
    pub fn iperf3(&self, host: &str, options: &str) {
        let run = format!("out=$(timeout 30 iperf3 -c {host} {options} 2>&1) && exit 0");
        self.sh(&format!(
            "for try in 1 2 3 4 5; do {run}; echo \"$out\"; case $out in *busy*) sleep 1;; *) exit 1;; esac; done; exit 1"
        ));
    }

    #[track_caller]
    pub fn status(&self) -> Status {
        self.warren.status().expect("the client answers")
    }

    pub fn signal(&self, which: Signal) {
        signal(i32::try_from(self.status().number("/pid")).unwrap(), which);
    }

    /// Deletes the TUN device and makes another device of the same name before the daemon can react.
    pub fn lose_device_to_another(&self) {
        let pid = self.status().number("/pid");
        self.sh(&format!(
            "kill -STOP {pid}; ip link delete warren0 && ip tuntap add warren0 mode tun && \
             ip address add 10.9.9.9/32 dev warren0; kill -CONT {pid}"
        ));
    }

    /// The client's inner addresses, with their prefix lengths.
    pub fn inner_addresses(&self) -> (Value, Value) {
        let session = &self.status().0["session"];
        (session["ipv4"].clone(), session["ipv6"].clone())
    }

    /// The client's inner IPv4 address, without its prefix length.
    pub fn inner_ipv4(&self) -> Ipv4Addr {
        self.inner_addresses().0.as_str().unwrap().split('/').next().unwrap().parse().unwrap()
    }
}

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
