//! Claims: the keys, names, addresses and tokens that only one proposal at a time may concern.

use crate::PublicKey;
use crate::clients::RowChange;
use crate::invite::TokenDigest;

/// Something that at most one proposal at a time may concern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Key(PublicKey),
    Name(String),
    Address(std::net::IpAddr),
    Token(TokenDigest),
    /// The prefixes of all clients together. A claim on one prefix would not find the prefixes that overlap it.
    Prefixes,
    /// The forwards of all clients together, for the same reason.
    Forwards,
}

/// Returns the claims of a proposal with these changes.
pub(super) fn claims_of(changes: &[RowChange]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for change in changes {
        match change {
            RowChange::Client { key, client } => {
                claims.push(Claim::Key(*key));
                let Some(client) = client else { continue };
                claims.push(Claim::Name(client.name.clone()));
                claims.extend(client.next_public_key.map(Claim::Key));
                claims.extend(client.lease().addresses().map(Claim::Address));
                claims.extend((!client.prefixes.is_empty()).then_some(Claim::Prefixes));
                claims.extend((!client.forwards.is_empty()).then_some(Claim::Forwards));
            }
            RowChange::Invitation { token, invitation } => {
                claims.push(Claim::Token(*token));
                claims.extend(invitation.as_ref().map(|invitation| Claim::Name(invitation.name.clone())));
            }
            RowChange::Removed { key, .. } => claims.push(Claim::Key(*key)),
        }
    }
    claims
}
