//! A tunnel's devices and their counters, which prove that the traffic went through the tunnel.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    net::Ipv4Addr,
    time::Duration,
};

use anyhow::Context as _;
use serde_json::Value;

use crate::{
    interrupt::Interrupt,
    namespace::{Namespace, join},
    vpn::process,
};

/// The network device that has a given inner address.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    /// The namespace's `net/dev` file. An open file shows the counters of the namespace in which it was opened, whatever thread
    /// reads it.
    counters: File,
}

impl Device {
    /// Finds the device with this address.
    pub(super) fn with_address(
        host: &Namespace,
        address: Ipv4Addr,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut command = host.command("ip");
        command.args(["-json", "address", "show"]);
        let said = process::run(&mut command, Duration::from_secs(5), interrupt)?;
        let name = name_of(&said, address).with_context(|| format!("no device has {address}"))?;
        // `/proc/self` would be the process's main thread, which is not in the namespace.
        let counters = join(
            host.enter(|| File::open("/proc/thread-self/net/dev").context("cannot open the counters"))?,
        )?;
        Ok(Self { name, counters })
    }

    /// Returns the bytes that the device has received.
    pub(super) fn received(&self) -> anyhow::Result<u64> {
        let (mut text, mut file) = (String::new(), &self.counters);
        // procfs makes a new text whenever the file is read from its start.
        file.rewind().and_then(|()| file.read_to_string(&mut text)).context("cannot read the counters")?;
        received(&text, &self.name).with_context(|| format!("the device {} is gone", self.name))
    }
}

/// Returns the name of the device with an address from the output of `ip -json address`.
fn name_of(json: &str, address: Ipv4Addr) -> Option<String> {
    let devices: Vec<Value> = serde_json::from_str(json).ok()?;
    let has = |device: &&Value| {
        let addresses = device.get("addr_info").and_then(Value::as_array).into_iter().flatten();
        let mut locals = addresses.filter_map(|one| one.get("local").and_then(Value::as_str));
        locals.any(|local| local == address.to_string())
    };
    Some(devices.iter().find(has)?.get("ifname")?.as_str()?.to_owned())
}

/// Returns the first counter of a device, its received bytes, from /proc/net/dev.
fn received(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{name}:")))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_the_one_that_has_the_address() {
        let json = r#"[{"ifname":"lo","addr_info":[{"local":"127.0.0.1"}]},{},
            {"ifname":"warren0","addr_info":[{"local":"fe80::1"},{"local":"10.98.0.2"}]}]"#;
        assert_eq!(name_of(json, Ipv4Addr::new(10, 98, 0, 2)).as_deref(), Some("warren0"));
        assert_eq!(name_of(json, Ipv4Addr::new(10, 98, 0, 3)), None);
        assert_eq!(name_of("", Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn bytes_are_those_of_the_device_and_not_of_one_with_a_longer_name() {
        let text = "Inter-| Receive\n face |bytes\n    lo: 5 1 0\nwt12c: 700 3\n wt1: 42 1 0\n";
        assert_eq!(received(text, "wt1"), Some(42));
        assert_eq!(received(text, "wt"), None);
    }
}
