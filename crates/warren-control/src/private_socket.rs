//! A Unix socket that only its owner can use, from the moment it exists.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted.
const WAITING: i32 = 128;

/// Listens at a path where nothing exists. The file gets its mode when the socket is bound (unix(7)). So nobody else can use the
/// socket at any moment. A chmod afterwards would follow a link that has replaced the file. Accepting does not block.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}
