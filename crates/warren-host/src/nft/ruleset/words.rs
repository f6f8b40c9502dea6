//! The words of Warren's rulesets.

/// What names of devices may follow.
pub(super) const DEVICE_WORDS: [&str; 4] = ["iif", "iifname", "oif", "oifname"];

/// What may stand in the place of a value without being one.
pub(super) const BESIDE_VALUES: [&str; 2] = ["ct", "type"];
/// What a field of the packet begins with.
pub(super) const FIELDS: [&str; 7] = ["ct", "ip", "ip6", "meta", "tcp", "th", "udp"];

/// The protocols of Warren's rules.
pub(super) const PROTOCOLS: [&str; 9] =
    ["dccp", "icmp", "icmpv6", "ip", "ip6", "sctp", "tcp", "udp", "udplite"];

/// What a chain's priority is said with.
pub(super) const PRIORITIES: [&str; 6] = ["dstnat", "filter", "mangle", "raw", "security", "srcnat"];

/// After these stands a list of states, without braces.
pub(super) const STATE_WORDS: [&str; 2] = ["state", "status"];

/// The flags of TCP in Warren's rules.
pub(super) const TCP_FLAGS: [&str; 4] = ["ack", "fin", "rst", "syn"];

/// What nft does, or reads a file for. None of them is the name of a chain or a set, which nft would not take for one.
pub(super) const COMMANDS: [&str; 19] = [
    "add", "create", "define", "delete", "describe", "destroy", "export", "flush", "import", "include",
    "insert", "list", "monitor", "redefine", "rename", "replace", "reset", "table", "undefine",
];

/// The words of Warren's rules. A rule with a new word needs it here: until then the helper refuses the table, and says which.
pub(super) const WORDS: &[&str] = &[
    "accept",
    "ack",
    "add",
    "admin-prohibited",
    "anycast",
    "arp",
    "broadcast",
    "burst",
    "bytes",
    "code",
    "constant",
    "continue",
    "count",
    "counter",
    "ct",
    "destination-unreachable",
    "direction",
    "dnat",
    "drop",
    "dscp",
    "dstnat",
    "dynamic",
    "echo-reply",
    "echo-request",
    "established",
    "ether",
    "exists",
    "fib",
    "filter",
    "fin",
    "forward",
    "frag-off",
    "hook",
    "hoplimit",
    "host-prohibited",
    "htype",
    "icmp",
    "icmpv6",
    "icmpx",
    "id",
    "iiftype",
    "inet_proto",
    "inet_service",
    "input",
    "interval",
    "invalid",
    "ip",
    "ip6",
    "ipv4",
    "ipv4_addr",
    "ipv6",
    "ipv6_addr",
    "l3proto",
    "length",
    "limit",
    "local",
    "mangle",
    "masquerade",
    "meta",
    "missing",
    "mld-listener-done",
    "mld-listener-query",
    "mld-listener-report",
    "mld2-listener-report",
    "multicast",
    "nat",
    "nd-neighbor-advert",
    "nd-neighbor-solicit",
    "nd-redirect",
    "nd-router-advert",
    "nd-router-solicit",
    "new",
    "nfproto",
    "oiftype",
    "operation",
    "original",
    "output",
    "over",
    "packet-too-big",
    "packets",
    "parameter-problem",
    "pkttype",
    "policy",
    "port-unreachable",
    "postrouting",
    "prerouting",
    "rate",
    "raw",
    "reject",
    "related",
    "reply",
    "request",
    "reset",
    "return",
    "route",
    "rst",
    "security",
    "set",
    "size",
    "snat",
    "srcnat",
    "syn",
    "tcp",
    "th",
    "time-exceeded",
    "ttl",
    "type",
    "udp",
    "unicast",
    "untracked",
    "update",
    "version",
    "with",
    "zone",
];
