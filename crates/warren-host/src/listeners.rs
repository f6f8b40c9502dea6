//! The sockets on which TCP listens.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::sock_diag::{FAMILIES, TCP, sockets};

/// A socket on which TCP listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listener {
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
    pub(crate) user: u32,
}

/// Every listener of this host. They are listed by socket diagnosis (sock_diag(7)), which takes a fraction of a millisecond. On a
/// kernel without it, this reads `/proc/net`, which is slower, because the kernel then walks its whole table of connections.
///
/// # Errors
/// If neither can be read.
pub(crate) fn listeners() -> io::Result<Vec<Listener>> {
    match asked() {
        Ok(Some(listeners)) => Ok(listeners),
        Ok(None) | Err(_) => listed(),
    }
}

/// The listeners according to socket diagnosis. `None` if this kernel lacks it.
fn asked() -> io::Result<Option<Vec<Listener>>> {
    let mut listeners = Vec::new();
    for family in FAMILIES {
        let Some(found) = sockets(family, TCP, LISTEN)? else { return Ok(None) };
        listeners.extend(found.iter().map(|socket| Listener {
            port: socket.port(),
            address: socket.address(),
            user: socket.user,
        }));
    }
    Ok(Some(listeners))
}

/// The listeners in proc(5)'s tables.
fn listed() -> io::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        match File::open(file) {
            Ok(table) => listeners.extend(parse(BufReader::new(table))?),
            // The file is missing without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

/// Parses /proc/net/tcp or /proc/net/tcp6 (proc(5)) and returns the listeners.
fn parse(table: impl BufRead) -> io::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for line in table.lines().skip(1) {
        let Some((state, listener)) = socket(&line?) else { continue };
        // The listeners come first. The rest of the table are connections, of which there may be a million, so reading stops
        // here.
        if state != TCP_LISTEN {
            break;
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Parses a socket's state, address and user in a line of one of proc(5)'s tables.
pub(crate) fn socket(line: &str) -> Option<(u8, Listener)> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [_, own, _, state, _, _, _, user, ..] = columns.as_slice() else { return None };
    let (address, port) = own.split_once(':')?;
    let (port, address) = (u16::from_str_radix(port, 16).ok()?, address_of(address)?);
    Some((u8::from_str_radix(state, 16).ok()?, Listener { port, address, user: user.parse().ok()? }))
}

/// Parses an address in these tables' notation: words of 32 bits, in this machine's byte order.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |index: usize| u32::from_str_radix(text.get(8 * index..8 * index + 8)?, 16).ok();
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(index)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// From net/tcp_states.h.
const TCP_LISTEN: u8 = 10;
const LISTEN: u32 = 1 << TCP_LISTEN;

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream, UdpSocket},
        os::fd::AsFd as _,
        process::Command,
        thread,
    };

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// A network namespace, deleted on drop.
    struct Namespace(String);

    impl Drop for Namespace {
        fn drop(&mut self) {
            ip(&["netns", "delete", &self.0]);
        }
    }

    fn ip(arguments: &[&str]) {
        assert!(Command::new("ip").args(arguments).status().unwrap().success());
    }

    #[test]
    fn kernel_and_proc_tell_the_same_listeners_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let namespace = Namespace(format!("wt-{}-listeners", std::process::id()));
        ip(&["netns", "add", &namespace.0]);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"]);
        let entered = File::open(format!("/run/netns/{}", namespace.0)).unwrap();
        // The test changes the namespace of a thread of its own, because the test harness reuses its threads.
        let test = thread::spawn(move || {
            move_into_link_name_space(entered.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            assert_eq!((asked().unwrap(), listed().unwrap()), (Some(Vec::new()), Vec::new()));

            let addresses = ["0.0.0.0", "127.0.0.1", "127.0.0.53", "::", "::1"].map(|a| a.parse().unwrap());
            let sockets = addresses.map(|address: IpAddr| TcpListener::bind((address, 0)).unwrap());
            let _connection = TcpStream::connect(sockets[1].local_addr().unwrap()).unwrap();
            let _accepted = sockets[1].accept().unwrap();
            let _datagrams = (UdpSocket::bind("0.0.0.0:0").unwrap(), UdpSocket::bind("[::]:0").unwrap());

            let mut wanted: Vec<Listener> = sockets
                .iter()
                .map(|socket| socket.local_addr().unwrap())
                .map(|at| Listener { port: at.port(), address: at.ip(), user: 0 })
                .collect();
            let (mut asked, mut listed) = (asked().unwrap().unwrap(), listed().unwrap());
            [&mut wanted, &mut asked, &mut listed].into_iter().for_each(|list| list.sort_unstable());
            assert_eq!(asked, wanted);
            assert_eq!(listed, wanted);
        });
        test.join().unwrap();
    }

    #[test]
    fn listeners_of_a_table_come_before_its_connections() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 1\n\
             1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n\
             2: 020200C0:C001 097100CB:01BB 01 00000000:00000000 00:00000000 00000000     0        0 1\n\
             3: 00000000:0017 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n";
        let listener = |address: &str, port, user| Listener { port, address: address.parse().unwrap(), user };

        assert_eq!(
            parse(table.as_bytes()).unwrap(),
            [listener("0.0.0.0", 22, 999), listener("127.0.0.1", 8080, 0)]
        );
        let address = |text| address_of(text).map(|address| address.to_string());
        assert_eq!(address("B80D0120000000000000000001000000").as_deref(), Some("2001:db8::1"));
        assert_eq!((address(""), address("0100007"), address("é100007")), (None, None, None));
    }
}
