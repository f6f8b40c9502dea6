//! What the plans have to know of the host before they can be computed.

use std::io;

use crate::{DeviceName, sysctl};

/// Devices whose IPv6 default route comes from router advertisements and would be lost once the host forwards.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn devices_taking_router_advertisements() -> io::Result<Vec<DeviceName>> {
    devices_where("ipv6", |device| {
        let takes = sysctl::read(&sysctl::device_key("ipv6", device, "accept_ra"))?;
        let forwards = sysctl::read(&sysctl::device_key("ipv6", device, "forwarding"))?;
        Ok(takes.as_deref() == Some("1") && forwards.as_deref() == Some("0"))
    })
}

/// Devices that check strictly that the way back to a packet's sender leads through them (`rp_filter` 1).
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn devices_with_strict_reverse_path() -> io::Result<Vec<DeviceName>> {
    let for_all = sysctl::read("net.ipv4.conf.all.rp_filter")?;
    if for_all.as_deref() == Some("2") {
        return Ok(Vec::new());
    }
    devices_where("ipv4", |device| {
        let own = sysctl::read(&sysctl::device_key("ipv4", device, "rp_filter"))?;
        // The kernel takes the larger of both values.
        Ok(own.as_deref() == Some("1") || (own.as_deref() == Some("0") && for_all.as_deref() == Some("1")))
    })
}

/// Whether this kernel has IPv6 at all.
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn has_ipv6() -> io::Result<bool> {
    Ok(!sysctl::devices("ipv6")?.is_empty())
}

/// Whether `device` takes IPv6 addresses: this kernel has IPv6, and it is not switched off there (`disable_ipv6`).
///
/// # Errors
/// If `/proc/sys` cannot be read.
pub fn takes_ipv6(device: &DeviceName) -> io::Result<bool> {
    let disabled = sysctl::read(&sysctl::device_key("ipv6", device, "disable_ipv6"))?;
    Ok(disabled.as_deref() == Some("0"))
}

fn devices_where(
    family: &str,
    mut holds: impl FnMut(&DeviceName) -> io::Result<bool>,
) -> io::Result<Vec<DeviceName>> {
    let mut devices = Vec::new();
    for name in sysctl::devices(family)? {
        if ["all", "default", "lo"].contains(&name.as_str()) {
            continue;
        }
        if let Ok(device) = DeviceName::new(name)
            && holds(&device)?
        {
            devices.push(device);
        }
    }
    Ok(devices)
}
