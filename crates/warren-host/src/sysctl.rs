//! Kernel settings: their names, their files below `/proc/sys`, and their companions, which the kernel changes along with them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::DeviceName;

/// The setting `name` of `device` for an IP version (`ipv4` or `ipv6`), as sysctl(8) writes it.
pub(crate) fn device_key(family: &str, device: &DeviceName, name: &str) -> String {
    // A VLAN's device may have a dot in its name, such as `eth0.5`, which is written as a slash.
    format!("net.{family}.conf.{}.{name}", device.as_str().replace('.', "/"))
}

/// The device of a setting that belongs to one device.
pub(crate) fn device_of(key: &str) -> Option<DeviceName> {
    let parts: Vec<&str> = key.split('.').collect();
    let ["net", _, "conf", device, _] = parts.as_slice() else { return None };
    let is_one = !["all", "default"].contains(device);
    DeviceName::new(device.replace('/', ".")).ok().filter(|_| is_one)
}

/// Returns the name of the same setting for another device.
pub(crate) fn of_device(key: &str, device: &DeviceName) -> String {
    match key.split('.').collect::<Vec<_>>().as_slice() {
        ["net", family, "conf", _, name] => device_key(family, device, name),
        _ => key.to_owned(),
    }
}

/// Whether both are the same setting, of the same or of different devices.
pub(crate) fn is_same_of_devices(key: &str, other: &str) -> bool {
    device_of(other).is_some_and(|device| of_device(key, &device) == other)
}

