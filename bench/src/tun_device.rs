//! A TUN device with offloads in a namespace, for blocking use without an async runtime.

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
    /// The kinds of super-packets that the kernel accepts.
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
            // A `Queue` is bound to one thread and needs an async runtime. A duplicate of its file descriptor has neither
            // restriction.
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

    /// Returns another file for the same device.
    pub(crate) fn another(&self) -> anyhow::Result<File> {
        self.file.try_clone().context("cannot duplicate the TUN device's descriptor")
    }
}

/// Duplicates the descriptor of `device`.
///
/// `pidfd_getfd` on this process needs no `unsafe`, but borrowing a raw descriptor would.
pub(crate) fn duplicate(device: &impl AsRawFd) -> anyhow::Result<File> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open this process")?;
    let file = pidfd_getfd(process, device.as_raw_fd(), PidfdGetfdFlags::empty());
    Ok(File::from(file.context("cannot duplicate the device's descriptor")?))
}
