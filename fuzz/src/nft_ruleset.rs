//! A ruleset that a daemon asks its helper to load. The daemon may be compromised, so the text that the helper passes to nft must
//! affect only the profile's own tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use warren_host::{OwnTables, Ruleset};

/// # Panics
/// If `Ruleset` accepts a text that nft would read as a change of another table or as another command, or in which nft would look
/// up a name.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let tables = OwnTables::of_profile("home");
    let Ok(ruleset) = Ruleset::parse(text, &tables) else { return };
    let given = ruleset.to_string();
    assert_eq!(Ruleset::parse(&given, &tables).as_ref(), Ok(&ruleset), "what it writes it reads");
    // The helper passes the text unchanged to nft. Only for an interactive nft, which owns its tables, it puts the text on one
    // line.
    for read in [given.clone(), given.replace('\n', "; ")] {
        for statement in statements(&read) {
            assert!(is_own(&statement), "{statement:?} of {read:?}");
            assert_eq!(looked_up(&statement), None, "in {read:?}");
        }
    }
}

/// Divides a text into statements at line ends and semicolons outside of braces, as nft's scanner does. Panics if a brace is in
/// quotes or if the text has a comment, because nft would not count such braces.
fn statements(text: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut depth = 0_i32;
    let mut quoted = false;
    for character in text.chars() {
        // Only printable ASCII is allowed, so that nft reads the text in the same way as this function.
        assert!(character == '\n' || (' '..='~').contains(&character), "{character:?} in {text:?}");
        // In nft's syntax, some of these characters start comments, variables or continued lines.
        assert!(!"#$\\'`*".contains(character), "{character:?} in {text:?}");
        match character {
            '"' => quoted = !quoted,
            '\n' | ';' | '{' | '}' if quoted => panic!("{character:?} in quotes of {text:?}"),
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        assert!(depth >= 0, "a block too many ends in {text:?}");
        match (depth, character, statements.last_mut()) {
            (0, '\n' | ';', _) => statements.push(String::new()),
            (_, _, Some(statement)) => statement.push(character),
            (_, _, None) => {}
        }
    }
    assert!(depth == 0 && !quoted, "{text:?} does not end");
    statements.retain(|statement| !statement.trim().is_empty());
    statements
}

/// Returns whether a statement only creates, fills, empties or deletes a table of this profile or its contents.
fn is_own(statement: &str) -> bool {
    let words: Vec<&str> = statement.split([' ', '\n', ';']).filter(|word| !word.is_empty()).collect();
    let named = match words.as_slice() {
        ["add" | "delete" | "create" | "flush", "table", "inet" | "arp", name] => name,
        ["delete", "chain" | "set", "inet" | "arp", name, _] => name,
        ["table", "inet" | "arp", name, "{", .., "}"] => name,
        ["create", "table", "inet" | "arp", name, "{", .., "}"] => name,
        _ => return false,
    };
    let commands = [
        "include", "define", "redefine", "undefine", "flush", "table", "list", "monitor", "insert", "replace",
    ];
    // The words before the brace were checked above.
    let inside = words.iter().skip_while(|word| **word != "{");
    ["warren_home", "warren-dns_home", "warren-kill-switch_home"].contains(named)
        && !inside.into_iter().any(|word| commands.contains(word))
}

/// Returns a word that nft would look up as the name of a host or service. This is a word in the place of an address, port or
/// mark that is not numeric, or an operand of an operator in an expression that is not one of the known forms.
fn looked_up(statement: &str) -> Option<String> {
    let words: Vec<&str> = statement.split([' ', '\n', ';']).filter(|word| !word.is_empty()).collect();
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    for (index, &at) in words.iter().enumerate() {
        let before = |steps: usize| index.checked_sub(steps).map(word).unwrap_or_default();
        let is_joined = match at {
            "&" if ["daddr", "saddr"].contains(&before(1)) => {
                word(index + 1).parse::<IpAddr>().is_ok()
                    && [word(index + 2), word(index + 3)] == ["ct", "count"]
            }
            "&" => before(1) == "flags" && before(2) == "tcp",
            "|" => {
                [before(1), word(index + 1)].iter().all(|flag| ["syn", "ack", "fin", "rst"].contains(flag))
            }
            "(" => before(1) == "&",
            "+" | "-" => before(2) == "priority" && is_decimal(word(index + 1), u32::MAX),
            _ => true,
        };
        if !is_joined {
            return Some(format!("{} {at} {}", before(1), word(index + 1)));
        }
        if !is_field(at) {
            continue;
        }
        let first = (index + 1..).find(|next| !["==", "!=", "=", "ip", "set"].contains(&word(*next)))?;
        // A concatenation has several fields joined by dots. `fields` gets all fields up to this one, in the order of the text.
        let mut fields = vec![(before(1), at)];
        let mut place = index;
        while place >= 4 && word(place - 2) == "." {
            place -= 3;
            fields.insert(0, (place.checked_sub(1).map(word).unwrap_or_default(), word(place)));
        }
        let elements: Vec<&str> = match word(first) {
            "{" => (first + 1..).map(word).take_while(|value| !["}", ""].contains(value)).collect(),
            "." | "@" | "ct" | "type" | "&" => continue,
            value => vec![value],
        };
        for element in elements.split(|value| *value == ",") {
            let values: Vec<String> =
                element.split(|value| *value == ".").map(|value| value.join(" ")).collect();
            let all = fields.iter().zip(&values).all(|(field, value)| is_value(*field, value));
            if values.len() != fields.len() || !all {
                return Some(format!("{at} {}", element.join(" ")));
            }
        }
        if word(first) != "{" && [",", "."].contains(&word(first + 1)) {
            return Some(format!("{at} {} {}", word(first), word(first + 1)));
        }
    }
    None
}

/// Returns whether nft would look up names among the values of this field.
fn is_field(word: &str) -> bool {
    let fields =
        ["daddr", "saddr", "dport", "sport", "proto-dst", "proto-src", "to", "mark", "iifgroup", "oifgroup"];
    fields.contains(&word)
}

/// Returns whether a word is a numeric value of a field, which nft does not look up. `before` is the word before the field.
fn is_value((before, field): (&str, &str), word: &str) -> bool {
    // A range is numeric if both of its ends are.
    let ends = |word: &str| {
        word.split_once('-').map_or((word.to_owned(), word.to_owned()), |(a, b)| (a.into(), b.into()))
    };
    let (first, last): (String, String) =
        ends(word.strip_prefix(':').filter(|_| field == "to").unwrap_or(word));
    let both = |is: &dyn Fn(&str) -> bool| is(&first) && is(&last);
    match field {
        "daddr" | "saddr" => {
            let address = word.split('/').next().unwrap_or_default();
            let is_whole =
                !word.contains('-') && word.split('/').nth(1).is_none_or(|length| is_decimal(length, 128));
            if before == "ip6" {
                is_whole && address.parse::<Ipv6Addr>().is_ok()
                    || both(&|end| end.parse::<Ipv6Addr>().is_ok())
            } else {
                is_whole && address.parse::<Ipv4Addr>().is_ok()
                    || both(&|end| end.parse::<Ipv4Addr>().is_ok())
            }
        }
        "to" => word.starts_with(':') && both(&|end| is_decimal(end, 65_535)),
        "dport" | "sport" | "proto-dst" | "proto-src" => both(&|end| is_decimal(end, 65_535)),
        _ => {
            is_decimal(word, u32::MAX)
                || word.strip_prefix("0x").is_some_and(|digits| u32::from_str_radix(digits, 16).is_ok())
        }
    }
}

fn is_decimal(word: &str, most: u32) -> bool {
    // `parse` also accepts a plus sign and leading zeros, which are refused here.
    word.parse::<u32>().is_ok_and(|number| number <= most && number.to_string() == word)
}
