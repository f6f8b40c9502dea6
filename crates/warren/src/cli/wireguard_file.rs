//! Reads the WireGuard files of servers and clients: sections, settings, comments and lists.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use warren_config::{ConfigError, quoted, suggestion};

/// The content of a line.
pub(crate) enum Part<'a> {
    /// A line with only a comment.
    Comment(&'a str),
    /// `[Interface]`.
    Interface,
    /// `[Peer]`, and a comment after it.
    Peer(Option<&'a str>),
    /// A setting of the section: its name as in wg(8), and its value.
    Setting(&'static str, &'a str),
}

/// Reads a file and calls `take` for each line, with the line's number, counted from 1. An error of `take` continues a sentence
/// that begins with the setting's name.
///
/// # Errors
/// The first line that cannot be understood, or that `take` refuses.
pub(crate) fn read<'a>(
    file: &Path,
    text: &'a str,
    mut take: impl FnMut(usize, Part<'a>) -> Result<(), String>,
) -> Result<(), ConfigError> {
    let mut settings = None;
    // Editors on other systems may write a byte order mark at the start of the file.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, content) in (1..).zip(text.lines()) {
        let (content, comment) =
            content.split_once('#').map_or((content, None), |(content, comment)| (content, Some(comment)));
        let taken = match (content.trim(), comment) {
            ("", None) => continue,
            ("", Some(comment)) => take(line, Part::Comment(comment)),
            (content, comment) => part(&mut settings, content, comment).and_then(|part| match part {
                Part::Setting(name, _) => {
                    take(line, part).map_err(|wrong| format!("{name} {wrong}; correct the line"))
                }
                Part::Comment(_) | Part::Interface | Part::Peer(_) => take(line, part),
            }),
        };
        taken.map_err(|sentence| ConfigError::at_line(file, line, sentence))?;
    }
    Ok(())
}

/// Parses a line's content before its comment. `settings` are those of the current section.
fn part<'a>(
    settings: &mut Option<&'static [&'static str]>,
    content: &'a str,
    comment: Option<&'a str>,
) -> Result<Part<'a>, String> {
    if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let (of_section, part) = match name.trim().to_ascii_lowercase().as_str() {
            "interface" => (INTERFACE.as_slice(), Part::Interface),
            "peer" => (PEER.as_slice(), Part::Peer(comment)),
            _ => {
                return Err(format!(
                    "unknown section [{}]; the sections are [Interface] and [Peer]",
                    quoted(name)
                ));
            }
        };
        *settings = Some(of_section);
        return Ok(part);
    }
    let (key, value) =
        content.split_once('=').ok_or("this is neither a [section] nor KEY = VALUE; correct it")?;
    let settings =
        settings.ok_or("this line is outside any [section]; put [Interface] or [Peer] before it")?;
    let called = |name: &str| settings.iter().copied().find(|known| known.eq_ignore_ascii_case(name));
    let name = called(key.trim()).ok_or_else(|| {
        let lowered: Vec<String> = settings.iter().map(|known| known.to_ascii_lowercase()).collect();
        let meant = suggestion(key.trim(), lowered.iter().map(String::as_str)).and_then(called);
        let advice = meant.map_or_else(
            || format!("the keys are {}", settings.join(", ")),
            |name| format!("did you mean {name}?"),
        );
        format!("unknown key {}; {advice}", quoted(key.trim()))
    })?;
    Ok(Part::Setting(name, value.trim()))
}

/// The items of a list separated by commas.
pub(crate) fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Parses networks separated by commas. An address counts as a network of one address. The error continues a sentence that begins
/// with the setting's name.
pub(crate) fn networks(list: &str) -> Result<Vec<IpNet>, String> {
    let network = |item: &str| {
        let address = || item.parse::<IpAddr>().ok().map(IpNet::from);
        item.parse()
            .ok()
            .or_else(address)
            .ok_or_else(|| format!("has {}, which is not a network", quoted(item)))
    };
    items(list).map(network).collect()
}

/// The settings of `[Interface]`, according to wg-quick(8) and wg(8).
pub(crate) const INTERFACE: [&str; 12] = [
    "PrivateKey",
    "Address",
    "DNS",
    "MTU",
    "Table",
    "ListenPort",
    "FwMark",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
    "SaveConfig",
];
/// The settings of `[Peer]`.
const PEER: [&str; 5] = ["PublicKey", "PresharedKey", "AllowedIPs", "Endpoint", "PersistentKeepalive"];
