//! A Unix socket that is its owner's alone from the moment it has a name.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted.
const WAITING: i32 = 128;

/// Listens at a path where there is nothing. The file gets the mode that the socket has when it is bound (unix(7)), so at no time is
/// there one that others may use, nor one whose mode is changed by a name that may have become a link. Accepting does not block.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}
