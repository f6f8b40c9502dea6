//! The reasons why a TUN device could not be created, each with advice.

use std::io;

/// Why [`create`](crate::create) failed.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel's TUN driver is missing.
    #[error(
        "/dev/net/tun is missing: load the driver with `modprobe tun`, or give the container the device /dev/net/tun"
    )]
    NoDriver,
    /// The process lacks the permission to create network devices.
    #[error(
        "making the TUN device {name} is not permitted: run as root, or with CAP_NET_ADMIN and access to /dev/net/tun"
    )]
    NotPermitted {
        /// The requested name.
        name: String,
    },
    /// A network device of that name exists already.
    #[error("a network device named {name} exists already: stop what uses it, or choose another name")]
    NameTaken {
        /// The requested name.
        name: String,
    },
    /// The name is not valid for a network device.
    #[error("{name:?} cannot be a network device's name: use 1 to 15 of the characters A-Z a-z 0-9 . _ -")]
    InvalidName {
        /// The requested name.
        name: String,
    },
    /// The number of queues is not supported by the kernel's driver.
    #[error("a TUN device has 1 to {max} queues, not {queues}")]
    InvalidQueues {
        /// The requested number.
        queues: usize,
        /// Maximum number: half of the driver's limit of 256, because a queue may have two lanes.
        max: usize,
    },
    /// The kernel refused one step for another reason.
    #[error("the kernel refused to {step} the TUN device {name}; see `dmesg`")]
    Refused {
        /// The step: "create", "add a queue to", "set the offloads of" and so on.
        step: &'static str,
        /// The requested name.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl TunError {
    /// Classifies the kernel's error in one step of creating the device `name`.
    pub(crate) fn from_kernel(step: &'static str, name: &str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => Self::NotPermitted { name },
            // The device node is missing, or exists without a driver.
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::NXIO) => {
                Self::NoDriver
            }
            // The kernel answers EBUSY to an exclusive claim of an existing device (`tun_set_iff`).
            Some(rustix::io::Errno::BUSY | rustix::io::Errno::EXIST) => Self::NameTaken { name },
            _ => Self::Refused { step, name, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn each_answer_of_the_kernel_becomes_a_sentence_that_says_what_to_do() {
        let message = |errno: Errno| TunError::from_kernel("create", "warren0", errno.into()).to_string();

        assert!(message(Errno::NOENT).contains("modprobe tun"));
        assert!(message(Errno::PERM).contains("CAP_NET_ADMIN"));
        assert!(message(Errno::BUSY).contains("warren0 exists already"));
        assert_eq!(message(Errno::NOMEM), "the kernel refused to create the TUN device warren0; see `dmesg`");
    }
}
