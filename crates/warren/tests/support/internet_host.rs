//! The host that clients want to reach: a web page, an echo, a resolver and iperf3.

use super::{Namespace, Running};

/// A host with services on both IP versions. It knows nothing about Warren.
#[derive(Debug)]
pub struct InternetHost {
    pub host: Namespace,
    _services: Running,
}

impl InternetHost {
    /// Starts the services: HTTP on 80, UDP echo on 7, DNS on 53.
    pub fn start(host: Namespace) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/internet_host.py");
        let mut services = host.start(&["python3", "-u", script]);
        services.wait_for_output("ready");
        Self { host, _services: services }
    }

    /// Starts an iperf3 server on `port`.
    pub fn iperf3(&self, port: u16) -> Running {
        let mut server =
            self.host.start(&["iperf3", "--server", "--forceflush", "--port", &port.to_string()]);
        server.wait_for_output("Server listening");
        server
    }
}
