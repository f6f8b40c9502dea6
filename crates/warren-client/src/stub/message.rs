//! The parts of DNS messages that a stub resolver reads (RFC 1035 section 4). All other parts pass through the stub unchanged.

use std::io;

use simple_dns::{OPCODE, Packet, PacketFlag, RCODE};

/// The length of a message's header in bytes.
const HEADER: usize = 12;

/// A query's question.
#[derive(Debug)]
pub(super) struct Question {
    /// The labels of the name in lower case.
    labels: Vec<Vec<u8>>,
    /// The question's bytes, as in the query.
    bytes: Vec<u8>,
}

impl Question {
    /// Reads the question of a query.
    ///
    /// # Errors
    /// The answer to a query that cannot be read. `None` if the message is not a query.
    pub(super) fn of(query: &[u8]) -> Result<Self, Option<Vec<u8>>> {
        // Only the question is read. All other records pass through unread, even those of types that the library does not know.
        let mut copy = query.to_owned();
        copy.get_mut(6..HEADER).ok_or(None)?.fill(0);
        let is_response = copy.get(2).is_none_or(|flags| flags & 0x80 != 0);
        if is_response {
            return Err(None);
        }
        let refused = || header_of(query).map(|header| answer(&header, RCODE::FormatError, &[]));
        let packet = Packet::parse(&copy).map_err(|_| refused())?;
        let ([question], OPCODE::StandardQuery) = (packet.questions.as_slice(), packet.opcode()) else {
            return Err(refused());
        };
        let labels: Vec<Vec<u8>> = question.qname.as_bytes().map(<[u8]>::to_ascii_lowercase).collect();
        let mut name = Vec::new();
        for label in &labels {
            name.push(u8::try_from(label.len()).map_err(|_| refused())?);
            name.extend_from_slice(label);
        }
        name.push(0);
        // The type and the class, of two bytes each, follow the name.
        let bytes = query.get(HEADER..HEADER + name.len() + 4).ok_or_else(refused)?.to_owned();
        // A query with a compression pointer in its name is refused, because a resolver could read another name from the pointer
        // than the library does.
        let is_plain = bytes.get(..name.len()).is_some_and(|bytes| bytes.eq_ignore_ascii_case(&name));
        if is_plain { Ok(Self { labels, bytes }) } else { Err(refused()) }
    }

    /// Whether the name is `domain` or below it. `domain` is in lower case.
    pub(super) fn is_below(&self, domain: &str) -> bool {
        let domain: Vec<&[u8]> = domain.split('.').map(str::as_bytes).collect();
        let labels: Vec<&[u8]> = self.labels.iter().map(Vec::as_slice).collect();
        labels.ends_with(&domain)
    }

    /// The query with a random ID.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub(super) fn with_own_id(&self, query: &[u8]) -> io::Result<([u8; 2], Vec<u8>)> {
        let mut id = [0; 2];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        Ok((id, with_id(query, id)?))
    }

    /// A resolver's answer with the ID that the client of the stub has chosen.
    ///
    /// # Errors
    /// When the answer or the query is too short to have an ID.
    pub(super) fn with_clients_id(&self, answer: &[u8], query: &[u8]) -> io::Result<Vec<u8>> {
        let id = query.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        with_id(answer, *id)
    }

    /// Whether a message with this ID answers the question.
    pub(super) fn is_answered_by(&self, message: &[u8], id: [u8; 2]) -> bool {
        let Some(header) = header_of(message) else { return false };
        let [high, low, flags, _, count_high, count_low, ..] = header;
        let asked = message.get(HEADER..HEADER + self.bytes.len());
        // A resolver may write the name in another case (RFC 4343).
        let is_same = asked.is_some_and(|asked| asked.eq_ignore_ascii_case(&self.bytes));
        [high, low] == id && flags & 0x80 != 0 && [count_high, count_low] == [0, 1] && is_same
    }

    /// Whether another resolver should be asked although this one has answered, because the answer reports a failure or a
    /// refusal.
    pub(super) fn is_worth_another(&self, answer: &[u8]) -> bool {
        let code = simple_dns::header_buffer::rcode(answer);
        matches!(code, Ok(RCODE::ServerFailure | RCODE::Refused | RCODE::NotImplemented))
    }
}

/// Returns the stub's own answer (SERVFAIL) for the case that no resolver could be asked.
pub(super) fn failure(query: &[u8], question: &Question) -> Option<Vec<u8>> {
    Some(answer(&header_of(query)?, RCODE::ServerFailure, &question.bytes))
}

