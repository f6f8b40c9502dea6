//! The client's TUN device: made under the profile's name or the first free one, and made anew when somebody has taken it
//! away.

use anyhow::Context as _;
use warren_host::DeviceName;
use warren_tun::{DeviceConfig, Queue, TunError};

use crate::device_watch;

/// What the profile says about the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSettings {
    /// The name it must have; none if any will do.
    pub(crate) name: Option<String>,
    pub(crate) offload: bool,
}

/// A device that was made anew.
pub(crate) struct Restored {
    pub(crate) queue: Queue,
    /// What stood in for it: to be kept until no route leads there any more.
    pub(crate) stood_in: Option<Queue>,
}

/// The device that stands.
#[derive(Debug)]
pub(crate) struct TunDevice {
    device: warren_tun::Device,
    name: DeviceName,
    /// The queue of a device that stands in for the profile's, whose name is taken. Nobody reads it, so what is routed
    /// there goes nowhere.
    stand_in: Option<Queue>,
    /// Whether its descriptor is of no use any more.
    has_failed: bool,
}

impl TunDevice {
    /// Makes the device.
    ///
    /// # Errors
    /// When the kernel refuses, or the profile's name is taken.
    pub(crate) fn make(settings: &DeviceSettings, mtu: u16) -> anyhow::Result<(Self, Queue)> {
        let (device, queue) = create(settings, mtu)?;
        let name = DeviceName::new(device.name())?;
        Ok((Self { device, name, stand_in: None, has_failed: false }, queue))
    }

    /// Makes it anew if it was deleted, renamed or moved away, or only stands in; the new queue takes the old one's place once
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
            Ok((device, queue)) => {
                tracing::warn!(
                    "somebody has deleted or renamed the TUN device {gone}; made {} anew",
                    device.name
                );
                let stood_in = std::mem::replace(self, device).stand_in;
                Ok(Some(Restored { queue, stood_in }))
            }
            Err(error) => {
                if !is_there {
                    let any = DeviceSettings { name: None, ..settings.clone() };
                    let (device, queue) = Self::make(&any, mtu)?;
                    *self = Self { stand_in: Some(queue), ..device };
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

    /// Its descriptor is of no use any more, whether it is there or not.
    pub(crate) fn failed(&mut self) {
        self.has_failed = true;
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

fn create(settings: &DeviceSettings, mtu: u16) -> anyhow::Result<(warren_tun::Device, Queue)> {
    let create = |name| {
        let config = DeviceConfig { name, mtu, queues: 1, offload: settings.offload };
        warren_tun::create(&config)
    };
    let (device, queues) = match &settings.name {
        Some(name) => create(name.clone())?,
        None => first_free(create)?,
    };
    Ok((device, queues.into_iter().next().context("the TUN device has no queue")?))
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
