//! Finds names of peers in the comments of a WireGuard file, in the forms that people and common set-up programs use.

/// The client's name becomes a profile's name, which has this limit.
const LONGEST_NAME: usize = 32;

/// A name that a comment may give to a peer.
#[derive(Clone, Debug)]
pub(super) struct Label {
    /// The name. It has only characters that a client's name may have.
    pub(super) name: String,
    /// Whether the comment says that this is a name.
    is_explicit: bool,
}

impl Label {
    /// The name that a comment gives. `comment` is the text behind the first `#`.
    pub(super) fn of(comment: &str) -> Option<Self> {
        const MARKERS: [&str; 7] =
            ["begin_peer ", "begin ", "client ", "peer ", "user ", "name ", "friendly_name "];
        // Words with which people begin a note that is not a name.
        const NOTES: [&str; 10] =
            ["note", "todo", "date", "added", "created", "updated", "expires", "email", "id", "address"];
        let text = without_identifier(comment.trim_matches('#').trim());
        let lowered = text.to_ascii_lowercase();
        // Set-up programs write marks behind a peer, and wrap JSON in comments. Neither is a name.
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
        let name = client_name(marked.unwrap_or(name))?;
        Some(Self { name, is_explicit: is_explicit || marked.is_some() })
    }

    /// The more explicit of two names. If both are equally explicit, the later one, which is nearer to its peer.
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

/// Rewrites the text with the characters that a client's name may have. None if no character is left.
fn client_name(text: &str) -> Option<String> {
    let mut name = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() || (matches!(c, '.' | '_') && !name.is_empty()) {
            name.push(c);
        } else if let Some(letters) = latin_letters(c) {
            name.push_str(letters);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    // Never within a character, because the name has only ASCII characters.
    name.truncate(LONGEST_NAME);
    let name = name.trim_end_matches(['-', '.', '_']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// How a lower-case letter of a European language is written in ASCII.
fn latin_letters(letter: char) -> Option<&'static str> {
    Some(match letter {
        'ä' | 'æ' => "ae",
        'ö' | 'ø' | 'œ' => "oe",
        'ü' => "ue",
        'ß' => "ss",
        'þ' => "th",
        'à' | 'á' | 'â' | 'ã' | 'å' | 'ā' | 'ă' | 'ą' => "a",
        'ç' | 'ć' | 'č' => "c",
        'ď' | 'đ' | 'ð' => "d",
        'è' | 'é' | 'ê' | 'ë' | 'ē' | 'ė' | 'ę' | 'ě' => "e",
        'ğ' => "g",
        'ì' | 'í' | 'î' | 'ï' | 'ī' | 'ı' => "i",
        'ł' | 'ľ' => "l",
        'ñ' | 'ń' | 'ň' => "n",
        'ò' | 'ó' | 'ô' | 'õ' | 'ő' => "o",
        'ř' => "r",
        'ś' | 'š' | 'ş' | 'ș' => "s",
        'ť' | 'ț' | 'ţ' => "t",
        'ù' | 'ú' | 'û' | 'ū' | 'ů' | 'ű' => "u",
        'ý' | 'ÿ' => "y",
        'ź' | 'ż' | 'ž' => "z",
        _ => return None,
    })
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
            (" Zoë's Straße 7", "zoe-s-strasse-7"),
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
