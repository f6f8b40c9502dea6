//! Checks whether a daemon's TUN device still exists. Polling is needed, because the device's descriptor does not wake a reader
//! when the device is deleted.

use std::net::UdpSocket;
use std::time::Duration;

use rustix::net::netdevice::name_to_index;

/// How often to check. A deletion is noticed within this time.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Whether this host has a network device of this name.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn exists(name: &str) -> std::io::Result<bool> {
    Ok(index(&socket()?, name).is_some())
}

/// Whether the device of that name has this index.
pub fn is(name: &str, device: u32) -> bool {
    socket().is_ok_and(|socket| index(&socket, name) == Some(device))
}

/// Waits until no device has both this name and this index.
pub async fn gone(name: String, device: u32) {
    // Without a socket, the kernel cannot be asked, so no device is reported as gone.
    let Ok(socket) = socket() else { return std::future::pending().await };
    // A new device of the same name has another index.
    while index(&socket, &name) == Some(device) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Opens a socket for ioctl calls about devices. Any socket in this network namespace can be used.
fn socket() -> std::io::Result<UdpSocket> {
    UdpSocket::bind("127.0.0.1:0")
        // IPv6 is tried too, because the host may lack IPv4.
        .or_else(|_| UdpSocket::bind("[::1]:0"))
        .or_else(|_| UdpSocket::bind("0.0.0.0:0"))
}

fn index(socket: &UdpSocket, name: &str) -> Option<u32> {
    name_to_index(socket, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn device_that_is_not_there_is_gone() {
        assert!(!exists("wt-none").unwrap());
        gone("wt-none".to_owned(), 7).await;
    }

    #[tokio::test]
    async fn device_that_is_there_is_waited_for() {
        let index = index(&socket().unwrap(), "lo").unwrap();
        assert!(exists("lo").unwrap());
        let waited = tokio::time::timeout(Duration::from_millis(50), gone("lo".to_owned(), index)).await;
        assert!(waited.is_err());
        gone("lo".to_owned(), index + 1000).await;
    }
}
