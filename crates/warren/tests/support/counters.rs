//! What nft's counters have seen.

/// The packets of every counter in what `nft list` printed, in order.
#[track_caller]
pub fn packets_counted(listing: &str) -> Vec<u64> {
    let words: Vec<&str> = listing.split_whitespace().collect();
    let counts = words.windows(2).filter(|pair| pair[0] == "packets");
    counts.map(|pair| pair[1].parse().unwrap_or_else(|_| panic!("{listing}"))).collect()
}

/// The packets of its only counter.
#[track_caller]
pub fn packets_of_one(listing: &str) -> u64 {
    let [packets] = packets_counted(listing)[..] else { panic!("not one counter: {listing}") };
    packets
}
