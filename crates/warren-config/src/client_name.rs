//! Names for clients, made from what people type.

use crate::ProfileName;

/// Turns a person's text, such as `Anna's phone`, into a name that a client and a profile may have. `None` if no character is
/// left.
pub fn derived_name(text: &str) -> Option<String> {
    let mut name = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() || (matches!(c, '.' | '_') && !name.is_empty()) {
            name.push(c);
        } else if let Some(letters) = latin_letters(c) {
            name.push_str(letters);
        } else if matches!(c, '\'' | '\u{2019}') {
            // An apostrophe does not separate words: `Anna's phone` becomes `annas-phone`.
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    // The name is ASCII, so this cannot split a character.
    name.truncate(ProfileName::LONGEST);
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

/// Makes a name for a client from a person's text: the name of [`derived_name`], or the first free variant of it.
pub fn proposed_name(text: &str, is_taken: impl Fn(&str) -> bool) -> String {
    // A text in a non-Latin script may leave no character.
    let name = derived_name(text).unwrap_or_else(|| "client".to_owned());
    // No profile can have a name such as `exit`.
    if name.parse::<ProfileName>().is_ok() && !is_taken(&name) { name } else { free_name(&name, is_taken) }
}

/// Returns the first of `name-2`, `name-3` and so on that is free.
pub fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let candidate = |number: usize| {
        let suffix = format!("-{number}");
        // The name is shortened so that name and suffix together stay within the limit. A shortened name may end in a separator.
        let room = ProfileName::LONGEST.saturating_sub(suffix.len());
        let beginning: String = name.chars().take(room).collect();
        format!("{}{suffix}", beginning.trim_end_matches(['-', '.', '_']))
    };
    // The search always ends, because there are more numbers than clients.
    (2..).map(candidate).find(|candidate| !is_taken(candidate)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warren_session::clients::is_valid_name;

    use super::*;

    #[test]
    fn free_name_is_the_first_that_nobody_has_and_is_never_too_long() {
        assert_eq!(free_name("laptop", |_| false), "laptop-2");
        assert_eq!(free_name("laptop", |name| ["laptop-2", "laptop-3"].contains(&name)), "laptop-4");
        let long = "a".repeat(ProfileName::LONGEST);
        let free = free_name(&long, |name| name.ends_with("-2"));
        assert_eq!((free.len(), free.ends_with("aa-3")), (ProfileName::LONGEST, true));
        assert!(free.parse::<ProfileName>().is_ok());
    }

    #[test]
    fn what_people_type_gives_a_name_and_a_clash_gives_another() {
        let taken = |name: &str| name == "annas-phone" || name == "annas-phone-2";
        for (text, name) in [
            ("Anna\u{2019}s laptop", "annas-laptop"),
            ("Anna's phone", "annas-phone-3"),
            ("  B\u{fc}ro / 2. Stock ", "buero-2.-stock"),
            ("\u{4f60}\u{597d}", "client"),
            ("exit", "exit-2"),
            ("<script>alert(1)</script>", "script-alert-1-script"),
            ("../../etc/passwd", "etc-passwd"),
        ] {
            assert_eq!(proposed_name(text, taken), name, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_typed_gives_a_name_of_a_client_and_a_profile(text in ".{0,80}", first in any::<bool>()) {
            let name = proposed_name(&text, |name| first && !name.ends_with("-2"));
            prop_assert!(is_valid_name(&name) && name.parse::<ProfileName>().is_ok(), "{name:?} of {text:?}");
        }
    }
}
