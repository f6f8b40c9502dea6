//! The language of Warren's own rulesets. One process sends such a text to another process, which parses the whole text and
//! loads it.
//!
//! nft(8) never gets the text itself. It gets the parsed tokens, written out again. So the text can use only the part of nft's
//! language that is listed here. It cannot name other tables, include files, or use variables or comments. Nor can it use a
//! word that nft would look up in a file or ask a name server for.

mod value;
mod words;

use std::{fmt, net::IpAddr};

use self::value::{Kind, is_number};
use self::words::{
    BESIDE_VALUES, COMMANDS, DEVICE_WORDS, FIELDS, PRIORITIES, SET_FLAGS, SET_TYPES, STATE_WORDS, TCP_FLAGS,
    WORDS,
};
use super::OwnTables;
use crate::{DeviceName, TableFamily};

/// A ruleset about Warren's own tables alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset<'text>(Vec<Token<'text>>);

/// Errors in a ruleset's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesetError {
    /// The text has an unexpected token in this place.
    #[error("{0:?} is not allowed in this place of a ruleset of Warren's")]
    Unexpected(String),
    /// The text is about another table.
    #[error("the table {0:?} is not one of this daemon's")]
    OtherTable(String),
    /// The text ends within a block.
    #[error("the ruleset ends in the middle of a block")]
    Unfinished,
}

impl<'text> Ruleset<'text> {
    /// Reads a ruleset about `tables`.
    ///
    /// # Errors
    /// If anything in the text is outside of this language, or is about another table.
    pub fn parse(text: &'text str, tables: &OwnTables) -> Result<Self, RulesetError> {
        let tokens = tokens(text)?;
        Reader { rest: &tokens, tables }.ruleset()?;
        Ok(Self(tokens))
    }
}

