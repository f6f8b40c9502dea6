//! The TUN device of a side.

use std::{fs::File, os::fd::AsRawFd as _};

use anyhow::Context as _;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use warren_packet::coalesce::Merge;
use warren_tun::DeviceConfig;

use crate::namespace::{Namespace, join};

const NAME: &str = "wt-bare0";

/// A device's file, and which super-packets it takes.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) file: File,
    pub(super) takes: Merge,
}

/// Makes the device, which goes when its file is closed, gives it its address and brings it up.
pub(super) fn create(namespace: &Namespace, mtu: u16, address: &str) -> anyhow::Result<Device> {
    let config = DeviceConfig { name: NAME.to_owned(), mtu, queues: 1, offload: true };
    let make = move || {
        let (_, queues) = warren_tun::create(&config)?;
        let queue = queues.into_iter().next().context("the device has no queue")?;
        // A `Queue` is read by a runtime, which there is none of here. Taking the descriptor out of this very process is the
        // safe way to another one.
        let process = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open this process")?;
        let file = pidfd_getfd(process, queue.as_raw_fd(), PidfdGetfdFlags::empty());
        let file = File::from(file.context("cannot duplicate the TUN device's descriptor")?);
        Ok(Device { file, takes: queue.takes() })
    };
    let device = join(namespace.enter(make)?)
        .with_context(|| format!("cannot make the bare tunnel's device in {}", namespace.name()))?;
    namespace.ip(&format!("address add {address} dev {NAME}"))?;
    namespace.ip(&format!("link set {NAME} up"))?;
    Ok(device)
}
