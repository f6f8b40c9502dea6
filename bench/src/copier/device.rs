//! One end: a TUN device with offload in a namespace, and its file for both directions' threads.

use std::{fs::File, os::fd::AsRawFd as _};

use anyhow::Context as _;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use warren_tun::DeviceConfig;

use super::DEVICE;
use crate::namespace::{Namespace, join};

/// The device goes when every file of it is closed.
#[derive(Debug)]
pub(super) struct End {
    file: File,
}

impl End {
    /// Makes the device, gives it its addresses and brings it up.
    pub(super) fn create(namespace: &Namespace, mtu: u16, addresses: &[&str]) -> anyhow::Result<Self> {
        let config = DeviceConfig { name: DEVICE.to_owned(), mtu, queues: 1, offload: true };
        let make = move || {
            let (_, queues) = warren_tun::create(&config)?;
            let queue = queues.into_iter().next().context("the device has no queue")?;
            // One direction's thread reads the file that the other's writes, which a `Queue` keeps to itself. Taking the
            // descriptor out of this very process is the safe way to a second one.
            let process = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open this process")?;
            let file = pidfd_getfd(process, queue.as_raw_fd(), PidfdGetfdFlags::empty());
            Ok(File::from(file.context("cannot duplicate the TUN device's descriptor")?))
        };
        let file = join(namespace.enter(make)?)
            .with_context(|| format!("cannot make the copier's device in {}", namespace.name()))?;
        for address in addresses {
            namespace.ip(&format!("address add {address} dev {DEVICE}"))?;
        }
        namespace.ip(&format!("link set {DEVICE} up"))?;
        Ok(Self { file })
    }

    /// Another handle of the same file.
    pub(super) fn file(&self) -> anyhow::Result<File> {
        self.file.try_clone().context("cannot duplicate the TUN device's descriptor")
    }
}
