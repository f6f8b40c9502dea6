//! Reads a TOML text as sections, whose keys are read one by one into typed values.
//!
//! A section remembers which keys were asked for. So the code that reads keys also defines which keys exist. Any
//! other key in the file is an error with a suggestion.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::file::line_of;
use super::value::{Problem, Value};
use super::wording::{quoted, suggestion};

/// A file's path and text, to turn an offset into a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn line(&self, offset: usize) -> usize {
        line_of(self.text.as_bytes(), offset)
    }

    pub(super) fn error(&self, offset: usize, sentence: impl Into<String>) -> ConfigError {
        ConfigError::at_line(self.path, self.line(offset), sentence)
    }
}

/// A value and its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

/// A parsed file whose sections have not been read yet.
#[derive(Debug)]
pub(super) struct Document<'a> {
    source: Source<'a>,
    root: DeTable<'a>,
    asked: Vec<&'static str>,
}

impl<'a> Document<'a> {
    /// Parses TOML. Reports the first syntax error.
    pub(super) fn parse(path: &'a Path, text: &'a str) -> Result<Self, ConfigError> {
        let source = Source { path, text };
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { source, root: root.into_inner(), asked: Vec::new() }),
            Err(error) => {
                let span = error.span().unwrap_or(text.len()..text.len());
                let what = text.get(span.clone()).unwrap_or_default();
                Err(source.error(span.start, syntax_sentence(error.message(), what)))
            }
        }
    }

    /// The `[name]` section. If it is missing, the result is an empty section.
    pub(super) fn section(&mut self, name: &'static str) -> Result<Section<'_>, ConfigError> {
        self.asked.push(name);
        let Some((_, value)) = entry(&self.root, name) else {
            // An absent section reads like an empty one, so all its keys have their defaults.
            return Ok(Section::new(self.source, name, None, 0));
        };
        let start = value.span().start;
        if let Some(table) = value.get_ref().as_table() {
            return Ok(Section::new(self.source, name, Some(table), start));
        }
        // `[[name]]` parses as an array of tables.
        let sentence = if value.get_ref().get(0).is_some_and(|item| item.get_ref().is_table()) {
            format!("[[{name}]] is a list here; write [{name}], once")
        } else {
            format!("{name} is not a section; write [{name}] and its keys below it")
        };
        Err(self.source.error(start, sentence))
    }

    /// Every `[[name]]` table, in the order of the file.
    pub(super) fn sections(&mut self, name: &'static str) -> Result<Vec<Section<'_>>, ConfigError> {
        self.asked.push(name);
        let Some((_, value)) = entry(&self.root, name) else { return Ok(Vec::new()) };
        let wrong = |offset: usize, what: &str| {
            let sentence = format!("{what}; a profile lists its exits as [[{name}]], with double brackets");
            Err(self.source.error(offset, sentence))
        };
        if value.get_ref().is_table() {
            return wrong(value.span().start, &format!("[{name}] is a single section"));
        }
        let Some(items) = value.get_ref().as_array() else {
            return wrong(value.span().start, &format!("{name} is not a list of sections"));
        };
        let mut sections = Vec::new();
        for item in items.iter() {
            let DeValue::Table(table) = item.get_ref() else {
                return wrong(item.span().start, &format!("{name} is not a list of sections"));
            };
            sections.push(Section::new(self.source, name, Some(table), item.span().start));
        }
        Ok(sections)
    }

    /// Refuses sections that were not asked for.
    pub(super) fn finish(&self) -> Result<(), ConfigError> {
        let Some((key, value)) = first_unknown(&self.root, &self.asked) else { return Ok(()) };
        let known = self.asked.iter().map(|name| format!("[{name}]")).collect::<Vec<_>>().join(", ");
        let what = if value.get_ref().is_table() || value.get_ref().is_array() {
            format!("unknown section [{}]", bare(key.get_ref()))
        } else {
            format!("unknown key {} outside any section", quoted(key.get_ref()))
        };
        // Words from other programs differ too much from ours for a suggestion by similarity.
        let elsewhere = ELSEWHERE.iter().find(|(other, _)| key.get_ref().eq_ignore_ascii_case(other));
        let meant = elsewhere.map(|(_, name)| *name).filter(|name| self.asked.contains(name));
        let advice = meant.or_else(|| suggestion(key.get_ref(), self.asked.iter().copied())).map_or_else(
            || format!("; the sections are {known}"),
            |name| format!("; did you mean [{name}]?"),
        );
        Err(self.source.error(key.span().start, what + &advice))
    }
}

/// Names that people and other programs use for a section, each with the section's name in Warren.
const ELSEWHERE: [(&str, &str); 11] = [
    ("device", "tun"),
    ("interface", "tun"),
    ("tunnel", "tun"),
    ("peer", "exit"),
    ("server", "exit"),
    ("networks", "routes"),
    ("resolvers", "dns"),
    ("forward", "forwards"),
    ("port_forwards", "forwards"),
    ("firewall", "kill_switch"),
    ("lockdown", "kill_switch"),
];

/// One table of a file, from which typed values are read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    source: Source<'a>,
    name: &'static str,
    table: Option<&'a DeTable<'a>>,
    start: usize,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    fn new(source: Source<'a>, name: &'static str, table: Option<&'a DeTable<'a>>, start: usize) -> Self {
        Self { source, name, table, start, asked: Vec::new() }
    }

    /// The value of `key`, parsed by `parse`. `None` if the file does not set it.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(Value<'_>) -> Result<T, Problem>,
    ) -> Result<Option<Located<T>>, ConfigError> {
        self.asked.push(key);
        let Some((name, value)) = self.table.and_then(|table| entry(table, key)) else { return Ok(None) };
        // This is the line of the key. The value may be a list that spans several lines.
        let line = self.source.line(name.span().start);
        match parse(Value::new(value)) {
            Ok(value) => Ok(Some(Located { value, line })),
            Err(problem) => {
                let sentence = format!("{key} in [{}] {}", self.name, problem.sentence);
                Err(self.source.error(problem.offset, sentence))
            }
        }
    }

    /// The value of `key`, or `default` if the file does not set it.
    pub(super) fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl FnOnce(Value<'_>) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        Ok(self.optional(key, parse)?.map_or(default, |located| located.value))
    }

    /// Refuses keys that were not asked for. Call it before reporting a missing key, which may be a misspelt one.
    pub(super) fn finish(&self) -> Result<(), ConfigError> {
        let Some((key, _)) = self.table.and_then(|table| first_unknown(table, &self.asked)) else {
            return Ok(());
        };
        let what = format!("unknown key {} in [{}]", quoted(key.get_ref()), self.name);
        let advice = suggestion(key.get_ref(), self.asked.iter().copied()).map_or_else(
            || format!("; the keys are {}", self.asked.join(", ")),
            |name| format!("; did you mean \"{name}\"?"),
        );
        Err(self.source.error(key.span().start, what + &advice))
    }

    /// The error for a missing key. It is reported at the section's first line, or at the file's first line if there is no
    /// section.
    pub(super) fn missing(&self, key: &str, advice: &str) -> ConfigError {
        if self.table.is_none() {
            let sentence =
                format!("there is no section [{name}], which must have {key}; {advice}", name = self.name);
            return self.source.error(self.start, sentence);
        }
        self.source.error(self.start, format!("{key} is missing in [{}]; {advice}", self.name))
    }

    /// An error at a line of this section.
    pub(super) fn error(&self, line: usize, sentence: impl Into<String>) -> ConfigError {
        ConfigError::at_line(self.source.path, line, sentence)
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &'a Path {
        self.source.path
    }
}

