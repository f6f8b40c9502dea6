//! Tests what a compromised daemon can make its helper do. The test talks to a helper in place of the daemon.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "test code")]

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;

use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use serde_json::{Value, json};

use crate::support::{Exit, Namespace, Net};

#[test]
fn no_ruleset_reaches_a_table_of_others() {
    let Some(net) = Net::new() else { return };
    let host = &net.client;
    let mut helper = Helper::start(host, "home");
    for table in ["filter", "warren_work", "warren_home"] {
        host.sh(&format!("nft 'table inet {table} {{ chain a {{ counter; }}; }}'")).ok();
    }
    let before = tables(host);

    let hostile = [
        "table inet warren_home {\n}; flush ruleset; table inet x {\n}\n",
        "table inet warren_home {\nchain a {\n}; }; flush ruleset; table inet warren_home { chain b {\n}\n}\n",
        "table inet warren_home {\nchain b {\nip saddr { 10.0.0.1 }; }; }; delete table inet filter; table inet x { chain a {\n}\n}\n",
        "add table inet warren_work\ndelete table inet warren_work\n",
    ];
    for ruleset in hostile {
        for (what, call) in [
            ("by itself", json!({ "Load": { "ruleset": ruleset } })),
            ("by an owner", json!({ "LoadOwned": { "owner": 1, "ruleset": ruleset } })),
        ] {
            let answer = helper.ask(&json!({ "Nft": call }));
            assert!(answer["Err"]["NftRefused"].is_string(), "{answer} {what} to {ruleset}");
            assert_eq!(tables(host), before, "{what}: {ruleset}");
        }
    }
    let family = "inet";
    for call in [
        json!({ "DeleteTable": { "family": family, "table": "filter" } }),
        json!({ "DeleteTable": { "family": family, "table": "warren_work" } }),
        json!({ "DeleteTable": { "family": family, "table": "warren_home; flush ruleset" } }),
        json!({ "ListTable": { "family": family, "table": "filter", "stateless": true } }),
    ] {
        let answer = helper.ask(&json!({ "Nft": call }));
        assert!(answer["Err"]["NftRefused"].is_string(), "{answer} to {call}");
    }

    // The helper accepts rulesets for its own table.
    let ruleset = "table inet warren_home {\nchain b {\niifname \"lo\" accept\n}\n}\n";
    let answer = helper.ask(&json!({ "Nft": { "Load": { "ruleset": ruleset } } }));
    assert_eq!(answer["Ok"]["Text"], "", "{answer}");
    let answer =
        helper.ask(&json!({ "Nft": { "DeleteTable": { "family": family, "table": "warren_home" } } }));
    assert_eq!(answer["Ok"]["Text"], "", "{answer}");
    assert_eq!(tables(host), "table inet filter\ntable inet warren_work");

    // The control: nft itself accepts each of these rulesets, and each changes other programs' tables.
    for ruleset in hostile {
        host.sh("nft 'flush ruleset; table inet filter { }; table inet warren_work { }'").ok();
        let file = helper.directories.path().join("ruleset");
        std::fs::write(&file, ruleset).unwrap();
        host.sh(&format!("nft -f {}", file.display())).ok();
        let left = tables(host);
        assert!(!left.contains("filter") || !left.contains("warren_work"), "{left} after {ruleset}");
    }
}

#[test]
fn no_ruleset_has_nft_look_a_name_up() {
    let Some(net) = Net::new() else { return };
    let host = &net.client;
    let mut helper = Helper::start(host, "home");
    let directory = helper.directories.path().to_path_buf();
    let file = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    file("hosts", "192.0.2.7 local 5s\n");
    file("services", "local 5/tcp\n");
    file("protocols", "local 77\n");
    let hostile = [
        "ip daddr 1.1.1.1 | local accept",
        "ip daddr 1.1.1.1 & local accept",
        "ip daddr 1.1.1.1 - local accept",
        "ip daddr & (1.1.1.1 | local) == 1.1.1.1 accept",
        "ip saddr . ip daddr { 1.1.1.1 . local } accept",
        "tcp dport 22 | local accept",
        "meta l4proto local accept",
        "ip daddr 5s accept",
        "ip daddr { 1.1.1.1, 5s } accept",
    ];

    for rule in hostile {
        let ruleset = format!("table inet warren_home {{\nchain a {{\n{rule}\n}}\n}}\n");
        let answer = helper.ask(&json!({ "Nft": { "Load": { "ruleset": ruleset } } }));
        assert!(
            answer["Err"]["NftRefused"].as_str().is_some_and(|why| why.contains("a ruleset of Warren's")),
            "{answer}"
        );
        // The control: nft resolves the name, in this test from a file. Without the file it would query a name server.
        file("ruleset", &ruleset);
        let mounts = ["hosts", "services", "protocols"]
            .map(|name| format!("mount --bind {}/{name} /etc/{name}", directory.display()))
            .join(" && ");
        host.sh(&format!("unshare -m sh -c '{mounts} && nft -c -f {}/ruleset'", directory.display())).ok();
    }
    assert_eq!(tables(host), "");
}

