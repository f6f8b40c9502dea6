//! Daemons are killed at any moment. All changes that they leave are undone exactly.

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use warren_host::{
    Band, CARRIER_MARK, Host, Plan,
    client_plan::{ClientFirewall, ClientPlanFacts, client, firewall_table},
    exit_plan::exit,
    recover,
};

use crate::{
    exit::exit_host_here,
    support::{Namespace, device, is_root, lived_in_host, wait_until},
};

#[test]
fn client_killed_at_any_moment_is_recovered_exactly() {
    kill_and_recover("client", "warren0");
}

#[test]
fn exit_killed_at_any_moment_is_recovered_exactly() {
    kill_and_recover("exit", "exit0");
}

#[test]
fn table_goes_with_a_killed_exit_before_anybody_cleans_up() {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host("exit0");
    let mut daemon = Daemon::start(&host, "exit-stays");
    wait_until("the table is there", || host.succeeds("nft list table inet warren_exit"));

    daemon.kill();

    wait_until("the table is gone", || !host.succeeds("nft list table inet warren_exit"));
}

/// The daemon that the tests above start and kill. It is not a test itself.
#[test]
fn daemon() {
    let Ok(role) = std::env::var("WARREN_TEST_DAEMON") else { return };
    let journal = std::env::var("WARREN_TEST_JOURNAL").unwrap();
    let stays = role == "exit-stays";
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let plan = if role == "client" { client_plan() } else { exit(&exit_host_here()) };
        let mut host = Host::open(journal).await.unwrap();
        loop {
            let applied = host.apply(&plan).await.unwrap();
            if stays {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            host.undo(applied).await.unwrap();
        }
    });
}

/// Repeatedly kills a daemon that applies and undoes its plan without pause, recovers, and compares the host with its state
/// before. The moments are spread over the daemon's rounds.
fn kill_and_recover(role: &str, tun: &str) {
    if !is_root() {
        return;
    }
    let (host, _lan) = lived_in_host(tun);
    let before = host.snapshot();
    let mut found = 0;
    for moment in 0..MOMENTS {
        let mut daemon = Daemon::start(&host, role);
        wait_until("the daemon has a journal", || host.journal().exists());
        thread::sleep(Duration::from_micros(u64::from(moment) * 3_137 % 60_000));

        daemon.kill();
        let recovered = host.block_on(|| async { recover(host.journal()).await.unwrap() });

        found += usize::from(!recovered.undone.is_empty());
        host.assert_is(&before, &format!("killed at moment {moment}"));
    }
    assert!(found > 0, "no daemon was killed while it had something to undo");
}

fn client_plan() -> Plan {
    client(&ClientPlanFacts {
        device: device("warren0"),
        void: None,
        mtu: 1380,
        ipv4: Some([10, 66, 0, 2].into()),
        ipv6: None,
        kernel_has_ipv6: true,
        include: vec![
            "0.0.0.0/0".parse().unwrap(),
            "203.0.113.0/24".parse().unwrap(),
            "::/0".parse().unwrap(),
        ],
        exclude: Vec::new(),
        guests: Vec::new(),
        prefixes: Vec::new(),
        allowed_forwards: Vec::new(),
        router_advertisements: Vec::new(),
        firewall: Some(ClientFirewall { table: firewall_table("home"), listening: vec![22] }),
        mark: CARRIER_MARK,
        slot: 0,
        band: Band::USUAL,
        strict_reverse_path: vec![device("lan0")],
    })
}

/// A copy of this test binary that runs inside the namespace and can be killed.
struct Daemon(Child);

impl Daemon {
    fn start(host: &Namespace, role: &str) -> Self {
        let child = Command::new("ip")
            .args(["netns", "exec", host.name()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "killed::daemon", "--nocapture"])
            .env("WARREN_TEST_DAEMON", role)
            .env("WARREN_TEST_JOURNAL", host.journal())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the daemon ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process has already ended unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const MOMENTS: u32 = 25;
