//! Errors of nft.

use std::io;

/// The reason why a run of nft failed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// There is no nft on this machine.
    #[error("nft is missing; install it with: apt install nftables")]
    Missing,
    /// nft or the kernel refused.
    #[error("nft refused: {0}; see what `nft list ruleset` shows")]
    Refused(String),
    /// nft gave no further answer.
    #[error("nft ended or hung without an answer; see whether `nft list ruleset` works")]
    Gone,
    /// Talking to nft failed.
    #[error("nft could not be run: {0}; see whether `nft list ruleset` works")]
    Io(#[from] io::Error),
}
