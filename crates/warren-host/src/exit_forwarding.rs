//! Finds out whether an exit's host forwards packets only for the exit's clients, or also for others because somebody else turned
//! forwarding on.
//!
//! The kernel forwards an IPv4 packet if the device on which it arrives has `forwarding` set. The exit sets it only for the
//! devices that it needs, and `net.ipv4.ip_forward` stays as it was. So if a person or a program (Docker, libvirt) turns
//! `net.ipv4.ip_forward` on, the exit can detect this.
//!
//! IPv6 has one setting for all devices (`all.forwarding`). A write to `all.forwarding` also sets each device's own setting and
//! the default for later devices. The exit turns `all.forwarding` on and restores the other settings. If somebody else turns
//! `all.forwarding` on later, the other settings change again, so the exit can detect this too.

use std::{collections::BTreeMap, io};

use crate::{
    DeviceName,
    sysctl::{self, Companion, IPV6_FORWARDING},
};

/// The devices that forward on an exit's host, other than its TUN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// Devices that do not forward IPv4 yet.
    pub ipv4_off: Vec<DeviceName>,
    /// Devices that forward IPv4 because the exit turned that on.
    pub ipv4_own: Vec<DeviceName>,
    /// Devices that forward IPv6 for somebody else. `None` means all devices.
    pub ipv6_others: Option<Vec<DeviceName>>,
}

impl Forwarding {
    /// Asks the kernel which devices forward. For a setting that the exit has changed, `changed` returns the companions: the
    /// other settings that the kernel changed along with it. Its arguments are the setting's key and its device's index.
    ///
    /// A bridge of containers or virtual machines that is newer than the exit's change counts as a device that forwards IPv6 for
    /// the containers. The program that made the bridge may rely on forwarding without having turned it on, because it was on
    /// already. `indexes` contains the index of each device.
    pub(crate) fn look<'a>(
        tun: &DeviceName,
        changed: impl Fn(&str, Option<u32>) -> Option<&'a [Companion]>,
        bridges: &[String],
        indexes: &BTreeMap<DeviceName, u32>,
    ) -> io::Result<Self> {
        let mut forwarding = Self {
            ipv6_others: ipv6_others(tun, changed(IPV6_FORWARDING, None), bridges)?,
            ..Self::default()
        };
        for device in devices("ipv4", tun)? {
            let key = sysctl::device_key("ipv4", &device, "forwarding");
            let index = indexes.get(&device).copied();
            match sysctl::read(&key)?.as_deref() {
                Some("0") => forwarding.ipv4_off.push(device),
                Some(_) if is_own(changed(&key, index))? => forwarding.ipv4_own.push(device),
                // The device is in none of the lists, because it forwards for others too, or has vanished.
                Some(_) | None => {}
            }
        }
        Ok(forwarding)
    }
}

/// Whether the exit turned a device's forwarding on, and nobody else has turned forwarding on for the whole host since.
fn is_own(companions: Option<&[Companion]>) -> io::Result<bool> {
    companions.map_or(Ok(false), |companions| Ok(!sysctl::is_on_by_others(companions)?))
}

fn ipv6_others(
    tun: &DeviceName,
    companions: Option<&[Companion]>,
    bridges: &[String],
) -> io::Result<Option<Vec<DeviceName>>> {
    // The exit has not changed the setting for all devices, so it is on for all devices or for none.
    let Some(companions) = companions else {
        let is_on = sysctl::read(IPV6_FORWARDING)?.is_some_and(|value| value != "0");
        return Ok((!is_on).then(Vec::new));
    };
    if sysctl::is_on_by_others(companions)? {
        return Ok(None);
    }
    let mut others = Vec::new();
    for device in devices("ipv6", tun)? {
        let key = sysctl::device_key("ipv6", &device, "forwarding");
        let before = companions.iter().find(|companion| companion.key == key);
        let is_on = sysctl::read(&key)?.is_some_and(|value| value != "0");
        // A device for which no earlier value is recorded is newer than the exit's change.
        let was_off = before.is_none_or(|before| before.previous == "0");
        let is_later_bridge = before.is_none() && bridges.iter().any(|bridge| bridge == device.as_str());
        if (is_on && was_off) || is_later_bridge {
            others.push(device);
        }
    }
    Ok(Some(others))
}

/// The devices with settings of an IP version, in order, without the loopback device and the exit's own.
fn devices(family: &str, tun: &DeviceName) -> io::Result<Vec<DeviceName>> {
    let names = sysctl::devices(family)?.into_iter();
    let devices = names.filter(|name| !["all", "default", "lo", tun.as_str()].contains(&name.as_str()));
    Ok(devices.filter_map(|name| DeviceName::new(name).ok()).collect())
}
