//! The facts on which the nftables table for `warren exec` depends, and the marks that the table sets.

use std::net::IpAddr;

/// The facts on which the nftables table for `warren exec` depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRules {
    /// The path, in nft's syntax, of the cgroup of programs inside.
    pub inside: String,
    /// The path, in nft's syntax, of the cgroup of programs outside.
    pub outside: String,
    /// The tunnel's slot. `None` while there is no tunnel.
    pub slot: Option<u8>,
    /// The index of the TUN device, the only device through which a program in the inside group may send. `None` while there is
    /// no device.
    pub device: Option<u32>,
    /// The resolvers of programs inside. The first of each IP version is used.
    pub resolvers: Vec<IpAddr>,
    /// The resolvers of programs outside. `None` if no program may be outside.
    pub outside_resolvers: Option<Vec<IpAddr>>,
}

/// The firewall marks of packets of programs inside and outside a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The mark of packets that must go through the tunnel.
    pub inside: u32,
    /// The mark of packets that must not go through the tunnel.
    pub outside: u32,
}

impl Marks {
    /// The marks of the tunnel in `slot`. The slot is in the highest byte, which other programs do not use.
    pub fn of(slot: u8) -> Self {
        let slot = u32::from(slot) << 24;
        Self { inside: slot | 0x5762, outside: slot | 0x5763 }
    }

    /// Marks for which no routing rule exists.
    const NOWHERE: Self = Self { inside: 0x5764, outside: 0x5765 };
}

impl ExecRules {
    /// The rules while there is no tunnel. A program in the inside group then cannot send anything.
    pub fn cut_off(inside: String, outside: String) -> Self {
        Self { inside, outside, slot: None, device: None, resolvers: Vec::new(), outside_resolvers: None }
    }

    pub(super) fn marks(&self) -> Marks {
        self.slot.map_or(Marks::NOWHERE, Marks::of)
    }
}
