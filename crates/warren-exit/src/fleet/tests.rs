//! The exit's side of the fleet, without a socket.
