//! A path between client and exit. It passes datagrams up to a size limit, can delay one datagram, can mute the client,
//! and can give the client another address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::{net::UdpSocket, select, sync::mpsc};
use warren_quic::socket::{SocketConfig, bind};

/// The most datagrams relayed in a row: more than a side sends in one turn.
const BATCH: usize = 256;

/// Datagrams from this size on carry a payload; smaller ones only keep a connection going.
const LOADED: usize = 500;

pub struct Relay {
    pub address: SocketAddr,
    /// Datagrams above this size are lost.
    pub limit: Arc<AtomicUsize>,
    /// One in this many datagrams is lost; 0 turns losses off.
    pub lose_one_of: Arc<AtomicUsize>,
    /// The number of the client's payload datagrams that were lost.
    pub lost_loaded: Arc<AtomicUsize>,
    /// The client's next payload datagram is held back until this many others have passed, and is then sent twice; 0 turns this off.
    pub overtaken_by: Arc<AtomicUsize>,
    /// After the exit's first answer, the client's datagrams are lost.
    pub mutes_client: Arc<AtomicBool>,
    sources: mpsc::UnboundedSender<Ipv4Addr>,
}

impl Relay {
    pub async fn new(exit: SocketAddr, limit: usize) -> Self {
        let front = socket(Ipv4Addr::LOCALHOST);
        let address = front.local_addr().unwrap();
        let limit = Arc::new(AtomicUsize::new(limit));
        let (sources, mut moves) = mpsc::unbounded_channel();
        let lose_one_of = Arc::new(AtomicUsize::new(0));
        let lost_loaded = Arc::new(AtomicUsize::new(0));
        let lost_here = lost_loaded.clone();
        let overtaken_by = Arc::new(AtomicUsize::new(0));
        let mutes_client = Arc::new(AtomicBool::new(false));
        let (limit_here, lose_here, overtaken_here, mutes_here) =
            (limit.clone(), lose_one_of.clone(), overtaken_by.clone(), mutes_client.clone());
        tokio::spawn(async move {
            let mut back = socket(Ipv4Addr::LOCALHOST);
            let mut buffer = vec![0; 65_536];
            let mut client = None;
            let mut count = 0;
            let mut has_answered = false;
            let mut set_aside: Option<(usize, Vec<u8>)> = None;
            let mut passes = |length: usize| {
                count += 1;
                let lose_one_of = lose_here.load(Ordering::Relaxed);
                length <= limit_here.load(Ordering::Relaxed) && (lose_one_of == 0 || count % lose_one_of != 0)
            };
            loop {
                select! {
                    Some(source) = moves.recv() => back = socket(source),
                    Ok(()) = front.readable() => {
                        for _ in 0..BATCH {
                            let Ok((length, from)) = front.try_recv_from(&mut buffer) else { break };
                            client = Some(from);
                            let is_mute = has_answered && mutes_here.load(Ordering::Relaxed);
                            if is_mute || !passes(length) {
                                lost_here.fetch_add(usize::from(length >= LOADED), Ordering::Relaxed);
                                continue;
                            }
                            if length >= LOADED
                                && let others @ 1.. = overtaken_here.swap(0, Ordering::Relaxed)
                            {
                                set_aside = Some((others, buffer[..length].to_vec()));
                                continue;
                            }
                            let _lost = back.send_to(&buffer[..length], exit).await;
                            if length >= LOADED
                                && let Some((others, late)) = &mut set_aside
                            {
                                *others -= 1;
                                if *others == 0 {
                                    for _ in 0..2 {
                                        let _lost = back.send_to(late, exit).await;
                                    }
                                    set_aside = None;
                                }
                            }
                        }
                    }
                    Ok(()) = back.readable() => {
                        for _ in 0..BATCH {
                            let Ok((length, _)) = back.try_recv_from(&mut buffer) else { break };
                            has_answered = true;
                            if let Some(client) = client && passes(length) {
                                let _lost = front.send_to(&buffer[..length], client).await;
                            }
                        }
                    }
                }
            }
        });
        Self { address, limit, lose_one_of, lost_loaded, overtaken_by, mutes_client, sources }
    }

    /// From now on the exit sees the client at this address.
    pub fn move_to(&self, source: Ipv4Addr) {
        self.sources.send(source).unwrap();
    }
}

/// A socket whose buffers hold everything that a side sends at once.
fn socket(address: Ipv4Addr) -> UdpSocket {
    UdpSocket::from_std(bind(SocketConfig::new((address, 0).into())).unwrap()).unwrap()
}
