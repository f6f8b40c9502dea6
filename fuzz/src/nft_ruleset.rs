//! A ruleset that a daemon, which may have been taken over, has its helper load: what nft is then given must reach no table of others.

use warren_host::{OwnTables, Ruleset};

/// # Panics
/// When a ruleset is taken that nft would read as being about another table, or as more than rules.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let tables = OwnTables::of_profile("home");
    let Ok(ruleset) = Ruleset::parse(text, &tables) else { return };
    let given = ruleset.to_string();
    assert_eq!(Ruleset::parse(&given, &tables).as_ref(), Ok(&ruleset), "what it writes it reads");
    // The helper gives it to nft as it is, and on one line to one that owns its tables.
    for read in [given.clone(), given.replace('\n', "; ")] {
        for statement in statements(&read) {
            assert!(is_own(&statement), "{statement:?} of {read:?}");
            assert_eq!(looked_up(&statement), None, "in {read:?}");
        }
    }
}

/// Cuts a text as nft's own scanner would, which knows nothing of tables: at line ends and semicolons outside all braces. Braces in
/// comments and in quotes are none.
fn statements(text: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut depth = 0_i32;
    let mut quoted = false;
    for character in text.chars() {
        assert!(character == '\n' || (' '..='~').contains(&character), "{character:?} in {text:?}");
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

/// Whether a statement makes, fills or deletes a table of this profile's, and has no word that commands or reads anything.
fn is_own(statement: &str) -> bool {
    let words: Vec<&str> = statement.split([' ', '\n', ';']).filter(|word| !word.is_empty()).collect();
    let named = match words.as_slice() {
        ["add" | "delete" | "create", "table", "inet" | "arp", name] => name,
        ["table", "inet" | "arp", name, "{", .., "}"] => name,
        ["create", "table", "inet" | "arp", name, "{", .., "}"] => name,
        _ => return false,
    };
    let commands = [
        "include", "define", "redefine", "undefine", "flush", "table", "list", "monitor", "insert", "replace",
    ];
    let inside = words.iter().skip_while(|word| **word != "{");
    ["warren_home", "warren-dns_home", "warren-kill-switch_home"].contains(named)
        && !inside.into_iter().any(|word| commands.contains(word))
}

/// What nft would take for a name, of a host or a service: a word in the place of an address or a port, or joined to one.
fn looked_up(statement: &str) -> Option<String> {
    let words: Vec<&str> = statement.split([' ', '\n', ';']).filter(|word| !word.is_empty()).collect();
    let is_value =
        |word: &str| word.contains(|character: char| character.is_ascii_digit() || character == ':');
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    for (index, &at) in words.iter().enumerate() {
        let before = |steps: usize| index.checked_sub(steps).map(word).unwrap_or_default();
        let is_joined = match at {
            "&" => before(1) == "flags" && before(2) == "tcp",
            "|" => {
                [before(1), word(index + 1)].iter().all(|flag| ["syn", "ack", "fin", "rst"].contains(flag))
            }
            "(" => before(1) == "&",
            "+" | "-" => before(2) == "priority" && is_value(word(index + 1)),
            _ => true,
        };
        if !is_joined {
            return Some(format!("{} {at} {}", before(1), word(index + 1)));
        }
        let fields = ["daddr", "saddr", "dport", "sport", "to", "elements"];
        if !fields.contains(&at) {
            continue;
        }
        let first = (index + 1..).find(|next| !["==", "!=", "=", "ip"].contains(&word(*next)))?;
        let values = match word(first) {
            "{" => (first + 1..).map(word).take_while(|value| *value != "}").collect(),
            "." | "@" | "ct" | "type" => Vec::new(),
            value => vec![value],
        };
        if let Some(name) = values.into_iter().find(|value| ![",", "."].contains(value) && !is_value(value)) {
            return Some(format!("{at} {name}"));
        }
        if is_value(word(first)) && [",", "."].contains(&word(first + 1)) {
            return Some(format!("{at} {} {}", word(first), word(first + 1)));
        }
    }
    None
}
