//! Errors of making or undoing a step.

use std::io;

use crate::{DeviceName, nft::NftError};

/// The reason why a step could not be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The device does not exist.
    #[error(
        "there is no network device {0}; somebody has deleted or renamed it, so run `warren down` and start again"
    )]
    NoDevice(DeviceName),
    /// An object of this kind exists already, and Warren may not change it.
    #[error(
        "it exists already and was not made by this Warren; remove it, or run `warren cleanup` if it was left behind, or restart this \
         machine if Warren's record of it is lost with /run/warren"
    )]
    Exists,
    /// The kernel does not have the setting.
    #[error("this kernel has no such setting; use a kernel that has it")]
    NoSetting,
    /// The device takes no IPv6 addresses.
    #[error(
        "IPv6 is switched off on {0}; set net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6 to 0, or use no IPv6 addresses: an exit without ipv6 in [addresses] of exit.toml assigns none"
    )]
    Ipv6Disabled(DeviceName),
    /// The process lacks the permission.
    #[error("not permitted; run it as root or with CAP_NET_ADMIN")]
    NotPermitted,
    /// The journal cannot be written.
    #[error("there is no space left for the journal; free space on the disk that --runtime-dir is on")]
    NoSpace,
    /// The kernel refused.
    #[error("{0}")]
    Io(io::Error),
    /// nft failed.
    #[error(transparent)]
    Nft(NftError),
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::AlreadyExists {
            Self::Exists
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            Self::NotPermitted
        } else if error.kind() == io::ErrorKind::StorageFull {
            Self::NoSpace
        } else {
            Self::Io(error)
        }
    }
}

impl From<NftError> for StepError {
    fn from(error: NftError) -> Self {
        match error {
            // nft reports the kernel's error only as text. The text is in English, because nft runs with LC_ALL=C.
            NftError::Refused(reason) if reason.ends_with("File exists") => Self::Exists,
            NftError::Refused(reason) if reason.ends_with("not permitted") => Self::NotPermitted,
            error @ (NftError::Missing | NftError::Refused(_) | NftError::Gone | NftError::Io(_)) => {
                Self::Nft(error)
            }
        }
    }
}
