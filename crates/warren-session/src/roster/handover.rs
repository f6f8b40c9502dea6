//! `Handover`: a fleet key that names its successor.

use super::MAX_HANDOVERS;
use super::error::RosterError;
use super::key::{FleetKey, FleetPublicKey, SIGNATURE_LENGTH};
use super::name::FleetName;
use super::wire;

/// The beginning of the signed bytes of a handover, so that its signature is not valid for anything else.
const DOMAIN: &[u8] = b"warren fleet key handover, version 1\0";

/// A change of the fleet key, signed by the earlier key. A client that knows the earlier key accepts the later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    from: FleetPublicKey,
    to: FleetPublicKey,
    signature: [u8; SIGNATURE_LENGTH],
}

impl Handover {
    /// Signs a handover.
    pub(super) fn sign(fleet: &FleetName, from: &FleetKey, to: FleetPublicKey) -> Self {
        let signature = from.sign(&message(fleet, from.public(), to));
        let signature = signature.try_into().expect("an Ed25519 signature has 64 bytes");
        Self { from: from.public(), to, signature }
    }

    pub(super) fn to_wire(&self) -> wire::Handover {
        wire::Handover {
            from: self.from.as_bytes().to_vec(),
            to: self.to.as_bytes().to_vec(),
            signature: self.signature.to_vec(),
        }
    }

    fn from_wire(fleet: &FleetName, handover: &wire::Handover) -> Option<Self> {
        let from = FleetPublicKey::from_wire(&handover.from)?;
        let to = FleetPublicKey::from_wire(&handover.to)?;
        let signature = handover.signature.as_slice().try_into().ok()?;
        from.has_signed(&message(fleet, from, to), &handover.signature).then_some(Self {
            from,
            to,
            signature,
        })
    }
}

/// Reads a roster's handovers. They must be a chain without a loop, and the chain must contain the signer.
pub(super) fn read_chain(
    fleet: &FleetName,
    handovers: &[wire::Handover],
    signer: FleetPublicKey,
) -> Result<Vec<Handover>, RosterError> {
    if handovers.len() > MAX_HANDOVERS {
        return Err(RosterError::Handovers);
    }
    let read: Option<Vec<_>> = handovers.iter().map(|each| Handover::from_wire(fleet, each)).collect();
    let read = read.ok_or(RosterError::Handovers)?;
    let is_chain = read.windows(2).all(|pair| matches!(pair, [one, next] if one.to == next.from));
    let keys = keys(&read);
    let has_loop = (1..).zip(&keys).any(|(next, key)| keys.iter().skip(next).any(|other| other == key));
    let has_signer = keys.is_empty() || keys.contains(&signer);
    if is_chain && !has_loop && has_signer { Ok(read) } else { Err(RosterError::Handovers) }
}

/// The keys of a chain, the earliest first.
pub(super) fn keys(chain: &[Handover]) -> Vec<FleetPublicKey> {
    chain.iter().take(1).map(|first| first.from).chain(chain.iter().map(|each| each.to)).collect()
}

fn message(fleet: &FleetName, from: FleetPublicKey, to: FleetPublicKey) -> Vec<u8> {
    // The keys have a fixed length, so the name at the end needs no length.
    [DOMAIN, from.as_bytes(), to.as_bytes(), fleet.as_str().as_bytes()].concat()
}
