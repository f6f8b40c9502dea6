//! Makes one step: checks the host, determines how to undo the step, and makes the change.

mod error;

use std::{
    fs::File,
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use ipnet::IpNet;

pub use self::error::StepError;
use crate::{
    DeviceName, Route, RouteKind, Step, TableFamily, facts,
    netlink::{Link, LinkChange, Netlink},
    nft::{self, NftError},
    plan::table_text,
    sysctl::{self, IPV6_FORWARDING},
    undo::Undo,
};

/// Set once the kernel or nft has refused a table of family `arp`. A later attempt would fail too.
static REFUSED_ARP: AtomicBool = AtomicBool::new(false);

/// Checks the host and returns how to undo the step. `None` if there is nothing to do.
///
/// An object that exists already is an error, unless it is Warren's own and about to be replaced.
pub(crate) async fn prepare(
    step: &Step,
    netlink: &Netlink,
    replaces: bool,
) -> Result<Option<Undo>, StepError> {
    let undo = match step {
        Step::Address { device, address } => {
            let Link { index, .. } = link(netlink, device).await?;
            refuse_if(netlink.has_address(index, *address).await?)?;
            if matches!(address, IpNet::V6(_)) && !facts::takes_ipv6(device)? {
                return Err(StepError::Ipv6Disabled(device.clone()));
            }
            Undo::Address { device: device.clone(), index, address: *address }
        }
        Step::LinkUp { device, group, .. } => {
            let Link { index, mtu, is_up, address_generation, group: before } = link(netlink, device).await?;
            // The group is restored later only if the step changes it.
            let group = group.map(|_| before);
            Undo::Link { device: device.clone(), index, was_up: is_up, mtu, address_generation, group }
        }
        Step::Route(route) if is_of_missing_guests(route, netlink).await? => return Ok(None),
        Step::Route(route) => {
            let index = route_index(route, netlink).await?;
            refuse_if(!replaces && netlink.has_route(route, index).await?)?;
            Undo::Route { route: route.clone(), index }
        }
        Step::Rule(rule) => {
            refuse_if(netlink.has_rule(rule).await?)?;
            Undo::Rule(rule.clone())
        }
        Step::Sysctl { key, value } => match sysctl::read(key)? {
            // The setting already has the value. Warren does not change it, so Warren must not put it back later.
            Some(previous) if previous == *value => return Ok(None),
            Some(previous) => {
                let companions = sysctl::companions(key, value)?;
                // The device's index is recorded, because the device may be renamed before the undo.
                let index = match sysctl::device_of(key) {
                    Some(device) => netlink.link(&device).await?.map(|link| link.index),
                    None => None,
                };
                Undo::Sysctl { key: key.clone(), index, set: value.clone(), previous, companions }
            }
            // Devices of containers come and go while a plan is computed and applied.
            None if sysctl::is_of_missing_device(key) => return Ok(None),
            None => return Err(StepError::NoSetting),
        },
        Step::ForwardIpv6 => match sysctl::read(IPV6_FORWARDING)? {
            Some(previous) if previous != "0" => return Ok(None),
            Some(previous) => {
                let companions = sysctl::companions(IPV6_FORWARDING, "1")?;
                let key = IPV6_FORWARDING.to_owned();
                Undo::Sysctl { key, index: None, set: "1".into(), previous, companions }
            }
            None => return Err(StepError::NoSetting),
        },
        // nft itself refuses an existing table, in the transaction that makes it.
        Step::Nftables { family, table, .. } => Undo::Nftables { family: *family, table: table.clone() },
    };
    Ok(Some(undo))
}

/// Makes a step. `undo` is its undo from [`prepare`]. Returns the process that owns the step's table, if there is one. `lock` is
/// passed to child processes, which hold it if they outlive a killed caller.
pub(crate) async fn make(
    step: &Step,
    undo: &Undo,
    netlink: &Netlink,
    replaces: bool,
    lock: File,
) -> Result<Option<nft::Owner>, StepError> {
    match (step, undo) {
        (Step::Address { address, .. }, Undo::Address { index, .. }) => {
            netlink.add_address(*index, *address).await?
        }
        (Step::LinkUp { mtu, group, .. }, Undo::Link { index, address_generation, .. }) => {
            // This takes two requests, because with a single one the kernel brings the link up before it sets the address
            // generation mode.
            let address_generation = address_generation.map(|_| NO_LINK_LOCAL);
            let silent =
                LinkChange { mtu: Some(u32::from(*mtu)), address_generation, group: *group, up: None };
            netlink.set_link(*index, silent).await?;
            netlink.set_link(*index, LinkChange { up: Some(true), ..LinkChange::default() }).await?;
        }
        (Step::Route(route), Undo::Route { index, .. }) if replaces => {
            netlink.replace_route(route, *index).await?
        }
        (Step::Route(route), Undo::Route { index, .. }) => netlink.add_route(route, *index).await?,
        (Step::Rule(rule), _) => netlink.add_rule(rule).await?,
        (Step::Sysctl { key, value }, _) => sysctl::write(key, value)?,
        (Step::ForwardIpv6, Undo::Sysctl { key, set, companions, .. }) => {
            sysctl::write(key, set)?;
            // The kernel has just copied the setting to every device, so each device's own setting is put back.
            for companion in companions {
                sysctl::write_if_there(&companion.key, &companion.previous)?;
            }
        }
        (Step::Nftables { family, table, ruleset, owned }, _) => {
            let made = match replaces && !owned {
                true => replace_table(*family, table, ruleset, lock).await,
                false => make_table(*family, table, ruleset, *owned, replaces, lock).await,
            };
            return if *family == TableFamily::Arp { pass_over_if_refused(made, table) } else { made };
        }
        (Step::Address { .. } | Step::LinkUp { .. } | Step::Route(_) | Step::ForwardIpv6, _) => {
            return Err(StepError::Io(io::Error::other("the step and its undo do not belong together")));
        }
    }
    Ok(None)
}

/// Whether a failed step may have changed something nevertheless.
pub(crate) fn may_be_half_made(step: &Step) -> bool {
    match step {
        Step::LinkUp { .. } | Step::Sysctl { .. } | Step::ForwardIpv6 => true,
        // A single netlink request or nft transaction that is refused has no effect.
        Step::Address { .. } | Step::Route(_) | Step::Rule(_) | Step::Nftables { .. } => false,
    }
}

/// Whether a route leads to a guests' device that has vanished or is down. The kernel refuses such a route.
pub(crate) async fn is_of_missing_guests(route: &Route, netlink: &Netlink) -> Result<bool, StepError> {
    let Some(device) = route.device.as_ref().filter(|_| route.kind == RouteKind::Guests) else {
        return Ok(false);
    };
    Ok(!netlink.link(device).await?.is_some_and(|link| link.is_up))
}

/// The device of a route that has one.
pub(crate) async fn route_index(route: &Route, netlink: &Netlink) -> Result<Option<u32>, StepError> {
    match &route.device {
        Some(device) => Ok(Some(link(netlink, device).await?.index)),
        None => Ok(None),
    }
}

async fn link(netlink: &Netlink, device: &DeviceName) -> Result<Link, StepError> {
    netlink.link(device).await?.ok_or_else(|| StepError::NoDevice(device.clone()))
}

fn refuse_if(exists: bool) -> Result<(), StepError> {
    if exists { Err(StepError::Exists) } else { Ok(()) }
}

async fn replace_table(
    family: TableFamily,
    table: &str,
    ruleset: &str,
    lock: File,
) -> Result<Option<nft::Owner>, StepError> {
    nft::replace(family, table, &table_text(family, table, ruleset, false), lock).await?;
    Ok(None)
}

async fn make_table(
    family: TableFamily,
    table: &str,
    ruleset: &str,
    owned: bool,
    replaces: bool,
    lock: File,
) -> Result<Option<nft::Owner>, StepError> {
    if owned {
        match make_owned_table(family, table, ruleset).await {
            Ok(owner) => return Ok(Some(owner)),
            // Without nft, trying a table without an owner makes no sense, because this needs nft too.
            Err(NftError::Missing) => return Err(NftError::Missing.into()),
            // A table with this name exists, so making a table without an owner would fail too.
            Err(NftError::Refused(reason)) if reason.ends_with("File exists") && !replaces => {
                return Err(StepError::Exists);
            }
            Err(error) => tracing::debug!(%error, table, "the table cannot be owned by a process"),
        }
    }
    if replaces {
        return replace_table(family, table, ruleset, lock).await;
    }
    nft::load(&new_table(family, table, ruleset, false), lock).await?;
    if owned {
        tracing::warn!(
            table,
            "this kernel or nft cannot tie a firewall table to a process; if Warren is killed, `warren cleanup` removes it"
        );
    }
    Ok(None)
}

/// Whether this host can filter ARP. True until an attempt has failed.
pub(crate) fn filters_arp() -> bool {
    !REFUSED_ARP.load(Relaxed)
}

/// Turns the error of a host that cannot filter ARP into success.
fn pass_over_if_refused(
    made: Result<Option<nft::Owner>, StepError>,
    table: &str,
) -> Result<Option<nft::Owner>, StepError> {
    match made {
        Err(StepError::Nft(NftError::Refused(reason))) => {
            tracing::warn!(
                table,
                "this kernel or nft cannot filter ARP, so hosts of the LAN can learn the inner address: {reason}; update nftables where that matters"
            );
            REFUSED_ARP.store(true, Relaxed);
            Ok(None)
        }
        made => made,
    }
}

/// The table's text in a form that nft refuses if the table exists already.
pub(crate) fn new_table(family: TableFamily, table: &str, ruleset: &str, owned: bool) -> String {
    let owner = if owned { " {\n\tflags owner;\n}" } else { "" };
    format!("create table {family} {table}{owner}\n{}", table_text(family, table, ruleset, owned))
}

async fn make_owned_table(family: TableFamily, table: &str, ruleset: &str) -> Result<nft::Owner, NftError> {
    let mut owner = nft::Owner::start()?;
    match owner.load(&new_table(family, table, ruleset, true)).await {
        Ok(()) => Ok(owner),
        Err(error) => {
            owner.end().await;
            Err(error)
        }
    }
}

/// IN6_ADDR_GEN_MODE_NONE of `linux/if_link.h`.
const NO_LINK_LOCAL: u8 = 1;
