//! How to undo a step. The description is complete, so that another process can undo the step if the process that made it was
//! killed.

use std::{fmt, io};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    DeviceName, Route, Rule, Step, TableFamily,
    netlink::{LinkChange, Netlink},
    nft,
    step::StepError,
    sysctl::{self, Companion},
};

/// How to undo one step. Devices are identified by their index, so that a later device with the same name is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Undo {
    Address {
        device: DeviceName,
        index: u32,
        address: IpNet,
    },
    Link {
        device: DeviceName,
        index: u32,
        was_up: bool,
        mtu: u32,
        address_generation: Option<u8>,
        // The field is optional, because the journal of an earlier version lacks it. Such a journal is read if a daemon was
        // killed before an update.
        #[serde(default)]
        group: Option<u32>,
    },
    Route {
        route: Route,
        index: Option<u32>,
    },
    Rule(Rule),
    Sysctl {
        key: String,
        /// The index of the device to which the setting belongs, if any. A renamed device keeps its settings, so its name is not
        /// enough.
        #[serde(default)]
        index: Option<u32>,
        set: String,
        previous: String,
        companions: Vec<Companion>,
    },
    Nftables {
        #[serde(default)]
        family: TableFamily,
        table: String,
    },
}

impl Undo {
    /// Undoes the step. An object that is gone or that somebody else has changed is left as it is.
    ///
    /// `owner` is the process that owns the step's table, if it is this process's child.
    pub(crate) async fn run(&self, netlink: &Netlink, owner: Option<nft::Owner>) -> Result<(), StepError> {
        match self {
            Self::Address { index, address, .. } => gone(netlink.delete_address(*index, *address).await)?,
            Self::Link { index, was_up, mtu, address_generation, group, .. } => {
                let up = (!was_up).then_some(false);
                let down = LinkChange { up, mtu: Some(*mtu), group: *group, address_generation: None };
                gone(netlink.set_link(*index, down).await)?;
                if address_generation.is_some() {
                    let change =
                        LinkChange { address_generation: *address_generation, ..LinkChange::default() };
                    gone(netlink.set_link(*index, change).await)?;
                }
            }
            Self::Route { route, index } => gone(netlink.delete_route(route, *index).await)?,
            Self::Rule(rule) => gone(netlink.delete_rule(rule).await)?,
            Self::Sysctl { key, index, set, previous, companions } => {
                if let Some(key) = key_now(key, *index, netlink).await? {
                    restore(&key, set, previous, companions)?;
                }
            }
            Self::Nftables { family, table } => {
                let is_deleted = match owner {
                    Some(owner) => owner.end_without(*family, table).await,
                    None => false,
                };
                // If there is no owner, or the owner could not delete the table, another nft process deletes it.
                if !is_deleted {
                    nft::delete(*family, table).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns the undo of a setting whose companions were put back right after the write. `None` for other settings.
    pub(crate) fn with_companions_put_back(&self, step: &Step) -> Option<Self> {
        let Self::Sysctl { key, index, set, previous, companions } = self else { return None };
        let put_back =
            |companion: &Companion| Companion { set: companion.previous.clone(), ..companion.clone() };
        (*step == Step::ForwardIpv6).then(|| Self::Sysctl {
            key: key.clone(),
            index: *index,
            set: set.clone(),
            previous: previous.clone(),
            companions: companions.iter().map(put_back).collect(),
        })
    }

    /// Returns the companions of the setting `wanted`, if this is its undo. A device's setting is identified by the device's
    /// index, because the device may have been renamed.
    pub(crate) fn companions_of(&self, wanted: &str, device: Option<u32>) -> Option<&[Companion]> {
        let is_it = |key: &str, index: Option<u32>| match (index, device) {
            (Some(index), Some(device)) => index == device && sysctl::is_same_of_devices(key, wanted),
            _ => key == wanted,
        };
        match self {
            Self::Sysctl { key, index, companions, .. } if is_it(key, *index) => Some(companions),
            Self::Sysctl { .. }
            | Self::Address { .. }
            | Self::Link { .. }
            | Self::Route { .. }
            | Self::Rule(_)
            | Self::Nftables { .. } => None,
        }
    }

    /// The change, in a few words.
    pub(crate) fn change(&self) -> String {
        match self {
            Self::Sysctl { key, set, previous, .. } => format!("sysctl {key} = {set}, was {previous}"),
            // The family is added, because rules of both IP versions print the same.
            Self::Rule(rule) => format!("{} rule {rule}", rule.family),
            Self::Address { .. } | Self::Link { .. } | Self::Route { .. } | Self::Nftables { .. } => {
                self.to_string()
            }
        }
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { device, address, .. } => write!(f, "address {address} on {device}"),
            Self::Link { device, .. } => write!(f, "link {device}"),
            Self::Route { route, .. } => write!(f, "route {route}"),
            Self::Rule(rule) => write!(f, "rule {rule}"),
            Self::Sysctl { key, .. } => write!(f, "sysctl {key}"),
            Self::Nftables { family, table } => write!(f, "nftables table {family} {table}"),
        }
    }
}

/// Returns the current name of a setting. `None` if its device is gone.
async fn key_now(key: &str, device: Option<u32>, netlink: &Netlink) -> io::Result<Option<String>> {
    let Some(index) = device else { return Ok(Some(key.to_owned())) };
    Ok(netlink.name(index).await?.map(|name| sysctl::of_device(key, &name)))
}

/// Puts back a setting that still has Warren's value, and the settings that the kernel changed along with it. Forwarding stays on
/// if somebody else has turned it on since.
fn restore(key: &str, set: &str, previous: &str, companions: &[Companion]) -> io::Result<()> {
    if sysctl::read(key)?.as_deref() != Some(set) || sysctl::is_on_by_others(companions)? {
        return Ok(());
    }
    // The companions are read before the write, because the kernel changes them along with the setting.
    let before: Vec<Option<String>> =
        companions.iter().map(|companion| sysctl::read(&companion.key)).collect::<io::Result<_>>()?;
    sysctl::write_if_there(key, previous)?;
    for (companion, before) in companions.iter().zip(before) {
        let Some(before) = before else { continue };
        // If somebody else has changed a companion since, it keeps its current value.
        let wanted = if before == companion.set { &companion.previous } else { &before };
        if sysctl::read(&companion.key)?.is_some_and(|now| now != *wanted) {
            sysctl::write_if_there(&companion.key, wanted)?;
        }
    }
    Ok(())
}

/// Turns the error for a missing object into success, because nothing is left to undo.
fn gone(result: io::Result<()>) -> io::Result<()> {
    use rustix::io::Errno;
    // The kernel's errors for a rule, route, device or address that does not exist.
    let nothing_there = [Errno::NOENT, Errno::SRCH, Errno::NODEV, Errno::NXIO, Errno::ADDRNOTAVAIL];
    match result {
        Err(error)
            if nothing_there.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) =>
        {
            Ok(())
        }
        result => result,
    }
}