impl fmt::Display for Ruleset<'_> {
    /// Writes the lines as they were read, with a space before each token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for token in &self.0 {
            match token {
                Token::LineEnd => f.write_str("\n")?,
                Token::Device(name) | Token::Group(name) => write!(f, "{between}\"{name}\"")?,
                Token::Word(text) | Token::Symbol(text) => write!(f, "{between}{text}")?,
            }
            between = if *token == Token::LineEnd { "" } else { " " };
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'text> {
    Word(&'text str),
    /// A quoted text.
    Device(&'text str),
    /// A quoted path of one of Warren's cgroups.
    Group(&'text str),
    Symbol(&'text str),
    LineEnd,
}

impl Token<'_> {
    fn unexpected(self) -> RulesetError {
        match self {
            Self::Word(text) | Self::Device(text) | Self::Group(text) | Self::Symbol(text) => {
                unexpected(text)
            }
            Self::LineEnd => unexpected("\n"),
        }
    }

    /// Whether a statement ends here.
    fn is_end(self) -> bool {
        matches!(self, Self::LineEnd | Self::Symbol(";"))
    }
}

fn unexpected(text: &str) -> RulesetError {
    RulesetError::Unexpected(text.chars().take(LONGEST_QUOTE).collect())
}

/// Whether a quoted text is the path of one of Warren's cgroups below /sys/fs/cgroup, without characters that have a
/// meaning in nft's language.
fn is_group(text: &str) -> bool {
    let path = text.strip_prefix("unified/").unwrap_or(text);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || br"._-/\".contains(&byte);
    ["warren.slice/", "warren_outside.slice/", "warren_portal.slice/"].iter().any(|own| path.starts_with(own))
        && path.bytes().all(is_plain)
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, RulesetError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(BLANKS);
    while !rest.is_empty() {
        let (token, after) = token(rest)?;
        tokens.push(token);
        rest = after.trim_start_matches(BLANKS);
    }
    Ok(tokens)
}

/// Splits off the first token of a text that is not empty. Returns the token and the rest.
fn token(text: &str) -> Result<(Token<'_>, &str), RulesetError> {
    if let Some(after) = text.strip_prefix('\n') {
        return Ok((Token::LineEnd, after));
    }
    if let Some(quoted) = text.strip_prefix('"') {
        let (name, after) = quoted.split_once('"').ok_or(RulesetError::Unfinished)?;
        if is_group(name) {
            return Ok((Token::Group(name), after));
        }
        // None of these characters has a meaning in nft's language.
        let name = DeviceName::new(name).map(|_| name).map_err(|_| unexpected(name))?;
        return Ok((Token::Device(name), after));
    }
    let is_word = |character: char| character.is_ascii_alphanumeric() || "_.:/-".contains(character);
    let length = text.find(|character| !is_word(character)).unwrap_or(text.len());
    if let Some((word, after)) = text.split_at_checked(length).filter(|(word, _)| !word.is_empty()) {
        return Ok((Token::Word(word), after));
    }
    let symbol = SYMBOLS.iter().find_map(|symbol| Some((Token::Symbol(symbol), text.strip_prefix(symbol)?)));
    symbol.ok_or_else(|| unexpected(text))
}

/// The tokens left to read, and the tables that they may name.
struct Reader<'text, 'tokens> {
    rest: &'tokens [Token<'text>],
    tables: &'tokens OwnTables,
}

#[allow(clippy::wildcard_enum_match_arm, reason = "whatever is not listed is refused")]
impl<'text> Reader<'text, '_> {
    fn ruleset(&mut self) -> Result<(), RulesetError> {
        while let Some(token) = self.next() {
            match token {
                end if end.is_end() => continue,
                Token::Word("table") => {
                    self.table()?;
                    self.block()?;
                }
                Token::Word("add" | "flush") => {
                    self.expect(Token::Word("table"))?;
                    self.table()?;
                }
                Token::Word("delete") => match self.some()? {
                    Token::Word("table") => self.table()?,
                    Token::Word("chain" | "set") => {
                        self.table()?;
                        self.name()?;
                    }
                    other => return Err(other.unexpected()),
                },
                Token::Word("create") => {
                    self.expect(Token::Word("table"))?;
                    self.table()?;
                    if self.peek() == Some(OPENING) {
                        self.block()?;
                    }
                }
                other => return Err(other.unexpected()),
            }
            self.end()?;
        }
        Ok(())
    }

    /// A family and the name of one of the process's own tables.
    fn table(&mut self) -> Result<(), RulesetError> {
        match self.some()? {
            Token::Word(family) if TableFamily::is_known(family) => {}
            other => return Err(other.unexpected()),
        }
        match self.some()? {
            Token::Word(name) if self.tables.has(name) => Ok(()),
            Token::Word(name) => Err(RulesetError::OtherTable(name.chars().take(LONGEST_QUOTE).collect())),
            other => Err(other.unexpected()),
        }
    }

    /// A table's flags, chains and sets.
    fn block(&mut self) -> Result<(), RulesetError> {
        self.expect(OPENING)?;
        loop {
            match self.some()? {
                CLOSING => return Ok(()),
                end if end.is_end() => continue,
                Token::Word("flags") => self.expect(Token::Word("owner"))?,
                Token::Word("chain" | "set") => {
                    self.name()?;
                    self.expect(OPENING)?;
                    self.body()?;
                }
                other => return Err(other.unexpected()),
            }
            self.end()?;
        }
    }

    /// The content of a chain or a set, to its end.
    fn body(&mut self) -> Result<(), RulesetError> {
        let mut depth = 1;
        let mut before = "";
        while depth > 0 {
            let token = self.some()?;
            let Token::Word(word) = token else {
                before = "";
                depth = self.symbol(token, depth)?;
                continue;
            };
            self.word(word, before)?;
            before = word;
        }
        Ok(())
    }

    /// Reads a token other than a word in a chain or a set. Returns the depth of blocks after it.
    fn symbol(&mut self, token: Token<'text>, depth: u8) -> Result<u8, RulesetError> {
        match token {
            OPENING if depth < DEEPEST => return Ok(depth + 1),
            CLOSING => return Ok(depth - 1),
            // `;` ends a statement of a chain or set. Commas separate the elements of a set within a rule.
            Token::Symbol(";") if depth == 1 => {}
            Token::Symbol("@") => {
                self.name()?;
                self.key()?;
            }
            Token::Symbol("==" | "!=") | Token::LineEnd => {}
            Token::Symbol(",") if depth > 1 => {}
            other => return Err(other.unexpected()),
        }
        Ok(depth)
    }

    /// Reads a word in a chain or a set, and the operands that it needs. `before` is the previous word.
    fn word(&mut self, word: &'text str, before: &str) -> Result<(), RulesetError> {
        if let Some(kind) = Kind::after(word, before) {
            return self.values(&[kind]);
        }
        match word {
            "jump" | "goto" => self.name(),
            "flags" => self.flags(),
            "priority" => self.priority(),
            "timeout" => self.value(Kind::Seconds),
            "elements" => self.elements_for_a_time(),
            // The types of a set's elements are joined.
            "." if SET_TYPES.contains(&before) => match self.peek() {
                Some(Token::Word(next)) if SET_TYPES.contains(&next) => Ok(()),
                _ => Err(unexpected(word)),
            },
            "socket" => self.socket(),
            "dnat" if before != "status" => self.translation(),
            "update" => self.update(),
            word if DEVICE_WORDS.contains(&word) => self.devices(),
            word if before == "ct" && STATE_WORDS.contains(&word) => self.states(),
            word if WORDS.contains(&word) || is_number(word) => Ok(()),
            word if before == "over" && word.strip_suffix("/second").is_some_and(is_number) => Ok(()),
            word => Err(unexpected(word)),
        }
    }

    /// Reads names of devices to compare with, if there are any. Elsewhere nft treats quoted text as the name of a
    /// host or a user.
    fn devices(&mut self) -> Result<(), RulesetError> {
        if let Some(Token::Symbol("!=" | "==")) = self.peek() {
            self.next();
        }
        match self.rest {
            [Token::Device(_), ..] => self.next(),
            [OPENING, Token::Device(_), ..] => loop {
                self.next();
                let Token::Device(_) = self.some()? else { return Err(unexpected("{")) };
                match self.peek() {
                    Some(Token::Symbol(",")) => continue,
                    _ => break self.expect(CLOSING).map(|()| None)?,
                }
            },
            _ => None,
        };
        Ok(())
    }

    /// Reads the value that one field, or several joined fields, are compared with or set to. nft would look up any other word
    /// as a name, even one joined to a value.
    fn values(&mut self, kinds: &[Kind]) -> Result<(), RulesetError> {
        match (self.peek(), kinds) {
            // ARP matches have addresses of two kinds.
            (Some(Token::Word("ip")), [Kind::Ipv4])
            | (Some(Token::Word("set")), [Kind::Number | Kind::Ipv4 | Kind::Ipv6]) => {
                self.next();
            }
            _ => self.operator(),
        }
        match (self.some()?, kinds) {
            (Token::Word("."), _) if kinds.len() < MOST_JOINED => {
                let [Token::Word(field), Token::Word(word), rest @ ..] = self.rest else {
                    return Err(unexpected("."));
                };
                let kind = Kind::after(word, field).filter(|_| FIELDS.contains(field));
                self.rest = rest;
                self.values(&[kinds, &[kind.ok_or_else(|| unexpected(word))?]].concat())
            }
            (Token::Word(word), [kind]) if kind.has(word) => match self.peek() {
                Some(joined @ (Token::Symbol(",") | Token::Word("."))) => Err(joined.unexpected()),
                _ => Ok(()),
            },
            (Token::Word(word), [_]) if BESIDE_VALUES.contains(&word) => Ok(()),
            (Token::Symbol("@"), _) => {
                self.name()?;
                self.key()
            }
            (Token::Symbol("&"), [Kind::Ipv4 | Kind::Ipv6]) => self.mask(),
            (OPENING, _) => self.elements(kinds),
            (other, _) => Err(other.unexpected()),
        }
    }

    /// Reads the initial elements of a set: ports, each with a timeout. nft would look up any other word.
    fn elements_for_a_time(&mut self) -> Result<(), RulesetError> {
        self.expect(Token::Symbol("="))?;
        self.expect(OPENING)?;
        loop {
            self.value(Kind::Port)?;
            self.expect(Token::Word("timeout"))?;
            self.value(Kind::Seconds)?;
            match self.some()? {
                CLOSING => return Ok(()),
                Token::Symbol(",") => {}
                other => return Err(other.unexpected()),
            }
        }
    }

    /// Reads the elements of a set in a rule. `kinds` are the kinds of an element's parts.
    fn elements(&mut self, kinds: &[Kind]) -> Result<(), RulesetError> {
        loop {
            for (index, kind) in kinds.iter().enumerate() {
                if index > 0 {
                    self.expect(Token::Word("."))?;
                }
                match self.some()? {
                    Token::Word(word) if kind.has(word) => {}
                    other => return Err(other.unexpected()),
                }
            }
            match self.some()? {
                CLOSING => return Ok(()),
                Token::Symbol(",") => {}
                other => return Err(other.unexpected()),
            }
        }
    }

    /// Reads the mask of an address that flows are counted by.
    fn mask(&mut self) -> Result<(), RulesetError> {
        match self.some()? {
            Token::Word(word) if word.parse::<IpAddr>().is_ok() => {}
            other => return Err(other.unexpected()),
        }
        match self.rest {
            [Token::Word("ct"), Token::Word("count"), ..] => Ok(()),
            _ => Err(unexpected("&")),
        }
    }

    /// Reads the cgroup that a packet's socket is in, or the socket's mark.
    fn socket(&mut self) -> Result<(), RulesetError> {
        if let Some(Token::Word("mark")) = self.peek() {
            self.next();
            return self.values(&[Kind::Number]);
        }
        self.expect(Token::Word("cgroupv2"))?;
        self.expect(Token::Word("level"))?;
        match (self.some()?, self.some()?) {
            (Token::Word(level), Token::Group(_)) if is_number(level) => Ok(()),
            (_, other) => Err(other.unexpected()),
        }
    }

    /// Reads alternative states of a connection, such as `established,related`.
    fn states(&mut self) -> Result<(), RulesetError> {
        self.operator();
        while let Some(Token::Word(word)) =
            self.peek().filter(|_| self.rest.get(1) == Some(&Token::Symbol(",")))
        {
            if !WORDS.contains(&word) {
                return Err(unexpected(word));
            }
            self.rest = self.rest.get(2..).unwrap_or_default();
        }
        Ok(())
    }

    /// Reads TCP flags, or the flags of a set. Only TCP flags are compared.
    fn flags(&mut self) -> Result<(), RulesetError> {
        if self.peek() != Some(Token::Symbol("&")) {
            return self.set_flags();
        }
        self.next();
        self.expect(Token::Symbol("("))?;
        loop {
            self.flag()?;
            match self.some()? {
                Token::Symbol("|") => continue,
                Token::Symbol(")") => break,
                other => return Err(other.unexpected()),
            }
        }
        self.operator();
        self.flag()
    }

    /// Reads the flags of a set, which commas separate.
    fn set_flags(&mut self) -> Result<(), RulesetError> {
        loop {
            match self.some()? {
                Token::Word(flag) if SET_FLAGS.contains(&flag) => {}
                other => return Err(other.unexpected()),
            }
            if self.peek() != Some(Token::Symbol(",")) {
                return Ok(());
            }
            self.next();
        }
    }

    /// Reads the new destination of a packet: one address for all packets, or one for each original port, perhaps with another
    /// port. nft would look up any other word as the name of a host.
    fn translation(&mut self) -> Result<(), RulesetError> {
        let address = match self.some()? {
            Token::Word("ip") => Kind::Ipv4,
            Token::Word("ip6") => Kind::Ipv6,
            other => return Err(other.unexpected()),
        };
        let has_port = self.peek() == Some(Token::Word("addr"));
        let joined = ["addr", ".", "port"].map(Token::Word);
        joined.into_iter().filter(|_| has_port).try_for_each(|token| self.expect(token))?;
        self.expect(Token::Word("to"))?;
        match self.some()? {
            Token::Word("tcp" | "udp") => {}
            Token::Word(word) if !has_port && address.has(word) && word.parse::<IpAddr>().is_ok() => {
                return Ok(());
            }
            other => return Err(other.unexpected()),
        }
        self.expect(Token::Word("dport"))?;
        self.expect(Token::Word("map"))?;
        self.expect(OPENING)?;
        loop {
            self.value(Kind::Port)?;
            self.expect(Token::Word(":"))?;
            self.value(address)?;
            if has_port {
                self.expect(Token::Word("."))?;
                self.value(Kind::Port)?;
            }
            match self.some()? {
                CLOSING => return Ok(()),
                Token::Symbol(",") => {}
                other => return Err(other.unexpected()),
            }
        }
    }

    fn value(&mut self, kind: Kind) -> Result<(), RulesetError> {
        match self.some()? {
            Token::Word(word) if kind.has(word) => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// Reads a set, and the packet's fields that are added to it.
    fn update(&mut self) -> Result<(), RulesetError> {
        self.expect(Token::Symbol("@"))?;
        self.name()?;
        self.expect(OPENING)?;
        loop {
            match (self.some()?, self.some()?) {
                (Token::Word(field), Token::Word(word))
                    if FIELDS.contains(&field) && Kind::after(word, field).is_some() => {}
                (other, _) => return Err(other.unexpected()),
            }
            match self.some()? {
                CLOSING => return Ok(()),
                Token::Word(".") => {}
                other => return Err(other.unexpected()),
            }
        }
    }

    fn flag(&mut self) -> Result<(), RulesetError> {
        match self.some()? {
            Token::Word(flag) if TCP_FLAGS.contains(&flag) => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// Reads a chain's priority.
    fn priority(&mut self) -> Result<(), RulesetError> {
        match self.some()? {
            Token::Word(word) if is_number(word.strip_prefix('-').unwrap_or(word)) => return Ok(()),
            Token::Word(word) if PRIORITIES.contains(&word) => {}
            other => return Err(other.unexpected()),
        }
        if let Some(Token::Symbol("+") | Token::Word("-")) = self.peek() {
            self.next();
            match self.some()? {
                Token::Word(word) if is_number(word) => {}
                other => return Err(other.unexpected()),
            }
        }
        Ok(())
    }

    /// Reads an operator that compares two values or assigns one.
    fn operator(&mut self) {
        if let Some(Token::Symbol("!=" | "==" | "=")) = self.peek() {
            self.next();
        }
    }

    /// Reads the packet's field that a rule adds to a set, if it adds one.
    fn key(&self) -> Result<(), RulesetError> {
        match self.rest {
            [OPENING, Token::Word("ip" | "ip6" | "ct" | "meta" | "tcp" | "udp" | "th"), ..] => Ok(()),
            [OPENING, ..] => Err(unexpected("{")),
            _ => Ok(()),
        }
    }

    /// Reads the name of a chain or a set.
    fn name(&mut self) -> Result<(), RulesetError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        match self.some()? {
            Token::Word(command) if COMMANDS.contains(&command) => Err(unexpected(command)),
            Token::Word(name) if name.starts_with(|first: char| first.is_ascii_lowercase()) => {
                if name.bytes().all(allowed) { Ok(()) } else { Err(unexpected(name)) }
            }
            other => Err(other.unexpected()),
        }
    }

    /// Reads the end of a statement. The end of the statement's block counts as well.
    fn end(&self) -> Result<(), RulesetError> {
        match self.peek() {
            None | Some(CLOSING) => Ok(()),
            Some(token) if token.is_end() => Ok(()),
            Some(other) => Err(other.unexpected()),
        }
    }

    fn expect(&mut self, wanted: Token<'_>) -> Result<(), RulesetError> {
        let token = self.some()?;
        if token == wanted { Ok(()) } else { Err(token.unexpected()) }
    }

    fn some(&mut self) -> Result<Token<'text>, RulesetError> {
        self.next().ok_or(RulesetError::Unfinished)
    }

    fn next(&mut self) -> Option<Token<'text>> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn peek(&self) -> Option<Token<'text>> {
        self.rest.first().copied()
    }
}

const BLANKS: [char; 2] = [' ', '\t'];
const OPENING: Token<'_> = Token::Symbol("{");
const CLOSING: Token<'_> = Token::Symbol("}");
const SYMBOLS: [&str; 13] = ["==", "!=", "{", "}", "(", ")", ",", ";", "&", "|", "@", "+", "="];
/// Maximum number of fields that one match joins.
const MOST_JOINED: usize = 4;
/// The deepest nesting: a set in a rule in a chain, and one more.
const DEEPEST: u8 = 3;
/// The most characters of refused text that an error shows.
const LONGEST_QUOTE: usize = 40;

#[cfg(test)]
mod tests;
