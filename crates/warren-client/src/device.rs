//! The client's TUN device, and a second device that discards the tunnel's packets while the first one is missing.
//!
//! The TUN device has the profile's name, or the first free name. It is recreated if another program has deleted, renamed or
//! moved it.

use warren_host::DeviceName;
use warren_tun::{DeviceConfig, Queue, TunError};

use warren_daemon::device_watch;

/// The profile's settings of the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSettings {
    /// The name that it must have. `None` if any name will do.
    pub name: Option<String>,
    pub offload: bool,
    /// The number of queues, one for each worker.
    pub queues: usize,
}

/// A device that was recreated.
pub(crate) struct Restored {
    pub queues: Vec<Queue>,
    /// The queues of the substitute that this device replaces. Keep them until no route leads to the substitute.
    pub stood_in: Option<Vec<Queue>>,
}

/// The TUN device to which the tunnel's routes lead.
#[derive(Debug)]
pub(crate) struct TunDevice {
    device: warren_tun::Device,
    name: DeviceName,
    /// The queues of this device, if it is a substitute because the name from the profile is taken. The queues are not read, so
    /// the kernel discards packets that are routed to the device.
    stand_in: Option<Vec<Queue>>,
    /// Whether a descriptor of the device has failed for good.
    has_failed: bool,
}

impl TunDevice {
    /// Creates the device.
    ///
    /// # Errors
    /// When the kernel refuses, or the profile's name is taken.
    pub(crate) fn make(settings: &DeviceSettings, mtu: u16) -> anyhow::Result<(Self, Vec<Queue>)> {
        let (device, queues) = create(settings, mtu)?;
        let name = DeviceName::new(device.name())?;
        Ok((Self { device, name, stand_in: None, has_failed: false }, queues))
    }

    /// Recreates the device if it was deleted, renamed or moved, or if a substitute has taken its place. The workers take the new
    /// queues once the routes lead to the new device.
    ///
    /// While another device has the profile's name, a substitute without traffic keeps the tunnel's routes in place. Without these
    /// routes, the tunnel's packets would leave outside the tunnel.
    ///
    /// # Errors
    /// When no device carries traffic. The message contains advice.
    pub(crate) fn restore(
        &mut self,
        settings: &DeviceSettings,
        mtu: u16,
    ) -> anyhow::Result<Option<Restored>> {
        let is_there = self.is_there();
        if is_there && self.stand_in.is_none() {
            return Ok(None);
        }
        let gone = settings.name.clone().unwrap_or_else(|| self.name.to_string());
        // The profile's name may be free again, so it is tried before any substitute.
        match Self::make(settings, mtu) {
            Ok((device, queues)) => {
                tracing::warn!(
                    "somebody has deleted or renamed the TUN device {gone}; created {} in its place",
                    device.name
                );
                let stood_in = std::mem::replace(self, device).stand_in;
                Ok(Some(Restored { queues, stood_in }))
            }
            Err(error) => {
                if !is_there {
                    // The name from the profile may be taken, so the substitute takes any free name.
                    let any = DeviceSettings { name: None, ..settings.clone() };
                    let (device, queues) = Self::make(&any, mtu)?;
                    *self = Self { stand_in: Some(queues), ..device };
                }
                let sentence = format!(
                    "somebody has deleted or renamed the TUN device {gone}, so nothing goes through the tunnel"
                );
                Err(error.context(sentence))
            }
        }
    }

    /// The device's name now.
    pub(crate) fn name(&self) -> &DeviceName {
        &self.name
    }

    /// The device's index.
    pub(crate) fn index(&self) -> u32 {
        self.device.index()
    }

    /// Whether the device exists and carries the tunnel's packets.
    pub(crate) fn is_in_use(&self) -> bool {
        self.stand_in.is_none() && self.is_there()
    }

    /// Records that a descriptor of the device with this interface index has failed for good. A device that was recreated since has
    /// another index and is not affected.
    pub(crate) fn failed(&mut self, index: u32) {
        self.has_failed |= index == self.device.index();
    }

    pub(crate) fn is_there(&self) -> bool {
        // A device whose descriptor has failed is of no use, even if it still exists.
        !self.has_failed && device_watch::is(self.device.name(), self.device.index())
    }
}

