//! A path between client and exit: passes datagrams up to a size and can give the client another address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{net::UdpSocket, select, sync::mpsc};
use warren_quic::socket::{SocketConfig, bind};

/// Datagrams that are passed on in a row; more than a side sends in one turn.
const BATCH: usize = 256;

pub struct Relay {
    pub address: SocketAddr,
    /// Larger datagrams are lost.
    pub limit: Arc<AtomicUsize>,
    /// Of so many datagrams, one is lost; 0 is none.
    pub lose_one_of: Arc<AtomicUsize>,
    sources: mpsc::UnboundedSender<Ipv4Addr>,
}

impl Relay {
    pub async fn new(exit: SocketAddr, limit: usize) -> Self {
        let front = socket(Ipv4Addr::LOCALHOST);
        let address = front.local_addr().unwrap();
        let limit = Arc::new(AtomicUsize::new(limit));
        let (sources, mut moves) = mpsc::unbounded_channel();
        let lose_one_of = Arc::new(AtomicUsize::new(0));
        let (limit_here, lose_here) = (limit.clone(), lose_one_of.clone());
        tokio::spawn(async move {
            let mut back = socket(Ipv4Addr::LOCALHOST);
            let mut buffer = vec![0; 65_536];
            let mut client = None;
            let mut count = 0;
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
                            if passes(length) {
                                let _lost = back.send_to(&buffer[..length], exit).await;
                            }
                        }
                    }
                    Ok(()) = back.readable() => {
                        for _ in 0..BATCH {
                            let Ok((length, _)) = back.try_recv_from(&mut buffer) else { break };
                            if let Some(client) = client && passes(length) {
                                let _lost = front.send_to(&buffer[..length], client).await;
                            }
                        }
                    }
                }
            }
        });
        Self { address, limit, lose_one_of, sources }
    }

    /// From now on the exit sees the client at another address.
    pub fn move_to(&self, source: Ipv4Addr) {
        self.sources.send(source).unwrap();
    }
}

/// A socket with buffers that hold whatever a side sends at once.
fn socket(address: Ipv4Addr) -> UdpSocket {
    UdpSocket::from_std(bind(SocketConfig::new((address, 0).into())).unwrap()).unwrap()
}
