//! Follows `configs/Containerfile` by hand on a Debian without systemd. The exit then runs with the privileges of the file's
//! `podman run`. It is followed by hand, because the test has no registry to pull an image from.

use std::process::Command;

use super::debian::{Package, slim_root};
use crate::support::daemon::repository;
use crate::support::{
    Client, Finished, HostState, Namespace, Net, Running, eventually, finished, flows, seconds,
};

#[test]
#[ignore = "takes a minute and a download of Debian"]
fn container_recipe_makes_an_exit_that_needs_neither_root_nor_a_writable_system() {
    let Some(net) = Net::new() else { return };
    let recipe = Recipe::read();
    assert_eq!(recipe.lines("FROM"), ["debian:bookworm-slim"]);
    assert_eq!(recipe.lines("COPY"), ["warren_*.deb /tmp/"]);
    let image = Image::new(&Package::of_this_build("1.0-1"));
    for step in recipe.lines("RUN") {
        image.build(&step).ok();
    }
    assert_eq!(recipe.lines("USER"), ["warren"]);
    assert_eq!(recipe.lines("VOLUME"), ["[\"/etc/warren\", \"/var/lib/warren\"]"]);
    assert_eq!(
        (recipe.lines("ENTRYPOINT"), recipe.lines("CMD")),
        (vec!["[\"/usr/bin/warren\"]".to_owned()], vec!["[\"exit\", \"run\"]".to_owned()])
    );
    net.exit.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1").ok();
    let before = HostState::of(&net.exit);

    finished(&mut image.run(&net.exit, &format!("exit init --endpoint {}:8443", Net::EXIT_V4))).ok();
    let allow = format!("echo '{}' >> /etc/warren/exit.toml", Net::ALLOW_INTERNET);
    finished(&mut image.enter(&net.exit, &allow)).ok();
    let mut exit = Running::new(image.run(&net.exit, "exit run"));
    eventually(seconds(20), "the exit listens", || {
        assert!(exit.is_running(), "{}", exit.output());
        exit.output().contains("listening on UDP")
    });
    let line = finished(&mut image.run(&net.exit, "exit invite laptop")).ok();
    let client = Client::bare(&net.client);
    client.warren.run(line.trim().strip_prefix("warren ").unwrap()).ok();
    client.warren.run("up").ok();
    let seen = |internet| flows::seen_from(&net.client, internet, 20_000).map(|seen| seen.ip().to_string());
    assert_eq!(seen(Net::INTERNET_V4).as_deref(), Some(Net::EXIT_V4));
    assert_eq!(seen(Net::INTERNET_V6).as_deref(), Some(Net::EXIT_V6));

    // The process has exactly the privileges of the recipe: it is not root, has one capability, and can write only to its own
    // files.
    let status = std::fs::read_to_string(format!("/proc/{}/status", exit.pid())).unwrap();
    for line in ["CapEff:\t0000000000001000", "CapBnd:\t0000000000001000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{line} is not in\n{status}");
    }
    assert!(!status.contains("Uid:\t0"), "{status}");
    let refused = finished(&mut image.enter(&net.exit, "touch /usr/bin/x || touch /root/x"));
    assert!(refused.stderr.contains("Read-only") || refused.stderr.contains("denied"), "{refused:?}");
    client.warren.run("down").ok();
    exit.signal(rustix::process::Signal::TERM);
    assert_eq!(exit.wait(seconds(20)), Some(0), "{}", exit.output());
    eventually(seconds(10), "the host is as before", || {
        !net.exit.sh("nft list tables").stdout.contains("warren")
    });
    before.assert_same(&HostState::of(&net.exit));
}

/// The instructions of the recipe, each on one line.
struct Recipe(Vec<(String, String)>);

impl Recipe {
    fn read() -> Self {
        let text = std::fs::read_to_string(repository().join("configs/Containerfile")).unwrap();
        let text = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let text = text.replace("\\\n", " ");
        let instructions = text.lines().filter_map(|line| line.split_once(' '));
        Self(instructions.map(|(name, rest)| (name.to_owned(), rest.trim().to_owned())).collect())
    }

    fn lines(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(other, _)| other == name).map(|(_, rest)| rest.clone()).collect()
    }
}

/// A container image: the files that the build steps have written, as a layer over a Debian without systemd.
struct Image {
    directory: tempfile::TempDir,
}

impl Image {
    fn new(package: &Package) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        for name in ["upper/tmp", "work", "root", "volumes/etc", "volumes/state"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        std::fs::copy(package.path(), directory.path().join("upper/tmp").join(package.name())).unwrap();
        Self { directory }
    }

    /// A shell line that mounts the image at `root`, visible only to the command that follows.
    fn mounted(&self, then: &str) -> String {
        let (lower, here) = (slim_root().display().to_string(), self.directory.path().display());
        // The devices of a container, and the TUN device that `podman run` passes in, with udev's open mode.
        let devices = "mount -t tmpfs -o mode=755 devices root/dev; mkdir root/dev/net; mknod -m 666 root/dev/net/tun c 10 200; \
             for node in null:3 zero:5 random:8 urandom:9; do mknod -m 666 root/dev/${node%:*} c 1 ${node#*:}; done; ";
        format!(
            "set -e; cd {here}; mount -t overlay overlay -o lowerdir={lower},upperdir=upper,workdir=work root; \
             mount -t proc proc root/proc; mount --rbind /sys root/sys; {devices}{then}"
        )
    }

    /// Runs a step of the recipe as root on the machine's own network.
    fn build(&self, step: &str) -> Finished {
        let resolv = "cp /etc/resolv.conf root/etc/resolv.conf; exec chroot root env -i PATH=$PATH DEBIAN_FRONTEND=noninteractive sh -ec \"$0\"";
        finished(Command::new("unshare").args(["-m", "sh", "-c", &self.mounted(resolv), step]))
    }

    /// A Warren command line on a host, started as `podman run` starts it.
    fn run(&self, host: &Namespace, line: &str) -> Command {
        self.enter(host, &format!("exec /usr/bin/warren {line}"))
    }

    fn enter(&self, host: &Namespace, line: &str) -> Command {
        // A new volume gets the image's content and the image user's ownership.
        let volumes = "for pair in etc:etc/warren state:var/lib/warren; do \
             volume=volumes/${pair%%:*}; place=root/${pair#*:}; \
             test -e $volume/.made || { cp -a $place/. $volume; chown --reference=$place $volume; chmod 700 $volume; touch $volume/.made; }; \
             mount --bind $volume $place; done; \
             mkdir -p runtime; chown --reference=root/run/warren runtime; chmod 700 runtime; mount --bind runtime root/run/warren; \
             mount -o remount,ro overlay root; ";
        let rights = "exec chroot root setpriv --reuid=warren --regid=warren --clear-groups --inh-caps=-all,+net_admin \
             --ambient-caps=-all,+net_admin --bounding-set=-all,+net_admin --no-new-privs sh -c \"$0\"";
        host.command(&["unshare", "-m", "sh", "-c", &self.mounted(&format!("{volumes}{rights}")), line])
    }
}
