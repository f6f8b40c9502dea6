//! Grants without a leased address, which block the tunnel's traffic until an exit grants a lease.

use std::net::Ipv4Addr;
use std::time::Duration;

use warren_session::AttachToken;
use warren_session::client::SessionGrant;

/// The device's MTU until an exit grants one. Warren's exits grant the same value (`INNER_MTU`).
const MTU: u16 = 1380;

/// Returns a Welcome that grants only an IPv4 address that no host uses (RFC 7600). With this address, the plan routes the
/// tunnel's networks to its device instead of making them unreachable.
pub(super) fn nothing_granted_yet() -> SessionGrant {
    SessionGrant { ipv4: Some((Ipv4Addr::new(192, 0, 0, 8), 32)), ..nothing_granted() }
}

/// A Welcome that grants no addresses. For such a tunnel, the plan has routes of type `unreachable`.
pub(super) fn nothing_granted() -> SessionGrant {
    SessionGrant {
        session: 0,
        attach_token: AttachToken::new([0; AttachToken::LENGTH]),
        ipv4: None,
        ipv6: None,
        gateway_ipv4: None,
        gateway_ipv6: None,
        mtu: MTU,
        dns: Vec::new(),
        routes: Vec::new(),
        exit_keys: Vec::new(),
        connections: 0,
        keep_alive: Duration::ZERO,
        features: 0,
        prefixes: Vec::new(),
    }
}
