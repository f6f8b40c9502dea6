//! Packets of a flow are merged for the TUN only where this is allowed.

use crate::support::{Client, Exit, ExitOptions, Net};

#[test]
fn a_bulk_flow_is_written_in_super_packets_whose_checksums_are_right() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    // The exit's kernel completes every partial checksum, and the internet host verifies it.
    net.exit.sh("ethtool -K eth0 tx off").ok();
    client.up();
    let _server = net.internet.iperf3(5201);

    for host in ["203.0.113.2", "2001:db8:3::2"] {
        client.iperf3(host, "-P 2 -n 30M");
        client.iperf3(host, "-P 2 -n 30M -R");
    }

    for (role, status) in [("exit", exit.status()), ("client", client.status())] {
        let (writes, packets) = status.writes_and_packets();
        assert!(packets > 2 * writes, "{role}: {packets} packets in {writes} writes");
        assert_eq!(status.drop("tun", "tun_write"), 0, "{role}");
    }
    let errors = net.internet.host.sh("nstat -asz TcpInCsumErrors | awk '/Csum/ { print $2 }'").ok();
    assert_eq!(errors.trim(), "0");
}

#[test]
fn without_tun_offload_every_packet_is_one_write() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|exit| exit.with("transport", "tun_offload", false));
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop").with("transport", "tun_offload", false));
    client.up();
    let _server = net.internet.iperf3(5201);

    client.iperf3("203.0.113.2", "-n 10M");
    client.iperf3("203.0.113.2", "-n 10M -R");

    for (role, status) in [("exit", exit.status()), ("client", client.status())] {
        let (writes, packets) = status.writes_and_packets();
        assert_eq!(writes, packets, "{role}");
        // iperf3 sends 7,800 datagrams and then ends at once, so datagrams in flight may be lost.
        assert!(packets > 4_000, "{role}: {packets} packets");
    }
}
