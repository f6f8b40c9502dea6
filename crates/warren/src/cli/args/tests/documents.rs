//! Checks that the commands in the documents exist, and that the programs can print the messages that the documents quote.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents, by name.
fn documents() -> Vec<(String, String)> {
    let mut files = vec![repository().join("README.md")];
    files.extend(fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    files.into_iter().map(|file| (file.display().to_string(), fs::read_to_string(&file).unwrap())).collect()
}

/// Command lines of Warren in a document, from spans and blocks of code.
fn command_lines(text: &str) -> Vec<String> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let lines = text.lines().map(str::trim_start);
    let of_warren = spans.chain(lines).filter(|line| line.starts_with("warren "));
    of_warren.map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn every_command_of_the_documents_is_one() {
    let mut count = 0;
    for (document, text) in documents() {
        for line in command_lines(&text) {
            // A line is checked only up to the first `|`, because "add|list|show" stands for three commands.
            let line = line.split(['|', '<', '>', '&', ';', '[']).next().unwrap_or_default();
            let unknown = [ErrorKind::InvalidSubcommand, ErrorKind::UnknownArgument];
            if let Err(error) = parse(line) {
                assert!(!unknown.contains(&error.kind()), "{document}: {line}: {error}");
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count} commands");
}

#[test]
fn a_command_that_is_none_would_be_found() {
    let text = "Type `warren exit client lst`, or\n\n```sh\nwarren up --fast   # at once\n```\n";
    assert_eq!(command_lines(text), ["warren exit client lst", "warren up --fast"]);
    assert_eq!(parse("warren exit client lst").unwrap_err().kind(), ErrorKind::InvalidSubcommand);
    assert_eq!(parse("warren up --fast").unwrap_err().kind(), ErrorKind::UnknownArgument);
}

/// The first column of `docs/trouble.md` quotes messages, so that readers can search for them.
#[test]
fn every_message_that_trouble_quotes_is_said_somewhere() {
    let said = sources(&repository().join("crates"));
    let text = fs::read_to_string(repository().join("docs/trouble.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let symptoms: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
    let quoted: Vec<&str> =
        symptoms.iter().flat_map(|symptom| symptom.split('"').skip(1).step_by(2)).collect();
    for message in &quoted {
        assert!(said.contains(message), "nothing says {message:?}");
    }
    assert!(quoted.len() > 5, "{quoted:?}");
}

/// The text of all source files. String literals that span several lines are joined.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            text.extend(source.split("\\\n").map(str::trim_start));
        }
    }
    text
}
