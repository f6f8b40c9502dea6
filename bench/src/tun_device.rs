//! A TUN device with offload in a namespace, and its file for whoever reads and writes it without a runtime.

use std::{fs::File, os::fd::AsRawFd as _};

use anyhow::Context as _;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use warren_packet::coalesce::Merge;
use warren_tun::DeviceConfig;

use crate::namespace::{Namespace, join};

/// The device goes when every file of it is closed.
#[derive(Debug)]
pub(crate) struct TunDevice {
    pub(crate) file: File,
    /// Which super-packets it takes.
    pub(crate) takes: Merge,
}

impl TunDevice {
    /// Makes the device, gives it its addresses and brings it up.
    ///
    /// # Errors
    /// A sentence when that cannot be done; nothing is left behind.
    pub(crate) fn create(
        namespace: &Namespace,
        name: &'static str,
        mtu: u16,
        addresses: &[&str],
    ) -> anyhow::Result<Self> {
        let config = DeviceConfig { name: name.to_owned(), mtu, queues: 1, bulk_lane: false, offload: true };
        let make = move || {
            let (_, queues) = warren_tun::create(&config)?;
            let queue = queues.into_iter().next().context("the device has no queue")?;
            // A `Queue` is one thread's, and read by a runtime. Taking the descriptor out of this very process is the safe way to
            // another one.
            let process = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open this process")?;
            let file = pidfd_getfd(process, queue.as_raw_fd(), PidfdGetfdFlags::empty());
            let file = File::from(file.context("cannot duplicate the TUN device's descriptor")?);
            Ok(Self { file, takes: queue.takes() })
        };
        let device = join(namespace.enter(make)?)
            .with_context(|| format!("cannot make the device {name} in {}", namespace.name()))?;
        for address in addresses {
            namespace.ip(&format!("address add {address} dev {name}"))?;
        }
        namespace.ip(&format!("link set {name} up"))?;
        Ok(device)
    }

    /// Another handle of the same file.
    ///
    /// # Errors
    /// A sentence when there are no descriptors left.
    pub(crate) fn another(&self) -> anyhow::Result<File> {
        self.file.try_clone().context("cannot duplicate the TUN device's descriptor")
    }
}