/// A device whose queues are never read. Packets that are routed to it fill a queue, and the kernel drops all further packets.
/// The kernel deletes the device when this process ends, even after SIGKILL.
#[derive(Debug)]
pub(crate) struct Void {
    device: warren_tun::Device,
    name: DeviceName,
    // The queues are held open, because the kernel deletes a TUN device with its last descriptor.
    _queues: Vec<Queue>,
}

impl Void {
    /// Creates the device under the first free name.
    ///
    /// # Errors
    /// When the kernel refuses, or every name is taken.
    pub(crate) fn make(mtu: u16) -> anyhow::Result<Self> {
        // The queue is never read. Without offload, it fills with single packets, which take less memory than super-packets.
        let create = |name| {
            warren_tun::create(&DeviceConfig { name, mtu, queues: 1, bulk_lane: false, offload: false })
        };
        let (device, queues) = first_free(VOID, create)?;
        let name = DeviceName::new(device.name())?;
        Ok(Self { device, name, _queues: queues })
    }

    /// Recreates the device if it was deleted, renamed or moved.
    ///
    /// # Errors
    /// When the kernel refuses, or every name is taken.
    pub(crate) fn restore(&mut self, mtu: u16) -> anyhow::Result<()> {
        if !self.is_there() {
            *self = Self::make(mtu)?;
        }
        Ok(())
    }

    /// The device's name now.
    pub(crate) fn name(&self) -> &DeviceName {
        &self.name
    }

    /// The device's index.
    pub(crate) fn index(&self) -> u32 {
        self.device.index()
    }

    pub(crate) fn is_there(&self) -> bool {
        device_watch::is(self.device.name(), self.device.index())
    }
}

/// The name that [`Void::make`] would choose now.
///
/// # Errors
/// When the kernel cannot be asked, or every name is taken.
pub(crate) fn void_name_now() -> anyhow::Result<DeviceName> {
    first_free_now(VOID)
}

/// The name that a device created now would have.
///
/// # Errors
/// When the kernel cannot be asked, or the profile's name cannot be used.
pub(crate) fn name_now(settings: &DeviceSettings) -> anyhow::Result<DeviceName> {
    if let Some(name) = &settings.name {
        return Ok(DeviceName::new(name)?);
    }
    first_free_now(USUAL)
}

fn first_free_now(stem: &str) -> anyhow::Result<DeviceName> {
    for name in names(stem) {
        if !device_watch::exists(&name)? {
            return Ok(DeviceName::new(name)?);
        }
    }
    Err(all_taken(stem))
}

fn create(settings: &DeviceSettings, mtu: u16) -> anyhow::Result<(warren_tun::Device, Vec<Queue>)> {
    let create = |name| {
        let config =
            DeviceConfig { name, mtu, queues: settings.queues, bulk_lane: true, offload: settings.offload };
        warren_tun::create(&config)
    };
    match &settings.name {
        Some(name) => Ok(create(name.clone())?),
        None => first_free(USUAL, create),
    }
}

/// Creates a device under the first free name. Other programs may take names at the same time.
fn first_free<T>(stem: &str, create: impl Fn(String) -> Result<T, TunError>) -> anyhow::Result<T> {
    for name in names(stem) {
        match create(name) {
            Err(TunError::NameTaken { .. }) => {}
            created => return Ok(created?),
        }
    }
    Err(all_taken(stem))
}

fn names(stem: &str) -> impl Iterator<Item = String> {
    (0..=u8::MAX).map(move |number| format!("{stem}{number}"))
}

fn all_taken(stem: &str) -> anyhow::Error {
    let advice = if stem == USUAL { ", or set a `name` in [tun] of the profile" } else { "" };
    anyhow::anyhow!(
        "the network devices {stem}0 to {stem}255 exist already; delete one that nobody uses{advice}"
    )
}

// A device name consists of one of these words and a number.
const USUAL: &str = "warren";
const VOID: &str = "warren-void";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_names_are_skipped() {
        let taken = ["warren0", "warren1"];
        let created = first_free(USUAL, |name| {
            if taken.contains(&name.as_str()) { Err(TunError::NameTaken { name }) } else { Ok(name) }
        });
        assert_eq!(created.unwrap(), "warren2");
        assert!(first_free::<()>(USUAL, |name| Err(TunError::NameTaken { name })).is_err());
        let refused = first_free::<()>(VOID, |_| Err(TunError::NoDriver)).unwrap_err();
        assert!(refused.to_string().contains("modprobe"));
    }
}
