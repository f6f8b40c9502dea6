//! At whatever moment a daemon is killed, the next command removes all changes that it left behind.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "test code")]

use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::support::{
    Client, Exit, ExitOptions, HostState, Namespace, Net, asked, eventually, seconds, signal,
};

/// Kills each daemon once in each of its phases. For row C2 of the scorecard (docs/torture.md), set `WARREN_KILLS=50`.
const KILLS: u64 = 4;

/// A daemon that was told to stop may end before it is killed. The test then repeats that phase, up to this many times per kill.
const TURNS: u64 = 8;

const FOREIGN: &str =
    "nft 'table inet mine { chain in { type filter hook input priority 0; tcp dport 22 accept; }; }'";

#[test]
fn client_killed_at_any_moment_is_undone_by_cleanup_or_by_the_next_up_and_down() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    net.client.sh(FOREIGN).ok();
    let client = Client::with(&net, &exit.enrol("laptop"));
    // The daemon's directory and lock remain after the first run.
    client.up();
    client.down();
    let files = client.warren.files();
    let mut random = Random::of_this_run();
    let kills = kills();

    let (mut killed, mut turns) = (0, 0);
    while killed < kills {
        assert!(turns < TURNS * kills, "{killed} of {kills} kills in {turns} turns");
        let locked = random.below(2) == 0;
        let up = if locked { "up home --kill-switch" } else { "up home" };
        let (was_killed, moment) = match killed % 4 {
            0 => {
                let mut starting = client.warren.start(up);
                eventually(seconds(10), "the daemon starts", || client_daemon(&net.client).is_some());
                let moment = random.pause(400);
                let was_killed = kill(client_daemon(&net.client));
                starting.wait(seconds(30));
                (was_killed, format!("{moment:?} after the start of {up}"))
            }
            phase => {
                client.warren.run(up).ok();
                let other = match phase {
                    1 => None,
                    2 => Some(client.warren.start("reload home")),
                    _ => Some(client.warren.start("down home")),
                };
                let moment = random.pause(if phase == 1 { 800 } else { 150 });
                let was_killed = kill(client_daemon(&net.client));
                let what = ["", "up", "reload", "down"][usize::try_from(phase).unwrap()];
                if locked && phase != 3 {
                    let tables = net.client.sh("nft list tables").ok();
                    assert!(
                        tables.contains("warren-kill-switch_home"),
                        "the kill switch stays closed: {tables}"
                    );
                }
                other.into_iter().for_each(|mut other| _ = other.wait(seconds(30)));
                (was_killed, format!("{moment:?} into {what}, after {up}"))
            }
        };
        println!("turn {turns}: {} {moment}", if was_killed { "killed" } else { "ended before" });
        turns += 1;
        killed += u64::from(was_killed);
        if random.below(2) == 0 {
            client.warren.run("cleanup").ok();
        } else {
            client.up();
            client.warren.run("down home").ok();
        }
        eventually(seconds(5), "no process is left", || net.client.pids().is_empty());
        client.assert_host_unchanged();
        assert_eq!(files, client.warren.files(), "no file is left");
    }
    println!("measured: {killed} kills of the client in {turns} turns, 0 lines of difference");
}

#[test]
fn exit_killed_at_any_moment_is_undone_by_cleanup_or_by_the_next_start_and_stop() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::init(&net, &ExitOptions::default());
    net.exit.sh(FOREIGN).ok();
    let before = HostState::of(&net.exit);
    let mut random = Random::of_this_run();
    let kills = kills();

    let (mut killed, mut turns) = (0, 0);
    while killed < kills {
        assert!(turns < TURNS * kills, "{killed} of {kills} kills in {turns} turns");
        let phase = killed % 4;
        let mut daemon = exit.warren.start("exit run");
        let answers = || exit.warren.status().is_some();
        if phase != 0 {
            eventually(seconds(10), "the exit answers", answers);
        }
        let other = match phase {
            2 => Some(exit.warren.start("reload exit")),
            3 => {
                daemon.signal(Signal::TERM);
                None
            }
            _ => None,
        };
        let moment = random.pause(if phase < 2 { 400 } else { 100 });
        daemon.signal(Signal::KILL);
        // A daemon that stopped by itself has an exit code.
        let was_killed = daemon.wait(seconds(10)).is_none();
        other.into_iter().for_each(|mut other| _ = other.wait(seconds(30)));
        println!(
            "turn {turns}: {} {moment:?} into {}",
            if was_killed { "killed" } else { "ended before" },
            ["start", "serving", "reload", "stop"][usize::try_from(phase).unwrap()]
        );
        turns += 1;
        killed += u64::from(was_killed);
        if random.below(2) == 0 {
            exit.warren.run("cleanup").ok();
        } else {
            let mut next = exit.warren.start("exit run");
            eventually(seconds(10), "the next daemon answers", answers);
            next.signal(Signal::TERM);
            assert_eq!(next.wait(seconds(10)), Some(0), "{}", next.output());
        }
        eventually(seconds(10), "no process is left", || net.exit.pids().is_empty());
        before.assert_same(&HostState::of(&net.exit));
    }
    println!("measured: {killed} kills of the exit in {turns} turns, 0 lines of difference");
}

fn kills() -> u64 {
    asked("WARREN_KILLS").unwrap_or(KILLS)
}

/// The process of the client's daemon, if it is running.
fn client_daemon(host: &Namespace) -> Option<i32> {
    host.pids().into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("\0client\0run\0")
    })
}

/// Kills the daemon. Returns whether it was still running.
fn kill(daemon: Option<i32>) -> bool {
    let Some(daemon) = daemon.filter(|daemon| !is_zombie(*daemon)) else { return false };
    signal(daemon, Signal::KILL);
    let gone = || !std::path::Path::new(&format!("/proc/{daemon}/ns")).join("net").exists();
    eventually(seconds(5), "the daemon is gone", || gone() || is_zombie(daemon));
    true
}

/// Whether the process has ended, even if its parent has not reaped it yet.
fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// A random number generator whose seed differs from run to run. The seed is printed, and can be set by `WARREN_SEED`.
struct Random(u64);

impl Random {
    fn of_this_run() -> Self {
        let now = || u64::from(SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos());
        let seed = asked("WARREN_SEED").unwrap_or_else(now);
        println!("WARREN_SEED={seed}");
        Self(seed | 1)
    }

    /// A random number below `bound` (xorshift64*).
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }

    /// Sleeps for less than `most_milliseconds`. Returns how long.
    fn pause(&mut self, most_milliseconds: u64) -> Duration {
        let pause = Duration::from_millis(self.below(most_milliseconds));
        std::thread::sleep(pause);
        pause
    }
}
