//! The words of Warren's rulesets.

/// Words after which the name of a device may come.
pub(super) const DEVICE_WORDS: [&str; 4] = ["iif", "iifname", "oif", "oifname"];

/// Words that may stand in place of a value.
pub(super) const BESIDE_VALUES: [&str; 2] = ["ct", "type"];
/// The first words of a packet's fields.
pub(super) const FIELDS: [&str; 7] = ["ct", "ip", "ip6", "meta", "tcp", "th", "udp"];

/// The protocols of Warren's rules.
pub(super) const PROTOCOLS: [&str; 9] =
    ["dccp", "icmp", "icmpv6", "ip", "ip6", "sctp", "tcp", "udp", "udplite"];

/// The names of chain priorities.
pub(super) const PRIORITIES: [&str; 6] = ["dstnat", "filter", "mangle", "raw", "security", "srcnat"];

/// Words that a list of states without braces may follow.
pub(super) const STATE_WORDS: [&str; 2] = ["state", "status"];

/// The flags of TCP in Warren's rules.
pub(super) const TCP_FLAGS: [&str; 4] = ["ack", "fin", "rst", "syn"];

/// The flags of sets in Warren's rules.
pub(super) const SET_FLAGS: [&str; 3] = ["dynamic", "interval", "timeout"];

/// The types of the elements of sets in Warren's rules.
pub(super) const SET_TYPES: [&str; 3] = ["inet_service", "ipv4_addr", "ipv6_addr"];

/// nft's commands, and the words that make it read a file. nft does not accept them as names of chains or sets, so no name may be
/// one of them.
pub(super) const COMMANDS: [&str; 19] = [
    "add", "create", "define", "delete", "describe", "destroy", "export", "flush", "import", "include",
    "insert", "list", "monitor", "redefine", "rename", "replace", "reset", "table", "undefine",
];

/// The words of Warren's rules. If a rule uses a new word, add the word here. Until then, the helper refuses the
/// table and names the word.
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
    "skuid",
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
    "version",
    "with",
    "zone",
];