#[test]
fn an_exit_has_no_way_to_the_nft_that_owns_its_table() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::start(&net);
    let pid = i32::try_from(exit.warren.status().unwrap().number("/pid")).unwrap();
    let nft = net.exit.pids().into_iter().find(|pid| command_line(*pid).starts_with("nft\0"));
    let nft = nft.expect("an nft owns the table");

    let input = std::fs::read_link(format!("/proc/{nft}/fd/0")).unwrap();
    let held = |pid: i32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        descriptors.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).any(|file| file == input)
    };
    let helper = net.exit.pids().into_iter().find(|pid| command_line(*pid).contains("\0helper\0"));
    assert!(
        held(helper.expect("the exit has a helper")),
        "the helper holds the other end of {}",
        input.display()
    );
    assert!(!held(pid), "the exit holds the other end of {}", input.display());

    // If the nft process that owns the exit's table ends, forwarded traffic is no longer filtered, so the exit ends.
    crate::support::signal(nft, rustix::process::Signal::KILL);
    let code = exit.daemon().wait(crate::support::seconds(10));
    assert_eq!(code, Some(1));
    assert!(exit.daemon().output().contains("nftables table is gone"), "{}", exit.daemon().output());
}

#[test]
fn resolvers_that_could_not_be_restored_are_restored_by_the_next_request() {
    let Some(net) = Net::new() else { return };
    let host = &net.client;
    let mut helper = Helper::start(host, "home");
    let resolvers = || host.sh("cat /etc/resolv.conf").ok();
    let before = resolvers();
    let servers = json!({ "device": "warren0", "servers": ["10.66.0.1"], "split": null, "anew": false });
    let set = helper.ask(&json!({ "SetResolvers": servers }));
    assert!(set.get("Ok").is_some() && resolvers().contains("10.66.0.1"), "{set}: {}", resolvers());

    // The records cannot be read for a while.
    let directory = helper.directories.path().join("state/dns");
    let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let records: Vec<_> = files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    records.iter().for_each(|(path, _)| std::fs::write(path, "rubbish").unwrap());
    let failed = helper.ask(&json!("RestoreResolvers"));
    assert!(failed.get("Err").is_some() && resolvers() != before, "the control: {failed}: {}", resolvers());
    records.iter().for_each(|(path, text)| std::fs::write(path, text).unwrap());

    let restored = helper.ask(&json!("RestoreResolvers"));
    assert!(restored.get("Ok").is_some(), "{restored}");
    assert_eq!(resolvers(), before);
    // Without anything to restore, the request succeeds too.
    assert!(helper.ask(&json!("RestoreResolvers")).get("Ok").is_some());
}

fn tables(host: &Namespace) -> String {
    host.sh("nft list tables").ok()
}

fn command_line(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// A helper process whose daemon is the test.
struct Helper {
    process: Child,
    socket: UnixStream,
    asked: u64,
    /// Carries the helper's notices.
    _channel: OwnedFd,
    directories: tempfile::TempDir,
}

impl Helper {
    fn start(host: &Namespace, name: &str) -> Self {
        let directories = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let options = ["config", "runtime", "state"]
            .map(|kind| format!("--{kind}-dir={}", directories.path().join(kind).display()));
        let [config, runtime, state] = &options;
        let program = env!("CARGO_BIN_EXE_warren");
        let mut command = host.command(&[program, config, runtime, state, "helper", "--", name]);
        let (socket, theirs) = UnixStream::pair().unwrap();
        let lock = File::create(directories.path().join("lock")).unwrap();
        let (channel, its) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let handed = [ControlMessage::ScmRights(&[its.as_raw_fd()])];
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&[0])], &handed, MsgFlags::empty(), None).unwrap();
        let process = command.stdin(OwnedFd::from(theirs)).stdout(lock).spawn().unwrap();
        Self { process, socket, asked: 0, _channel: channel, directories }
    }

    /// The helper's answer to a request.
    #[track_caller]
    fn ask(&mut self, request: &Value) -> Value {
        self.asked += 1;
        let text = json!({ "number": self.asked, "request": request }).to_string();
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        self.socket.write_all(&[&length, text.as_bytes()].concat()).unwrap();
        let mut length = [0; 4];
        self.socket.read_exact(&mut length).unwrap();
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        self.socket.read_exact(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["number"], self.asked);
        answer["answer"].clone()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
