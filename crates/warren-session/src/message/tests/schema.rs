//! Tests that `docs/warren-v1.proto` and the structs agree. Both texts are parsed into the same table and compared.

use std::collections::BTreeMap;

use crate::goodbye::{Goodbye, Violation};
use crate::message::wire;

const PROTO: &str = include_str!("../../../../../docs/warren-v1.proto");
const STRUCTS: &str = include_str!("../wire.rs");

/// A message's fields by number: label and type, and name.
type Fields = BTreeMap<u32, (String, String)>;

/// Messages by name.
type Schema = BTreeMap<String, Fields>;

#[test]
fn the_schema_and_the_structs_are_equal() {
    let schema = parse_proto(PROTO);
    assert_eq!(schema.values().map(Fields::len).sum::<usize>(), 60, "the parser has read every field");
    assert_eq!(schema, parse_structs(STRUCTS));
}

#[test]
fn the_schema_of_rosters_and_its_structs_are_equal() {
    const ROSTER: &str = include_str!("../../../../../docs/warren-roster-v1.proto");
    let schema = parse_proto(ROSTER);
    assert_eq!(schema.values().map(Fields::len).sum::<usize>(), 17, "the parser has read every field");
    assert_eq!(schema, parse_structs(include_str!("../../roster/wire.rs")));
}

#[test]
fn a_difference_in_number_name_type_or_label_is_found() {
    let schema = parse_proto(PROTO);
    let changes = [
        ("bytes nonce = 5;", "bytes nonce = 7;"),
        ("bytes nonce = 5;", "bytes noise = 5;"),
        ("bytes nonce = 5;", "string nonce = 5;"),
        ("bytes nonce = 5;", "repeated bytes nonce = 5;"),
        ("bytes nonce = 5;", ""),
        ("Enrol enrol = 6;", "Enrol enrol = 9;"),
        ("message Attached {", "message Joined {"),
    ];
    for (right, wrong) in changes {
        assert!(PROTO.contains(right), "{right}");
        assert_ne!(parse_proto(&PROTO.replacen(right, wrong, 1)), schema, "{wrong}");
        assert_ne!(parse_proto(&PROTO.replacen(right, wrong, 1)), parse_structs(STRUCTS), "{wrong}");
    }
    let structs = STRUCTS.replace("tag = \"5\")]\n    pub nonce", "tag = \"19\")]\n    pub nonce");
    assert_ne!(parse_structs(&structs), schema);
}

#[test]
fn the_schema_lists_every_goodbye_reason() {
    let mut listed = BTreeMap::new();
    let body = PROTO.split_once("enum GoodbyeReason {").unwrap().1;
    for statement in statements(body.split_once('}').unwrap().0) {
        let (name, number) = statement.split_once(" = ").unwrap();
        assert_eq!(listed.insert(number.parse::<u32>().unwrap(), name.replace('_', "").to_lowercase()), None);
    }
    assert_eq!(listed.remove(&0).as_deref(), Some("unspecified"));
    let reasons = Goodbye::ALL.map(|reason| (reason.code(), name_of(&format!("{reason:?}"))));
    let violations = Violation::ALL.map(|violation| {
        (Goodbye::Protocol(violation).code(), format!("protocol{violation:?}").to_lowercase())
    });
    assert_eq!(listed, reasons.into_iter().chain(violations).collect());
}

#[test]
fn the_envelope_takes_every_message() {
    let schema = parse_proto(PROTO);
    let tags: Vec<_> = schema["Message"].keys().map(u32::to_string).collect();
    assert!(STRUCTS.contains(&format!("tags = \"{}\"", tags.join(", "))));
    // Compiles only if the struct has exactly these fields.
    let wire::Message { body: _ } = wire::Message { body: None };
}

fn name_of(debug: &str) -> String {
    debug.split('(').next().unwrap().to_lowercase()
}

/// Reads `message Name { label type name = number; }`; the fields of a oneof are those of its message.
fn parse_proto(text: &str) -> Schema {
    let mut schema = Schema::new();
    let text = without_comments(text);
    for block in text.split("message ").skip(1) {
        let (name, body) = block.split_once('{').unwrap();
        let body = body.split("\n}").next().unwrap();
        let body = body.replace("oneof body {", "").replace('}', "");
        let fields = statements(&body).map(|statement| {
            let (declaration, number) = statement.split_once(" = ").unwrap();
            let (kind, field) = declaration.rsplit_once(' ').unwrap();
            (number.parse().unwrap(), (kind.to_owned(), field.to_owned()))
        });
        schema.insert(name.trim().to_owned(), fields.collect());
    }
    schema
}

/// Reads `#[prost(kind, label, tag = "number")]` and the field or variant below it.
fn parse_structs(text: &str) -> Schema {
    let mut schema = Schema::new();
    let mut current = String::new();
    let mut attribute = None;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let line = line.replace("pub(super) ", "").replace("pub(crate) ", "").replace("pub ", "");
        if let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            current = name.to_owned();
            schema.entry(current.clone()).or_default();
        } else if line.starts_with("enum Body") {
            current = "Message".to_owned();
        } else if let Some(inner) = line.strip_prefix("#[prost(") {
            attribute = Some(inner.strip_suffix(")]").unwrap().to_owned())
                .filter(|inner| !inner.starts_with("oneof"));
        } else if let Some(attribute) = attribute.take() {
            let (number, field) = parse_field(&attribute, &line);
            assert_eq!(schema.get_mut(&current).unwrap().insert(number, field), None, "{line}");
        }
    }
    schema
}

fn parse_field(attribute: &str, line: &str) -> (u32, (String, String)) {
    let parts: Vec<_> = attribute.split(", ").collect();
    let number = parts.last().unwrap().strip_prefix("tag = \"").unwrap().strip_suffix('"').unwrap();
    let (name, rust_type) = match line.split_once(": ") {
        Some((name, rust_type)) => (name.to_owned(), rust_type.trim_end_matches(',').to_owned()),
        None => {
            let (variant, inner) = line.trim_end_matches("),").split_once('(').unwrap();
            (variant.to_lowercase(), inner.to_owned())
        }
    };
    let label = if parts.contains(&"repeated") {
        "repeated "
    } else if parts.contains(&"optional") {
        "optional "
    } else {
        ""
    };
    let kind = match parts[0] {
        "message" => {
            let inner = rust_type.trim_start_matches("Vec<").trim_start_matches("Option<");
            inner.trim_end_matches('>').to_owned()
        }
        scalar => scalar.split(" = ").next().unwrap().to_owned(),
    };
    (number.parse().unwrap(), (format!("{label}{kind}"), name))
}

fn statements(text: &str) -> impl Iterator<Item = String> {
    let text = without_comments(text);
    let all: Vec<_> =
        text.split(';').map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    all.into_iter().filter(|statement| !statement.is_empty())
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}
