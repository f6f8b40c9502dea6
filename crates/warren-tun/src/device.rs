//! Creates a TUN device and its queues.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use tun_rs::{DeviceBuilder, SyncDevice};
use warren_packet::coalesce::Merge;

use crate::{Queue, TunError, file};

/// The configuration of a TUN device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceConfig {
    /// The network device's name, at most 15 characters.
    pub name: String,
    /// The device's MTU in bytes.
    pub mtu: u16,
    /// The number of queues, 1 to 128.
    pub queues: usize,
    /// Whether each queue has a second lane for bulk traffic. Each lane is a file descriptor. A device with several lanes takes
    /// 3.5 MiB of kernel memory for queueing disciplines (`mq` allocates one for each of 256 possible queues).
    pub bulk_lane: bool,
    /// Whether the kernel may deliver super-packets (TSO, USO) and partial checksums.
    pub offload: bool,
}

/// The identity of a TUN device. Its queues keep it alive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Device {
    name: String,
    index: u32,
    udp_offload: bool,
}

impl Device {
    /// Returns the network device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the network device's interface index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether the kernel delivers UDP super-packets too (USO, Linux 6.2 and later).
    pub fn udp_offload(&self) -> bool {
        self.udp_offload
    }
}

/// Creates a TUN device that is down and has no addresses, and opens its queues.
///
/// Reads and writes have a virtio-net header before the packet, with or without offload.
///
/// # Errors
///
/// A [`TunError`] that says what to do. An existing device of that name is never reused, and no device remains after an error.
pub fn create(config: &DeviceConfig) -> Result<(Device, Vec<Queue>), TunError> {
    check_name(&config.name)?;
    if config.queues == 0 || config.queues > MAX_QUEUES {
        return Err(TunError::InvalidQueues { queues: config.queues, max: MAX_QUEUES });
    }
    // tun-rs would create a missing device node, which is the administrator's task.
    if matches!(std::fs::exists(DRIVER), Ok(false)) {
        return Err(TunError::NoDriver);
    }
    // The driver silently attaches to an existing TUN device. Two daemons would then share its packets.
    if interface_index(&config.name)?.is_some() {
        return Err(TunError::NameTaken { name: config.name.clone() });
    }

    let refused = |step| move |error| TunError::from_kernel(step, &config.name, error);
    let lanes = if config.bulk_lane { 2 } else { 1 };
    let files = lanes * config.queues;
    // Opening an existing multi-queue device silently joins it. The exclusive claim closes the race with a device created since
    // the check above.
    let claim =
        (files > 1).then(|| file::claim(DRIVER, &config.name)).transpose().map_err(refused("create"))?;
    let first = DeviceBuilder::new()
        .name(&config.name)
        .mtu(config.mtu)
        .enable(false)
        // Gives each packet a virtio-net header, even if the offloads are turned off below.
        .offload(true)
        .multi_queue(files > 1)
        .build_sync()
        .map_err(refused("create"))?;
    let udp_offload = config.offload && first.udp_gso();
    let mut devices = vec![first];
    // `try_clone` opens another queue of a multi-queue device.
    for _ in 1..files {
        let next =
            devices.first().map(SyncDevice::try_clone).transpose().map_err(refused("add a queue to"))?;
        devices.extend(next);
    }
    for device in &devices {
        device.set_nonblocking(true).map_err(refused("open a queue of"))?;
        if !config.offload {
            file::disable_offload(device).map_err(refused("set the offloads of"))?;
        }
    }

    // Closes the claim's own queue, which nobody reads.
    drop(claim);
    let index = interface_index(&config.name)?
        .ok_or_else(|| TunError::from_kernel("find", &config.name, Errno::NOLINK.into()))?;
    let device = Device { name: config.name.clone(), index, udp_offload };
    let takes = Merge { tcp: config.offload, udp: udp_offload };
    let mut devices = devices.into_iter();
    let queues = std::iter::from_fn(|| {
        let prompt = devices.next()?;
        Some(Queue::new(prompt, config.bulk_lane.then(|| devices.next()).flatten(), takes, index))
    });
    Ok((device, queues.collect()))
}

/// The driver's device node.
const DRIVER: &str = "/dev/net/tun";

/// Half of `MAX_TAP_QUEUES` (256) of drivers/net/tun.c, because a queue may have two lanes.
const MAX_QUEUES: usize = 128;

/// `IFNAMSIZ` of linux/if.h without the terminating zero.
const MAX_NAME_BYTES: usize = 15;

/// Refuses names that the kernel refuses, and names that it would treat as a pattern (`tun%d`).
fn check_name(name: &str) -> Result<(), TunError> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-');
    let valid = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.chars().all(allowed)
        && name != "."
        && name != "..";
    if valid { Ok(()) } else { Err(TunError::InvalidName { name: name.to_owned() }) }
}

/// Looks up the interface index of a network device. `None` if there is no device of that name.
fn interface_index(name: &str) -> Result<Option<u32>, TunError> {
    let look_up = || {
        // The kernel answers on a socket of any family. AF_UNIX is not available in the daemon's sandbox.
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        netdevice::name_to_index(&socket, name)
    };
    match look_up() {
        Ok(index) => Ok(Some(index)),
        Err(Errno::NODEV) => Ok(None),
        Err(error) => Err(TunError::from_kernel("look up", name, error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_refuse_or_fill_in_are_refused_first() {
        for name in ["warren0", "a", "wt-1.2_x", "fifteen-letters"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "sixteen-letters-", "tun%d", "a/b", "a b", ".", "..", "tün0"] {
            assert!(matches!(check_name(name), Err(TunError::InvalidName { .. })), "{name}");
        }
    }

    #[test]
    fn a_device_has_at_least_one_queue() {
        let config =
            DeviceConfig { name: "warren0".into(), mtu: 1380, queues: 0, bulk_lane: true, offload: true };

        assert!(matches!(create(&config), Err(TunError::InvalidQueues { queues: 0, .. })));
    }
}
