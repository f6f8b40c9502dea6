//! A client that announces transport parameters of its choice: valid ones (RFC 9000 section 18.2) that no honest client has.

use std::sync::Arc;

use noq_proto::{
    ClientConfig, ConnectError, Side, VarInt,
    coding::{Decodable, Encodable},
    crypto::{self, Session, rustls::QuicClientConfig},
    transport_parameters::TransportParameters,
};

use crate::{client_tls, quic_client};

/// A client with these parameters, by their numbers, in place of the usual ones.
pub fn with_parameters(chosen: &'static [(u64, u64)]) -> ClientConfig {
    ClientConfig::new(Arc::new(Choosing { tls: quic_client(client_tls()), chosen }))
}

struct Choosing {
    tls: Arc<QuicClientConfig>,
    chosen: &'static [(u64, u64)],
}

impl crypto::ClientConfig for Choosing {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        usual: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut bytes = Vec::new();
        usual.write(&mut bytes);
        let (mut rest, mut out) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            let whole = rest;
            let number = VarInt::decode(&mut rest).unwrap().into_inner();
            let length = VarInt::decode(&mut rest).unwrap().into_inner() as usize;
            rest = &rest[length..];
            if self.chosen.iter().all(|(chosen, _)| *chosen != number) {
                out.extend(&whole[..whole.len() - rest.len()]);
            }
        }
        for &(number, value) in self.chosen {
            let mut content = Vec::new();
            VarInt::from_u64(value).unwrap().encode(&mut content);
            VarInt::from_u64(number).unwrap().encode(&mut out);
            VarInt::from_u32(content.len() as u32).encode(&mut out);
            out.extend(content);
        }
        let parameters = TransportParameters::read(Side::Server, &mut out.as_slice()).unwrap();
        self.tls.start_session(version, server_name, &parameters)
    }
}