fn header_of(message: &[u8]) -> Option<[u8; HEADER]> {
    message.first_chunk().copied()
}

/// Returns an answer without records, with the ID and the "recursion desired" flag of a query's header.
fn answer(header: &[u8; HEADER], code: RCODE, question: &[u8]) -> Vec<u8> {
    let [id_high, id_low, flags, ..] = *header;
    let mut reply = Packet::new_reply(u16::from_be_bytes([id_high, id_low]));
    *reply.rcode_mut() = code;
    reply.set_flags(PacketFlag::RECURSION_AVAILABLE);
    if flags & 0x01 != 0 {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    let mut bytes = reply.build_bytes_vec().unwrap_or_default();
    if let Some(count) = bytes.get_mut(5).filter(|_| !question.is_empty()) {
        *count = 1;
    }
    bytes.extend_from_slice(question);
    bytes
}

fn with_id(message: &[u8], id: [u8; 2]) -> io::Result<Vec<u8>> {
    let mut message = message.to_owned();
    message.get_mut(..2).ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(&id);
    Ok(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A query for an address, with an EDNS record in the additional section.
    fn query(name: &str) -> Vec<u8> {
        let mut query = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            query.push(u8::try_from(label.len()).unwrap());
            query.extend(label.bytes());
        }
        query.extend([0, 0, 1, 0, 1]);
        query.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        query
    }

    fn question(name: &str) -> Question {
        Question::of(&query(name)).unwrap()
    }

    #[test]
    fn names_below_a_domain_are_told_from_names_that_only_end_like_it() {
        for (name, is_below) in [
            ("corp.example", true),
            ("www.corp.example", true),
            ("A.B.CORP.Example", true),
            ("acorp.example", false),
            ("example", false),
            ("corp.example.net", false),
            ("", false),
        ] {
            assert_eq!(question(name).is_below("corp.example"), is_below, "{name}");
        }
    }

    #[test]
    fn only_an_answer_to_this_question_with_this_id_counts() {
        let asked = query("www.corp.example");
        let question = Question::of(&asked).unwrap();
        let (id, sent) = question.with_own_id(&asked).unwrap();
        assert_eq!(sent.get(2..), asked.get(2..));
        let mut reply = sent.clone();
        reply[2] |= 0x80;

        assert!(question.is_answered_by(&reply.to_ascii_uppercase(), id) || id.to_ascii_uppercase() != id);
        assert!(question.is_answered_by(&reply, id));
        assert_eq!(question.with_clients_id(&reply, &asked).unwrap().get(..2), asked.get(..2));
        assert!(!question.is_answered_by(&reply, [id[0], id[1] ^ 1]));
        assert!(!question.is_answered_by(&sent, id), "a query is no answer");
        let mut other = query("www.corp.exampla");
        other[2] |= 0x80;
        assert!(!question.is_answered_by(&other, [7, 8]));
    }

    #[test]
    fn what_cannot_be_read_is_answered_as_such_and_an_answer_not_at_all() {
        let mut two = query("a.test");
        two[5] = 2;
        let refused = Question::of(&two).unwrap_err().unwrap();
        assert_eq!((&refused[..2], refused[2] & 0x80, refused[3] & 0x0f), (&[7, 8][..], 0x80, 1));
        // This name contains a pointer to another place in the message.
        let pointed = [&query("a.test")[..14], &[0xc0, 6, 0, 1, 0, 1][..], &[0; 16]].concat();
        assert_eq!(Question::of(&pointed).unwrap_err().unwrap()[3] & 0x0f, 1);
        let mut reply = query("a.test");
        reply[2] |= 0x80;
        assert!(Question::of(&reply).unwrap_err().is_none());
        assert!(Question::of(&[1, 2, 3]).unwrap_err().is_none());

        let failed = failure(&query("a.test"), &question("a.test")).unwrap();
        assert_eq!((failed[3] & 0x0f, failed[5], &failed[12..]), (2, 1, &query("a.test")[12..24]));
        assert!(question("a.test").is_worth_another(&failed));
    }

    proptest! {
        #[test]
        fn any_message_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64), name in "[a-z]{1,9}(\\.[a-z]{1,9}){0,3}", cut in 0..60_usize) {
            let mut cut_short = query(&name);
            cut_short.truncate(cut);
            for message in [bytes, cut_short] {
                match Question::of(&message) {
                    Ok(question) => prop_assert!(message.get(HEADER..).unwrap().starts_with(&question.bytes)),
                    Err(answer) => prop_assert!(answer.is_none_or(|answer| answer.len() == HEADER)),
                }
            }
        }
    }
}
