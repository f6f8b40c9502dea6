//! Writes DNS queries for addresses and reads their answers (RFC 1035 section 4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The types of records that hold an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordType {
    A = 1,
    Aaaa = 28,
}

/// The length of a message's header in bytes.
const HEADER: usize = 12;
/// Maximum number of labels of a name, which has at most 255 bytes (RFC 1035 section 2.3.4).
const MOST_LABELS: usize = 128;

/// Writes a query. `None` when DNS does not allow the name.
pub(super) fn query(id: [u8; 2], name: &str, record: RecordType) -> Option<Vec<u8>> {
    let recursion_desired = 0x01;
    let mut message = vec![id[0], id[1], recursion_desired, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(question(name, record)?);
    Some(message)
}

/// Reads the addresses from the answer to [`query`]. `None` when the message is not that answer. The list is empty when the server
/// does not know the name.
pub(super) fn addresses(message: &[u8], id: [u8; 2], name: &str, record: RecordType) -> Option<Vec<IpAddr>> {
    let question = question(name, record)?;
    let header: [u8; HEADER] = message.get(..HEADER)?.try_into().ok()?;
    // The counts are those of questions and of answer records (RFC 1035 section 4.1.1).
    let [id_high, id_low, flags, response_code, q_high, q_low, a_high, a_low, ..] = header;
    let is_response = flags & 0x80 != 0;
    let asked = message.get(HEADER..HEADER + question.len())?;
    let is_answer = [id_high, id_low] == id && is_response && [q_high, q_low] == [0, 1];
    // A server may write the name in another case (RFC 4343).
    if !is_answer || !asked.eq_ignore_ascii_case(&question) {
        return None;
    }
    if response_code & 0x0f != 0 {
        return Some(Vec::new());
    }
    let mut rest = message.get(HEADER + question.len()..)?;
    let mut found = Vec::new();
    for _ in 0..u16::from_be_bytes([a_high, a_low]) {
        rest = skip_name(rest)?;
        let [t0, t1, c0, c1, _, _, _, _, l0, l1] = *rest.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let data = rest.get(10..10 + length)?;
        rest = rest.get(10 + length..)?;
        // The response for an alias (CNAME) also has the records of the alias's target. So every address in it belongs to the
        // name, no matter which name its record has.
        if [c0, c1] == [0, 1] && u16::from_be_bytes([t0, t1]) == record as u16 {
            found.extend(address(data));
        }
    }
    Some(found)
}

fn question(name: &str, record: RecordType) -> Option<Vec<u8>> {
    let mut question = Vec::with_capacity(name.len() + 6);
    for label in name.trim_end_matches('.').split('.') {
        // The two upper bits of a length mark a pointer, so a label has at most 63 bytes (RFC 1035 section 4.1.4).
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        question.push(length);
        question.extend(label.bytes());
    }
    question.push(0);
    question.extend((record as u16).to_be_bytes());
    question.extend([0, 1]);
    Some(question)
}

fn skip_name(mut rest: &[u8]) -> Option<&[u8]> {
    // Pointers are not followed, so a message whose pointers form a loop does no harm.
    for _ in 0..MOST_LABELS {
        match rest.first()? {
            0 => return rest.get(1..),
            // A pointer is the end of the name.
            pointer if pointer & 0xc0 == 0xc0 => return rest.get(2..),
            length => rest = rest.get(1 + usize::from(*length)..)?,
        }
    }
    None
}

fn address(data: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(data).map(|octets| Ipv4Addr::from(octets).into());
    let ipv6 = || <[u8; 16]>::try_from(data).map(|octets| Ipv6Addr::from(octets).into());
    ipv4.or_else(|_| ipv6()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(response_code: u8, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = query([7, 8], "exit.example.net", RecordType::A).unwrap();
        message[2] |= 0x80;
        message[3] = response_code;
        message[7] = u8::try_from(records.len()).unwrap();
        for (record, data) in records {
            message.extend([0xc0, 12]);
            message.extend(record.to_be_bytes());
            message.extend([0, 1, 0, 0, 0, 60]);
            message.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            message.extend(*data);
        }
        message
    }

    #[test]
    fn addresses_are_read_past_an_alias() {
        let message = answer(0, &[(5, b"\x05other\xc0\x11"), (1, &[192, 0, 2, 7]), (1, &[192, 0, 2, 8])]);
        let found = addresses(&message, [7, 8], "exit.Example.net", RecordType::A).unwrap();
        assert_eq!(found, ["192.0.2.7".parse::<IpAddr>().unwrap(), "192.0.2.8".parse().unwrap()]);
    }

    #[test]
    fn message_that_does_not_answer_the_question_is_ignored() {
        let message = answer(0, &[(1, &[192, 0, 2, 7])]);
        let read = |message: &[u8], id, name| addresses(message, id, name, RecordType::A);
        assert!(read(&message, [7, 8], "exit.example.net").is_some());
        assert_eq!(read(&message, [7, 9], "exit.example.net"), None);
        assert_eq!(read(&message, [7, 8], "exit.example.org"), None);
        assert_eq!(read(&answer(3, &[]), [7, 8], "exit.example.net"), Some(Vec::new()), "no such name");
        assert_eq!(
            read(&query([7, 8], "exit.example.net", RecordType::A).unwrap(), [7, 8], "exit.example.net"),
            None
        );
    }

    #[test]
    fn a_name_that_does_not_fit_is_not_asked_for() {
        assert_eq!(query([0, 0], &"a".repeat(64), RecordType::A), None);
        assert_eq!(query([0, 0], "a..b", RecordType::Aaaa), None);
    }

    proptest! {
        #[test]
        fn any_message_is_read_or_refused(cut in 0..80_usize, flips in proptest::collection::vec((0..80_usize, any::<u8>()), 0..6)) {
            let mut message = answer(0, &[(1, &[192, 0, 2, 7]), (28, &[1; 16])]);
            message.truncate(cut);
            for (place, value) in flips {
                if let Some(byte) = message.get_mut(place) {
                    *byte = value;
                }
            }
            let found = addresses(&message, [7, 8], "exit.example.net", RecordType::A);
            prop_assert!(found.is_none_or(|found| found.len() < message.len()));
        }
    }
}
