//! Replays the corpora of the fuzz targets for this crate.
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "the files are modules of fuzz/ as well"
)]

#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/nft_ruleset.rs"]
mod nft_ruleset;

use proptest::{collection::vec, sample::select, test_runner::Config};

#[test]
fn rulesets_for_the_helper() {
    corpus::replay("nft_ruleset", nft_ruleset::run);
}

proptest::proptest! {
    #![proptest_config(Config::with_cases(20_000))]

    /// Pieces of nftables text that an attacker might write, in any order. Most rulesets are refused. An accepted one changes
    /// only this profile's tables.
    #[test]
    fn pieces_of_rulesets_for_the_helper(pieces in vec(select(PIECES), 0..12)) {
        nft_ruleset::run(pieces.concat().as_bytes());
    }
}

const PIECES: &[&str] = &[
    "table inet warren_home {\n",
    "chain a {\n",
    "set a {\ntype ipv4_addr\n",
    "ip daddr { 10.0.0.1, 10.0.0.2 } accept\n",
    "oifname \"lo\" jump a\n",
    "ip daddr 10.0.0.1 ",
    "tcp dport { 22 } ",
    "tcp flags & (syn | ack) == syn ",
    "ct state established,related ",
    "type filter hook output priority filter ",
    "local ",
    "5s ",
    "4294967296 ",
    "ip daddr ",
    "ip daddr . udp dport { 10.0.0.1 . 53 } ",
    "add @a { ip saddr & 255.0.0.0 ct count over 9 } drop\n",
    "flush table inet warren_home\n",
    "delete chain inet warren_home a\n",
    "accept\n",
    "| ",
    "& ",
    "( ",
    "- ",
    "+ ",
    ". ",
    "flags owner;\n",
    "}\n",
    "}\n}\n",
    "} ",
    "{ ",
    "; ",
    ", ",
    "\n",
    "\"",
    "#",
    "\\\n",
    "@",
    "add table inet warren_home\n",
    "delete table inet warren-dns_home\n",
    "create table arp warren-kill-switch_home {\n}\n",
    "add table inet filter\n",
    "flush ruleset\n",
    "flush ruleset; ",
    "table inet x { ",
    "include \"/etc/shadow\"\n",
];
