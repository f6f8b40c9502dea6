//! The client's TUN device: made under the profile's name or the first free one, and made anew when somebody has taken it
//! away.

use warren_host::DeviceName;
use warren_tun::{DeviceConfig, Queue, TunError};

use crate::device_watch;

/// What the profile says about the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSettings {
    /// The name it must have; none if any will do.
    pub(crate) name: Option<String>,
    pub(crate) offload: bool,
    /// One for each worker.
    pub(crate) queues: usize,
}

/// A device that was made anew.
pub(crate) struct Restored {
    pub(crate) queues: Vec<Queue>,
    /// What stood in for it: to be kept until no route leads there any more.
    pub(crate) stood_in: Option<Vec<Queue>>,
}

/// The device that stands.
#[derive(Debug)]
pub(crate) struct TunDevice {
    device: warren_tun::Device,
    name: DeviceName,
    /// The queues of a device that stands in for the profile's, whose name is taken. Nobody reads them, so what is routed
    /// there goes nowhere.
    stand_in: Option<Vec<Queue>>,
    /// Whether one of its descriptors is of no use any more.
    has_failed: bool,
}

impl TunDevice {
    /// Makes the device.
    ///
    /// # Errors
    /// When the kernel refuses, or the profile's name is taken.
    pub(crate) fn make(settings: &DeviceSettings, mtu: u16) -> anyhow::Result<(Self, Vec<Queue>)> {
        let (device, queues) = create(settings, mtu)?;
        let name = DeviceName::new(device.name())?;
        Ok((Self { device, name, stand_in: None, has_failed: false }, queues))
    }

    /// Makes it anew if it was deleted, renamed or moved away, or only stands in; the new queues take the old ones' place once
    /// the routes lead there. While another device has the profile's name, one stands in that carries nothing: this keeps the routes, so
    /// that what belongs into the tunnel does not leave outside.
    ///
    /// # Errors
    /// When there is no device that carries anything, with what to do.
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
        match Self::make(settings, mtu) {
            Ok((device, queues)) => {
                tracing::warn!(
                    "somebody has deleted or renamed the TUN device {gone}; made {} anew",
                    device.name
                );
                let stood_in = std::mem::replace(self, device).stand_in;
                Ok(Some(Restored { queues, stood_in }))
            }
            Err(error) => {
                if !is_there {
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

    /// Whether it carries the tunnel's packets.
    pub(crate) fn is_in_use(&self) -> bool {
        self.stand_in.is_none() && self.is_there()
    }

    /// A descriptor of the device with this interface index is of no use any more, whether the device is there or not. One that
    /// was made anew since is not concerned.
    pub(crate) fn failed(&mut self, index: u32) {
        self.has_failed |= index == self.device.index();
    }

    fn is_there(&self) -> bool {
        !self.has_failed && device_watch::is(self.device.name(), self.device.index())
    }
}

/// The name that a device made now would have.
///
/// # Errors
/// When the kernel cannot be asked, or the profile's name cannot be used.
pub(crate) fn name_now(settings: &DeviceSettings) -> anyhow::Result<DeviceName> {
    if let Some(name) = &settings.name {
        return Ok(DeviceName::new(name)?);
    }
    for name in names() {
        if !device_watch::exists(&name)? {
            return Ok(DeviceName::new(name)?);
        }
    }
    anyhow::bail!(ALL_TAKEN)
}

fn create(settings: &DeviceSettings, mtu: u16) -> anyhow::Result<(warren_tun::Device, Vec<Queue>)> {
    let create = |name| {
        let config = DeviceConfig { name, mtu, queues: settings.queues, offload: settings.offload };
        warren_tun::create(&config)
    };
    match &settings.name {
        Some(name) => Ok(create(name.clone())?),
        None => first_free(create),
    }
}

/// Takes the first name that nobody has, also if somebody else takes some meanwhile.
fn first_free<T>(create: impl Fn(String) -> Result<T, TunError>) -> anyhow::Result<T> {
    for name in names() {
        match create(name) {
            Err(TunError::NameTaken { .. }) => {}
            created => return Ok(created?),
        }
    }
    anyhow::bail!(ALL_TAKEN)
}

fn names() -> impl Iterator<Item = String> {
    (0..=u8::MAX).map(|number| format!("warren{number}"))
}

const ALL_TAKEN: &str = "warren0 to warren255 exist already; set a `name` in [tun] of the profile";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_taken_are_passed_over() {
        let taken = ["warren0", "warren1"];
        let created = first_free(|name| {
            if taken.contains(&name.as_str()) { Err(TunError::NameTaken { name }) } else { Ok(name) }
        });
        assert_eq!(created.unwrap(), "warren2");
        assert!(first_free::<()>(|name| Err(TunError::NameTaken { name })).is_err());
        assert!(first_free::<()>(|_| Err(TunError::NoDriver)).unwrap_err().to_string().contains("modprobe"));
    }
}
