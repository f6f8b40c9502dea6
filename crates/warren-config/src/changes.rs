//! Finds the settings that differ between two versions of a file, and names them as in the file.

use super::{ClientProfile, ExitSettings, RemoteExit, Transport};

impl ClientProfile {
    /// Returns the settings whose values differ in `after`, such as `exclude in [routes]`.
    pub fn changes(&self, after: &Self) -> Vec<&'static str> {
        let names = |exit: &RemoteExit| exit.server_name.clone();
        let keys = |exit: &RemoteExit| exit.public_keys.clone();
        let of_exits = [
            ("endpoint in [[exit]]", self.endpoints().ne(after.endpoints())),
            ("public_key in [[exit]]", self.exits().map(keys).ne(after.exits().map(keys))),
            ("server_name in [[exit]]", self.exits().map(names).ne(after.exits().map(names))),
        ];
        let (routes, other) = (&self.routes, &after.routes);
        let of_host = [
            ("the private key", self.private_key.public() != after.private_key.public()),
            ("name in [tun]", self.tun.device != after.tun.device),
            ("mtu in [tun]", self.tun.mtu != after.tun.mtu),
            ("include in [routes]", (&routes.include, routes.of_exit) != (&other.include, other.of_exit)),
            ("exclude in [routes]", routes.exclude != other.exclude),
            ("lan in [routes]", routes.lan != other.lan),
            ("prefixes in [routes]", routes.prefixes != other.prefixes),
            ("when_refused in [routes]", routes.when_refused != other.when_refused),
            ("servers in [dns]", self.dns.servers != after.dns.servers),
            ("domains in [dns]", self.dns.domains != after.dns.domains),
            ("enabled in [kill_switch]", self.kill_switch.enabled != after.kill_switch.enabled),
            (
                "allow_inbound in [kill_switch]",
                self.kill_switch.allow_inbound != after.kill_switch.allow_inbound,
            ),
            (
                "allow_exec_outside in [kill_switch]",
                self.kill_switch.allow_exec_outside != after.kill_switch.allow_exec_outside,
            ),
            ("portal in [kill_switch]", self.kill_switch.portal != after.kill_switch.portal),
            ("trusted in [on_demand]", self.on_demand.trusted != after.on_demand.trusted),
            (
                "trusted_opens_kill_switch in [on_demand]",
                self.on_demand.opens_kill_switch != after.on_demand.opens_kill_switch,
            ),
            ("users in [exec]", self.exec.users != after.exec.users),
            ("down in [kill_switch]", self.kill_switch.down != after.kill_switch.down),
            ("follow in [fleet]", self.follows_fleet != after.follows_fleet),
            ("allow in [forwards]", self.allowed_forwards != after.allowed_forwards),
        ];
        let transport = self.transport.changes(&after.transport);
        named(of_host.into_iter().chain(of_exits)).chain(transport).collect()
    }

    fn endpoints(&self) -> impl Iterator<Item = &super::Endpoint> {
        self.exits().map(|exit| &exit.endpoint)
    }
}

impl ExitSettings {
    /// Returns the settings whose values differ in `after`, such as `servers in [dns]`.
    pub fn changes(&self, after: &Self) -> Vec<&'static str> {
        let (nat, metrics) = (&self.nat, &self.metrics);
        let served = |of: &Self| of.wireguard.as_ref().map(|wireguard| wireguard.listen.clone());
        let fleet_name = |of: &Self| of.fleet.as_ref().map(|fleet| fleet.name.clone());
        let staleness = |of: &Self| of.fleet.as_ref().map(|fleet| fleet.max_staleness);
        let named_as = |of: &Self| of.wireguard.as_ref().map(|wireguard| wireguard.endpoint.clone());
        let changed = [
            ("listen in [exit]", self.listen != after.listen),
            ("endpoint in [exit]", self.endpoint != after.endpoint),
            ("the private key", self.public_keys() != after.public_keys()),
            ("ipv4 in [addresses]", self.ipv4 != after.ipv4),
            ("ipv6 in [addresses]", self.ipv6 != after.ipv6),
            ("enabled in [nat]", nat.ipv4 != after.nat.ipv4),
            // `ipv6` depends on `enabled`, so a change of `enabled` is not reported as a change of `ipv6` too.
            ("ipv6 in [nat]", nat.ipv4 == after.nat.ipv4 && nat.ipv6 != after.nat.ipv6),
            ("interface in [nat]", nat.interface != after.nat.interface),
            ("file in [clients]", self.clients_file != after.clients_file),
            ("isolation in [clients]", self.isolation != after.isolation),
            ("silent in [access]", self.silent != after.silent),
            ("allow in [access]", self.allow != after.allow),
            ("servers in [dns]", self.dns != after.dns),
            ("listen in [metrics]", metrics.listen != after.metrics.listen),
            ("clients in [metrics]", metrics.clients != after.metrics.clients),
            ("listen in [web]", self.web != after.web),
            ("listen in [wireguard]", served(self) != served(after)),
            ("endpoint in [wireguard]", named_as(self) != named_as(after)),
            ("name in [fleet]", fleet_name(self) != fleet_name(after)),
            ("max_staleness in [fleet]", staleness(self) != staleness(after)),
        ];
        named(changed.into_iter()).chain(self.transport.changes(&after.transport)).collect()
    }
}

impl Transport {
    /// The settings whose values differ in `after`.
    fn changes(&self, after: &Self) -> Vec<&'static str> {
        let live = [
            (
                "max_transmit_segments in [transport]",
                self.max_transmit_segments != after.max_transmit_segments,
            ),
            (
                "max_transmit_datagrams in [transport]",
                self.max_transmit_datagrams != after.max_transmit_datagrams,
            ),
            ("receive_batches in [transport]", self.receive_batches != after.receive_batches),
            ("tun_batches in [transport]", self.tun_batches != after.tun_batches),
            ("congestion in [transport]", self.congestion != after.congestion),
        ];
        let fixed = self.fixed_changes(after);
        named(live.into_iter()).chain(fixed).collect()
    }

    /// The settings whose values differ in `after`, and that a running daemon cannot change.
    pub fn fixed_changes(&self, after: &Self) -> Vec<&'static str> {
        let changed = [
            ("connections in [transport]", self.connections != after.connections),
            ("repair in [transport]", self.repair != after.repair),
            ("driver in [transport]", self.driver != after.driver),
            ("tun_offload in [transport]", self.tun_offload != after.tun_offload),
            ("udp_gso in [transport]", self.udp_gso != after.udp_gso),
            ("udp_gro in [transport]", self.udp_gro != after.udp_gro),
            ("workers in [transport]", self.workers != after.workers),
            ("pin in [transport]", self.pin != after.pin),
        ];
        named(changed.into_iter()).collect()
    }
}

fn named(changed: impl Iterator<Item = (&'static str, bool)>) -> impl Iterator<Item = &'static str> {
    changed.filter(|(_, is_changed)| *is_changed).map(|(name, _)| name)
}
