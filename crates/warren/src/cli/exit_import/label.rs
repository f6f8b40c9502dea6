//! Finds names of peers in the comments of a WireGuard file, in the forms that people and common set-up programs use.

use warren_config::derived_name;

/// A name that a comment may give to a peer.
#[derive(Clone, Debug)]
pub(super) struct Label {
    /// The name. It contains only characters that a client's name may have.
    pub(super) name: String,
    /// Whether the comment states explicitly that this is a name, such as `Name = ...`.
    is_explicit: bool,
}

impl Label {
    /// Returns the name in a comment. `comment` is the text after the first `#`. `None` if it contains no name.
    pub(super) fn of(comment: &str) -> Option<Self> {
        const MARKERS: [&str; 7] =
            ["begin_peer ", "begin ", "client ", "peer ", "user ", "name ", "friendly_name "];
        // First words of comments that are notes and not names.
        const NOTES: [&str; 10] =
            ["note", "todo", "date", "added", "created", "updated", "expires", "email", "id", "address"];
        let text = without_identifier(comment.trim_matches('#').trim());
        let lowered = text.to_ascii_lowercase();
        // Some set-up programs write end marks after a peer, or JSON in comments. Neither is a name.
        let is_no_name = lowered.starts_with("end_")
            || lowered.starts_with("end ")
            || text.starts_with(['{', '['])
            || lowered.starts_with("friendly_json");
        if is_no_name {
            return None;
        }
        let (name, is_explicit) = match lowered.find(['=', ':']).map(|place| lowered.split_at(place)) {
            None => (lowered.as_str(), false),
            Some((key, rest)) => match key.trim() {
                "name" | "friendly_name" | "client" | "peer" | "user" => {
                    (rest.trim_start_matches(['=', ':']).trim(), true)
                }
                // A setting that is commented out is not a name, and neither is a note.
                key if rest.starts_with('=') || NOTES.contains(&key) => return None,
                key => (key, false),
            },
        };
        let marked = MARKERS.iter().find_map(|marker| name.strip_prefix(marker)).filter(|_| !is_explicit);
        let name = derived_name(marked.unwrap_or(name))?;
        Some(Self { name, is_explicit: is_explicit || marked.is_some() })
    }

    /// Chooses between two names of the same peer: the explicit one or, if neither or both are explicit, the later one, which is
    /// nearer to the peer.
    pub(super) fn better(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) if one.is_explicit && !other.is_explicit => Some(one),
            (one, other) => other.or(one),
        }
    }
}

/// The text without the identifier in parentheses that wg-easy writes after a name.
fn without_identifier(text: &str) -> &str {
    let identifier =
        |inner: &str| inner.len() >= 8 && inner.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    match text.strip_suffix(')').and_then(|text| text.rsplit_once('(')) {
        Some((name, inner)) if identifier(inner) => name.trim_end(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(comment: &str) -> Option<String> {
        Label::of(comment).map(|label| label.name)
    }

    #[test]
    fn comments_give_the_names_that_people_meant() {
        for (comment, name) in [
            (" Büro", "buero"),
            (" Zoë's Straße 7", "zoes-strasse-7"),
            (" laptop: Anna's", "laptop"),
            ("## begin laptop ###", "laptop"),
            (" Client: laptop (3e7a0c50-6a4f-4c2e-9d0b-1f2e3d4c5b6a)", "laptop"),
            (" laptop (old)", "laptop-old"),
        ] {
            assert_eq!(named(comment).as_deref(), Some(name), "{comment}");
        }
    }

    #[test]
    fn settings_notes_and_ends_are_no_names() {
        for comment in [
            "PresharedKey = x",
            " Endpoint=[2001:db8::1]:51820",
            " Added: 2026-01-01",
            "## end laptop ###",
            " END_PEER laptop",
            "####",
            " 你好",
        ] {
            assert_eq!(named(comment), None, "{comment}");
        }
    }
}
