//! The daemons run out of disk space or file descriptors.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use warren_quic::key::PrivateKey;

use crate::support::counters::packets_counted;
use crate::support::crowd::{CONNECTIONS, Crowd, LISTENING, SENDING, Shared, exit_with};
use crate::support::{
    Client, Exit, ExitOptions, Finished, HostState, Namespace, Net, Running, eventually, seconds,
};

#[test]
fn a_full_disk_keeps_the_exit_s_clients_as_they_were_until_there_is_room() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    let profile = exit.enrol("laptop");
    let disk = SmallDisk::at(exit.warren.state(""));
    let daemon = exit.warren.start_under(&disk.program(), "--log info exit run");
    eventually(seconds(10), "the exit answers", || exit.warren.status().is_some());
    let clients = || disk.inside(&net.exit, &daemon, "cat exit/clients.store").ok();
    disk.fill(&net.exit, &daemon);
    // First fills the last block of the store on disk, which still has room for some lines.
    for line in ["exit client add filler", "exit invite guest"] {
        let is_full = |number: &u32| exit.warren.run(&format!("{line}-{number}")).code != Some(0);
        (0..100).find(is_full).expect("the disk becomes full");
    }
    let before = clients();
    let known = || exit.warren.run("exit client list").ok();
    let known_before = known();
    let changes = [
        "exit client add phone",
        "exit invite tablet",
        "exit client rename laptop desk",
        "exit client set laptop --ipv4 10.66.7.7",
    ];
    for line in changes {
        assert_one_sentence(&exit.warren.run(line), "no space left on device");
        assert_eq!(known(), known_before, "a failed {line} changed nothing");
    }
    assert_eq!(clients(), before, "failed writes left the file alone");
    // The client's lease is new, and cannot be written either.
    let client = Client::with(&net, &profile);
    client.up();
    client.sh("ping -c 1 -W 2 203.0.113.2");
    assert_eq!(clients(), before);

    // A client that is disabled is cut off even if the store cannot be written.
    assert_one_sentence(&exit.warren.run("exit client disable laptop"), "the client is cut off, but");
    eventually(seconds(20), "a disabled client is refused", || client.status().text("/state") == "refused");
    assert_eq!(clients(), before);

    disk.inside(&net.exit, &daemon, "rm fill").ok();
    eventually(seconds(20), "everything is saved once there is room", || {
        let clients = clients();
        ["\"disabled\":true", "10.66."].iter().all(|text| clients.contains(text))
    });
    exit.warren.run("exit client add phone").ok();
    assert!(clients().contains("phone"));
}

#[test]
fn a_full_disk_keeps_a_tunnel_from_beginning_and_the_host_as_it_was() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let before = HostState::of(&net.client);
    let runtime = client.warren.state("../runtime");
    std::fs::create_dir_all(&runtime).unwrap();
    let disk = SmallDisk::at(runtime);
    let fill = [disk.script(), "cat /dev/zero > fill 2>/dev/null; exec \"$@\"".to_owned()].concat();

    let mut up = client.warren.start_under(&["sh", "-c", &fill, "sh"], "up home --timeout 10s");

    let code = up.wait(seconds(30));
    let said = up.output();
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.to_lowercase().contains("no space left") && said.contains("free space on"), "{said}");
    before.assert_same(&HostState::of(&net.client));
}

#[test]
fn daemons_without_descriptors_say_so_and_leave_the_host_as_it_was() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    let client = Client::with(&net, &exit.enrol("laptop"));
    let (exit_host, client_host) = (HostState::of(&net.exit), HostState::of(&net.client));

    let mut failed = exit.warren.start_under(&["prlimit", "--nofile=12"], "exit run");
    assert_eq!(failed.wait(seconds(20)), Some(1), "{}", failed.output());
    assert!(failed.output().to_lowercase().contains("too many open files"), "{}", failed.output());
    exit_host.assert_same(&HostState::of(&net.exit));

    exit.run();
    let profile = client.warren.config("home.toml");
    let line = format!("client run {}", profile.display());
    let mut failed = client.warren.start_under(&["prlimit", "--nofile=12"], &line);
    assert_eq!(failed.wait(seconds(30)), Some(1), "{}", failed.output());
    assert!(failed.output().to_lowercase().contains("too many open files"), "{}", failed.output());
    client_host.assert_same(&HostState::of(&net.client));
}