type Entry<'t, 'a> = (&'t Spanned<std::borrow::Cow<'a, str>>, &'t Spanned<DeValue<'a>>);

fn entry<'t, 'a>(table: &'t DeTable<'a>, key: &str) -> Option<Entry<'t, 'a>> {
    table.iter().find(|(name, _)| name.get_ref() == key)
}

/// Returns the first unknown key in the file.
fn first_unknown<'t, 'a>(table: &'t DeTable<'a>, known: &[&str]) -> Option<Entry<'t, 'a>> {
    table
        .iter()
        .filter(|(name, _)| !known.contains(&name.get_ref().as_ref()))
        .min_by_key(|(name, _)| name.span().start)
}

/// A section's name as it is written between brackets.
fn bare(name: &str) -> String {
    let quoted = quoted(name);
    if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        quoted.trim_matches('"').to_owned()
    } else {
        quoted
    }
}

/// A TOML error as a sentence that says what to do.
///
/// `what` is the part of the text that the error is about.
fn syntax_sentence(message: &str, what: &str) -> String {
    if message.contains("duplicate key") {
        let what = if what.is_empty() || what.contains('\n') { "this key or section" } else { what };
        return format!("{what} is set twice; remove one of the two, or join them");
    }
    format!("this is not TOML ({}); correct the line", words(message))
}

/// An error from serde as a sentence that says what to do.
pub(super) fn deserialization_sentence(message: &str) -> String {
    if message.contains("duplicate key") {
        return syntax_sentence(message, "");
    }
    format!("{}; correct the entry", words(message))
}

fn words(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
