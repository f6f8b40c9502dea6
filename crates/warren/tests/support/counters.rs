//! Values of nft counters.

/// Bytes of the IPv4 and UDP headers, which nft's counters include.
pub const HEADERS: u64 = 28;

/// The packets of every counter in an `nft list` output, in order.
#[track_caller]
pub fn packets_counted(listing: &str) -> Vec<u64> {
    let words: Vec<&str> = listing.split_whitespace().collect();
    let counts = words.windows(2).filter(|pair| pair[0] == "packets");
    counts.map(|pair| pair[1].parse().unwrap_or_else(|_| panic!("{listing}"))).collect()
}

/// The packets of the output's only counter.
#[track_caller]
pub fn packets_of_one(listing: &str) -> u64 {
    let [packets] = packets_counted(listing)[..] else { panic!("not exactly one counter: {listing}") };
    packets
}

/// The packets and bytes of the output's only counter. The bytes include [`HEADERS`].
#[track_caller]
pub fn packets_and_bytes_of_one(listing: &str) -> (u64, u64) {
    let mut words = listing.split_whitespace().skip_while(|word| *word != "packets");
    let mut number =
        || words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{listing}"));
    (number(), number())
}