#[test]
fn an_exit_whose_descriptors_are_used_up_keeps_carrying_and_does_not_spin() {
    const COUNT: usize = 100;
    let Some(net) = Net::new() else { return };
    let keys: Vec<PrivateKey> = (0..COUNT).map(|_| PrivateKey::generate().unwrap()).collect();
    let exit = exit_with(&net, &keys);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let daemon = exit.warren.start_under(&["prlimit", "--nofile=64"], "exit run");
    eventually(seconds(10), "the exit answers", || exit.warren.status().is_some());
    client.up();
    let exit_key = exit.status().text("/public_key").parse().unwrap();
    let others = net.second_client();
    let crowd = Crowd::start(&others, keys, exit_key);
    let all = || crowd.shared.attached.load(SeqCst) == COUNT * CONNECTIONS;
    eventually(seconds(60), "every client has all of its connections", all);
    let socket = exit.warren.state("../runtime/exit/control.sock");
    let held: Vec<_> =
        (0..100).map_while(|_| std::os::unix::net::UnixStream::connect(&socket).ok()).collect();
    let refused = || daemon.output().matches("Too many open files").count();
    eventually(seconds(5), "all descriptors are used up", || refused() > 0);

    let (before, refused_before) = (processor_time(&daemon), refused());
    let lost = client.sh("ping -q -c 20 -i 0.1 -W 5 203.0.113.2");
    let used = processor_time(&daemon) - before;
    assert!(lost.contains(" 0% packet loss"), "{lost}");
    println!("measured: R1: {used:?} of processor time in two seconds, {} commands waiting", held.len());
    assert!(used < Duration::from_millis(400), "{used:?} of processor time in two seconds");
    assert!(refused() > refused_before, "descriptors ran out again meanwhile");
    // The other clients' traffic passes too. Packets are counted by rules, so that packets that the echo loses on a busy machine
    // do not count as the exit's loss.
    let chain = |name: &str, hook: &str, port: &str| {
        format!("chain {name} {{ type filter hook {hook} priority raw; udp {port} 7 counter; }};")
    };
    let counters = [chain("asked", "prerouting", "dport"), chain("echoed", "output", "sport")].concat();
    net.internet.host.sh(&format!("nft 'table inet seen {{ {counters} }}'")).ok();
    let at_the_echo = || {
        let listed = net.internet.host.sh("nft list table inet seen").ok();
        let [asked, echoed] = packets_counted(&listed)[..] else { panic!("{listed}") };
        (asked, echoed)
    };
    let Shared { phase, sent, answered, .. } = &*crowd.shared;
    phase.store(SENDING, SeqCst);
    std::thread::sleep(seconds(1));
    phase.store(LISTENING, SeqCst);
    eventually(seconds(10), "no packet or answer of the other clients is lost", || {
        at_the_echo() == (sent.load(SeqCst), answered.load(SeqCst))
    });
    println!(
        "measured: R1: {} packets of {COUNT} other clients and {} answers, 0 lost",
        sent.load(SeqCst),
        answered.load(SeqCst)
    );
    assert!(all() && sent.load(SeqCst) >= COUNT as u64 && answered.load(SeqCst) >= COUNT as u64);
    crowd.end();
    drop(held);
    eventually(seconds(10), "the exit answers again", || exit.warren.status().is_some());
    client.down();
}

/// A directory that is a small disk of its own, visible only to one program (and to commands run through [`Self::inside`]).
struct SmallDisk {
    directory: String,
}

impl SmallDisk {
    fn at(directory: impl AsRef<Path>) -> Self {
        Self { directory: directory.as_ref().display().to_string() }
    }

    /// A shell script that mounts the disk, copies the directory's content onto it, and then runs the following program. `ip
    /// netns exec` keeps the mount private.
    fn script(&self) -> String {
        let at = &self.directory;
        format!(
            "set -e; kept=$(mktemp -d); cp -a {at}/. $kept; mount -t tmpfs -o size=512k,mode=755 tmpfs {at}; \
             cp -a $kept/. {at}; rm -r $kept; set +e; cd {at}; "
        )
    }

    fn program(&self) -> [&str; 4] {
        // The text is leaked, because the options need a static string.
        let script = format!("{}exec \"$@\"", self.script());
        ["sh", "-c", Box::leak(script.into_boxed_str()), "sh"]
    }

    /// Runs a shell line where the program's small disk is visible.
    fn inside(&self, host: &Namespace, program: &Running, line: &str) -> Finished {
        host.sh(&format!("nsenter -t {} -m sh -c 'cd {} && {line}'", program.pid(), self.directory))
    }

    fn fill(&self, host: &Namespace, program: &Running) {
        self.inside(host, program, "cat /dev/zero > fill 2>/dev/null; true").ok();
    }
}

#[track_caller]
fn assert_one_sentence(finished: &Finished, with: &str) {
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(finished.stderr.trim_end().lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains(with), "{}", finished.stderr);
}

/// Processor time of a program, from `/proc/PID/stat` (clock ticks of 10 ms).
fn processor_time(program: &Running) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse().unwrap())
        .collect();
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}
