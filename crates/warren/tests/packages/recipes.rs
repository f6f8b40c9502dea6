//! `configs/cloud-init.yaml`, run by cloud-init itself on a Debian system without Warren.

use super::debian::{self, Package, boot, typed};
use crate::support::daemon::repository;
use crate::support::{Client, Net, Systemd, finished, flows};

#[test]
#[ignore = "takes a minute and a download of Debian"]
fn cloud_init_ends_with_a_working_exit_and_an_invitation_on_the_console() {
    let Some(net) = Net::new() else { return };
    if !Systemd::is_here() {
        return;
    }
    let package = Package::of_this_build("1.0-1");
    let exit = boot(&net.exit, &[]);
    // This directory stands for the web server to which the operator has uploaded the package.
    let path = package.path();
    let directory = path.parent().unwrap().to_str().unwrap();
    let mut server =
        net.internet.host.start(&["python3", "-um", "http.server", "--directory", directory, "8000"]);
    server.wait_for_output("Serving HTTP");
    let sum = finished(std::process::Command::new("sha256sum").arg(&path)).ok();
    let url = format!("http://www.example.org:8000/{}", package.name());
    let user_data = std::fs::read_to_string(repository().join("configs/cloud-init.yaml")).unwrap();
    let filled_in = user_data
        .replace("https://downloads.example.net/warren_0.1.0-1_amd64.deb", &url)
        .replace(&"0".repeat(64), sum.split(' ').next().unwrap());
    assert!(filled_in.matches(&url).count() == 1, "{filled_in}");

    // Runs cloud-init itself, configured as a cloud does it.
    typed(&exit, "apt-get -q install -y --no-install-recommends cloud-init").ok();
    debian::write(&exit, "/root/user-data", &filled_in);
    debian::write(&exit, "/etc/cloud/cloud.cfg.d/99-test.cfg", CLOUD);
    let seed = "/var/lib/cloud/seed/nocloud";
    typed(
        &exit,
        &format!("mkdir -p {seed} && mv user-data {seed} && echo instance-id: test >{seed}/meta-data"),
    )
    .ok();
    typed(&exit, "cloud-init schema --config-file /var/lib/cloud/seed/nocloud/user-data").ok();
    for stage in ["init --local", "init", "modules --mode config", "modules --mode final"] {
        typed(&exit, &format!("cloud-init {stage}")).ok();
    }
    debian::allow_internet(&exit);
    let console = exit.sh("cat /var/log/cloud-init-output.log").ok();
    let invitation = console.lines().find(|line| line.starts_with("warren join "));
    let invitation = invitation.unwrap_or_else(|| panic!("no invitation in\n{console}"));

    let client = Client::bare(&net.client);
    client.warren.run(invitation.strip_prefix("warren ").unwrap()).ok();
    client.warren.run("up").ok();
    let seen = flows::seen_from(&net.client, Net::INTERNET_V4, 20_000).map(|seen| seen.ip().to_string());
    assert_eq!(seen.as_deref(), Some(Net::EXIT_V4));
    client.warren.run("down").ok();
}

/// cloud-init reads local files (NoCloud) in place of a cloud's metadata service. Only the cloud-init modules that the recipe's
/// file uses are enabled.
const CLOUD: &str = "\
datasource_list: [NoCloud]
network: {config: disabled}
cloud_init_modules: [write-files]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
";
