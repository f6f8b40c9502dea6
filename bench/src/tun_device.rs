//! A TUN device with offload in a namespace, as a file that needs no runtime.

use std::{fs::File, os::fd::AsRawFd};

use anyhow::Context as _;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use warren_packet::coalesce::Merge;
use warren_tun::DeviceConfig;

use crate::namespace::{Namespace, join};

/// A TUN device. The kernel removes it once all of its files are closed.
#[derive(Debug)]
pub(crate) struct TunDevice {
    pub(crate) file: File,
    /// Which super-packets it accepts.
    pub(crate) takes: Merge,
}

impl TunDevice {
    /// Makes the device, gives it its addresses and brings it up.
    ///
    /// Leaves nothing behind if it fails.
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
            // A `Queue` belongs to one thread and needs a runtime. A duplicate of its file needs neither.
            Ok(Self { file: duplicate(&queue)?, takes: queue.takes() })
        };
        let device = join(namespace.enter(make)?)
            .with_context(|| format!("cannot make the device {name} in {}", namespace.name()))?;
        for address in addresses {
            namespace.ip(&format!("address add {address} dev {name}"))?;
        }
        namespace.ip(&format!("link set {name} up"))?;
        Ok(device)
    }

    /// Duplicates the file.
    pub(crate) fn another(&self) -> anyhow::Result<File> {
        self.file.try_clone().context("cannot duplicate the TUN device's descriptor")
    }
}

/// Duplicates a descriptor that is known only by its number.
///
/// `pidfd_getfd` on this process needs no `unsafe`. Borrowing a raw descriptor does.
pub(crate) fn duplicate(device: &impl AsRawFd) -> anyhow::Result<File> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open this process")?;
    let file = pidfd_getfd(process, device.as_raw_fd(), PidfdGetfdFlags::empty());
    Ok(File::from(file.context("cannot duplicate the device's descriptor")?))
}
