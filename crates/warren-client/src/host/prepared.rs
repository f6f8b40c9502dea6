//! The devices of a tunnel that is about to be set up. They are made while the exit is asked for a session.
//!
//! The devices are down, have no address, and no route leads to them. So no packet enters or leaves before the plan is applied.

use warren_tun::Queue;

use crate::device::{DeviceSettings, TunDevice, Void};

/// The devices' MTU until the plan sets the session's MTU. It is the minimum MTU of IPv6 (RFC 8200 section 5).
const UNTIL_THEN: u16 = 1280;

/// Both devices. Dropping this deletes them.
pub(super) struct Prepared {
    pub(super) device: TunDevice,
    pub(super) queues: Vec<Queue>,
    pub(super) void: Void,
}

impl Prepared {
    /// Makes the devices.
    ///
    /// # Errors
    /// When the kernel refuses, or the profile's name is taken.
    pub(super) fn make(settings: &DeviceSettings, mtu: Option<u16>) -> anyhow::Result<Self> {
        let mtu = mtu.unwrap_or(UNTIL_THEN);
        let (device, queues) = TunDevice::make(settings, mtu)?;
        Ok(Self { device, queues, void: Void::make(mtu)? })
    }

    /// Whether both devices still exist as they were made.
    pub(super) fn is_there(&self) -> bool {
        self.device.is_in_use() && self.void.is_there()
    }
}
