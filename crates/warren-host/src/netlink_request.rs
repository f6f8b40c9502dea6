//! Single, blocking netlink requests to subsystems outside of rtnetlink, such as socket diagnosis and connection tracking.

use std::io;

use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink,
        recv, sendto, socket_with,
    },
};

/// A request in progress.
pub(crate) struct Asked(OwnedFd);

/// Sends a `struct nlmsghdr` followed by `body`.
///
/// # Errors
/// If the kernel cannot be asked; `EPROTONOSUPPORT` if it lacks the subsystem.
pub(crate) fn ask(
    protocol: impl Into<Option<Protocol>>,
    kind: u16,
    flags: u16,
    body: &[u8],
) -> io::Result<Asked> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, protocol.into())?;
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number and port are 0, because the socket sends only one request.
    request.extend([0; 8]);
    request.extend(body);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    Ok(Asked(socket))
}

impl Asked {
    /// Returns whether the kernel has carried out a request with [`NLM_F_ACK`].
    ///
    /// # Errors
    /// If there is no answer.
    pub(crate) fn is_done(&self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let length = recv(&self.0, &mut buffer[..], RecvFlags::empty())?.0;
        let answer = Messages(buffer.get(..length).unwrap_or_default()).next();
        // An acknowledgement is an error message with error code 0.
        Ok(matches!(answer, Some((NLMSG_ERROR, [0, 0, 0, 0, ..]))))
    }

    /// Applies `parse` to the message that answers a request for one object. `None` if there is no such object, or the kernel
    /// does not support this kind of object.
    ///
    /// # Errors
    /// If there is no answer.
    pub(crate) fn first<T>(&self, parse: impl Fn(u16, &[u8]) -> Option<T>) -> io::Result<Option<T>> {
        let mut buffer = [0; 4096];
        let length = recv(&self.0, &mut buffer[..], RecvFlags::empty())?.0;
        let answer = Messages(buffer.get(..length).unwrap_or_default()).next();
        Ok(answer.and_then(|(kind, message)| parse(kind, message)))
    }

    /// Applies `parse` to the types and contents of the messages that answer a request with [`NLM_F_DUMP`], and
    /// returns the results. `None` if the kernel lacks the object or the family.
    ///
    /// # Errors
    /// If the kernel refuses for another reason.
    pub(crate) fn all<T>(&self, parse: impl Fn(u16, &[u8]) -> Option<T>) -> io::Result<Option<Vec<T>>> {
        let mut found = Vec::new();
        // The kernel puts at most 32 KiB of a dump into one datagram.
        let mut buffer = vec![0; 32 * 1024];
        loop {
            let length = recv(&self.0, &mut buffer[..], RecvFlags::empty())?.0;
            for (kind, message) in Messages(buffer.get(..length).unwrap_or_default()) {
                match kind {
                    NLMSG_DONE => return Ok(Some(found)),
                    NLMSG_ERROR => {
                        let code = message.first_chunk().map(|code| i32::from_ne_bytes(*code));
                        return match code.map(|code| Errno::from_raw_os_error(-code)) {
                            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => Ok(None),
                            Some(error) => Err(error.into()),
                            None => Err(io::ErrorKind::InvalidData.into()),
                        };
                    }
                    kind => found.extend(parse(kind, message)),
                }
            }
            if length == 0 {
                return Ok(Some(found));
            }
        }
    }
}

/// The messages of one datagram: their types and the contents after their headers.
struct Messages<'m>(&'m [u8]);

impl<'m> Iterator for Messages<'m> {
    type Item = (u16, &'m [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::try_from(u32::from_ne_bytes(*self.0.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(self.0.get(4..6)?.try_into().ok()?);
        let message = self.0.get(HEADER..length)?;
        // Messages are padded to four bytes (NLMSG_ALIGNTO).
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    }
}

/// `struct nlmsghdr` and constants of linux/netlink.h.
const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