/// Reads a setting. `None` if this kernel or device does not have it.
pub(crate) fn read(key: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(path(key)?) {
        Ok(value) => Ok(Some(value.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a setting.
pub(crate) fn write(key: &str, value: &str) -> io::Result<()> {
    fs::write(path(key)?, value)
}

/// Writes a setting, unless it has vanished with its device.
pub(crate) fn write_if_there(key: &str, value: &str) -> io::Result<()> {
    match write(key, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

/// Whether `key` is a setting of a device that does not exist.
pub(crate) fn is_of_missing_device(key: &str) -> bool {
    let parts: Vec<&str> = key.split('.').collect();
    let ["net", family, "conf", device, _] = parts.as_slice() else { return false };
    devices(family).is_ok_and(|devices| !devices.contains(&device.replace('/', ".")))
}

/// A setting that the kernel changes by itself when another is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Companion {
    /// The setting's name.
    pub(crate) key: String,
    /// The setting's value before the write.
    pub(crate) previous: String,
    /// The value that the write gives it.
    pub(crate) set: String,
}

/// The settings that writing `value` to `key` changes, with their current values.
///
/// The kernel copies forwarding for all devices to each device. For IPv4, forwarding also decides whether the host
/// accepts redirects (`inet_forward_change` and `addrconf_fixup_forwarding` in the kernel).
pub(crate) fn companions(key: &str, value: &str) -> io::Result<Vec<Companion>> {
    if is_ipv4_forwarding_of_a_device(key) {
        // `ip_forward` is recorded as a companion although it does not change. By its value, Warren can later tell whether
        // somebody has turned forwarding on for the whole host.
        return kept(IPV4_FORWARDING);
    }
    let family = match key {
        IPV4_FORWARDING => "ipv4",
        IPV6_FORWARDING => "ipv6",
        _ => return Ok(Vec::new()),
    };
    let mut companions = Vec::new();
    let mut add = |key: String, set: &str| -> io::Result<()> {
        if let Some(previous) = read(&key)? {
            companions.push(Companion { key, previous, set: set.to_owned() });
        }
        Ok(())
    };
    if family == "ipv4" {
        // The kernel makes hosts accept redirects, and routers not.
        let redirects = if value == "0" { "1" } else { "0" };
        add("net.ipv4.conf.all.accept_redirects".into(), redirects)?;
    }
    for device in devices(family)? {
        // `default`, the setting for devices that are created later, is included.
        if device != "all" {
            add(format!("net.{family}.conf.{}.forwarding", device.replace('.', "/")), value)?;
        }
    }
    Ok(companions)
}

/// Whether somebody else has turned forwarding on for the whole host since Warren's change. In that case, companions that Warren
/// left off are now on.
pub(crate) fn is_on_by_others(companions: &[Companion]) -> io::Result<bool> {
    // Only companions that Warren left off are checked, because only these can show that somebody else turned forwarding on.
    for companion in companions.iter().filter(|companion| companion.set == "0") {
        if [IPV4_FORWARDING, IPV6_FORWARDING_BY_DEFAULT].contains(&companion.key.as_str())
            && read(&companion.key)?.is_some_and(|value| value != "0")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A companion that keeps its value.
fn kept(key: &str) -> io::Result<Vec<Companion>> {
    let value = read(key)?;
    let companion = |value: String| Companion { key: key.to_owned(), previous: value.clone(), set: value };
    Ok(value.into_iter().map(companion).collect())
}

fn is_ipv4_forwarding_of_a_device(key: &str) -> bool {
    let device = key.strip_prefix("net.ipv4.conf.").and_then(|rest| rest.strip_suffix(".forwarding"));
    device.is_some_and(|device| !["all", "default"].contains(&device))
}

/// The names below `net.FAMILY.conf`, sorted: `all`, `default` and each device.
pub(crate) fn devices(family: &str) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(Path::new(ROOT).join("net").join(family).join("conf")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The file of a setting, which must be a network setting. In the key, dots separate the parts, and a slash stands for a dot, as
/// in sysctl(8).
///
/// Only network settings are allowed, because keys may come from a journal. If the exit runs as its own user, root may undo its
/// journal, and must not write settings for that user that CAP_NET_ADMIN would not allow.
fn path(key: &str) -> io::Result<PathBuf> {
    if !key.starts_with("net.") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{key:?} is not a network setting")));
    }
    let mut path = PathBuf::from(ROOT);
    for part in key.split('.') {
        let part = part.replace('/', ".");
        if part.is_empty() || part == "." || part == ".." {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{key:?} is not the name of a sysctl"),
            ));
        }
        path.push(part);
    }
    Ok(path)
}

/// The settings for forwarding by all devices and by later ones. For IPv6, only the setting for all devices lets
/// packets pass. A device's own setting only makes the host act as a router on that device.
const IPV4_FORWARDING: &str = "net.ipv4.ip_forward";
pub(crate) const IPV6_FORWARDING: &str = "net.ipv6.conf.all.forwarding";
const IPV6_FORWARDING_BY_DEFAULT: &str = "net.ipv6.conf.default.forwarding";

const ROOT: &str = "/proc/sys";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_in_a_device_name_survives_the_way_to_the_file() {
        let key = device_key("ipv6", &DeviceName::new("eth0.100").unwrap(), "accept_ra");

        assert_eq!(key, "net.ipv6.conf.eth0/100.accept_ra");
        assert_eq!(path(&key).unwrap(), Path::new("/proc/sys/net/ipv6/conf/eth0.100/accept_ra"));
    }

    #[test]
    fn key_cannot_leave_proc_sys() {
        for key in ["", "net..x", "net.//.x", "net./.x", "kernel.core_pattern", "net/.core_pattern"] {
            assert!(path(key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn setting_of_a_missing_device_is_told_from_one_that_the_kernel_lacks() {
        assert!(is_of_missing_device("net.ipv4.conf.nosuch0.rp_filter"));
        assert!(!is_of_missing_device("net.ipv4.conf.lo.nosuch"));
        assert!(!is_of_missing_device("net.warren.nothing"));
    }

    #[test]
    fn setting_that_does_not_exist_reads_as_none() {
        assert_eq!(read("net.warren.nothing").unwrap(), None);
    }
}
