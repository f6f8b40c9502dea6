//! A Unix socket that only its owner can use, from the moment it exists.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

/// Maximum number of connections that wait to be accepted.
const WAITING: i32 = 128;

/// Listens at a path where nothing exists. The file already has its mode when the socket is bound (unix(7)), so no other user can
/// connect at any moment. A chmod afterwards would leave a gap, and could follow a link that has replaced the file. The listener
/// is non-blocking.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}
