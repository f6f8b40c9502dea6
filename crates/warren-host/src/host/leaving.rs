//! Deletes a tunnel's devices in one request. The kernel would also delete each device when its last descriptor is closed, but
//! would wait about 20 ms for other CPUs each time. In one request, the devices share a single wait.

use std::io;

use rustix::net::Protocol;

use crate::{
    netlink_request::{NLM_F_ACK, ask},
    undo::Undo,
};

/// The devices that are deleted while a plan is undone.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    indexes: Vec<u32>,
    deleting: Option<tokio::task::JoinHandle<io::Result<()>>>,
}

impl Leaving {
    pub(super) fn of(indexes: Vec<u32>) -> Self {
        Self { indexes, deleting: None }
    }

    /// Whether a change disappears with its device, so that it needs no other undo. If so, starts the deletion of the devices.
    /// Steps are undone in reverse order, so the rules that lead to the tunnel's routes are gone by now.
    pub(super) fn takes_along(&mut self, undo: &Undo) -> bool {
        let index = match undo {
            Undo::Link { index, .. } | Undo::Address { index, .. } => Some(*index),
            Undo::Route { index, .. } => *index,
            Undo::Rule(_) | Undo::Sysctl { .. } | Undo::Nftables { .. } => None,
        };
        if !index.is_some_and(|index| self.indexes.contains(&index)) {
            return false;
        }
        // The request blocks, so it gets a thread. The remaining undo steps need not wait for it.
        let indexes = &self.indexes;
        self.deleting.get_or_insert_with(|| {
            let indexes = indexes.clone();
            tokio::task::spawn_blocking(move || delete(&indexes))
        });
        true
    }

    /// Waits until the devices are deleted.
    pub(super) async fn gone(self) {
        let Some(deleting) = self.deleting else { return };
        // A failure does no harm, because closing the devices deletes them too.
        if let Ok(Err(error)) = deleting.await {
            tracing::debug!("cannot delete the devices together: {error}");
        }
    }
}

/// Deletes the devices with these indexes.
fn delete(indexes: &[u32]) -> io::Result<()> {
    let Some(first) = indexes.first() else { return Ok(()) };
    // The group is unique, because its number contains the index of a device.
    let group = LEAVING | first;
    for index in indexes {
        request(RTM_SETLINK, *index, group)?;
    }
    // With the index 0, the kernel deletes all devices of the group at once.
    request(RTM_DELLINK, 0, group)
}

/// Sends `struct ifinfomsg` with the attribute `IFLA_GROUP`.
fn request(kind: u16, index: u32, group: u32) -> io::Result<()> {
    let mut body = Vec::with_capacity(24);
    // The fields for the family, padding and the device's type are zero.
    body.extend([0; 4]);
    body.extend(index.to_ne_bytes());
    // The fields for flags and changed flags are zero.
    body.extend([0; 8]);
    // The attribute's length: four bytes of header and four of value.
    body.extend(8_u16.to_ne_bytes());
    body.extend(IFLA_GROUP.to_ne_bytes());
    body.extend(group.to_ne_bytes());
    match ask(ROUTE, kind, NLM_F_ACK, &body)?.is_done()? {
        true => Ok(()),
        false => Err(io::Error::other("the kernel refused")),
    }
}

/// NETLINK_ROUTE from linux/netlink.h is 0, which stands for the default.
const ROUTE: Option<Protocol> = None;
/// Constants of linux/rtnetlink.h and linux/if_link.h.
const RTM_DELLINK: u16 = 17;
const RTM_SETLINK: u16 = 19;
const IFLA_GROUP: u16 = 27;
/// The group numbers of devices that are being deleted begin with "Wa" in ASCII. The lower bits have room for an index.
const LEAVING: u32 = 0x5761_0000;
