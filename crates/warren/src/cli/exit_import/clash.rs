//! Proposes other names for peers whose names are taken.

use warren_config::ProfileName;

/// A peer that gets another name, because its own name is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Renamed {
    /// The line of the peer in the file.
    pub(super) line: usize,
    /// The name in the file.
    pub(super) from: String,
    /// The proposed name.
    pub(super) to: String,
    /// The line of the peer that has the name. None if an enrolled client has it.
    pub(super) holder: Option<usize>,
}

impl Renamed {
    fn described(&self) -> String {
        let Self { line, from, to, holder } = self;
        let holder =
            holder.map_or("an enrolled client".to_owned(), |line| format!("the peer at line {line}"));
        format!("{from:?} at line {line} is also the name of {holder}, {to:?} is free")
    }
}

/// The message about names that clash. None if no name clashes.
pub(super) fn sentence(renamed: &[Renamed]) -> Option<String> {
    let first = renamed.first()?;
    let clashes: Vec<String> = renamed.iter().map(Renamed::described).collect();
    Some(format!(
        "{}; add --rename to take each free name, or give names in comments: # Name = {}",
        clashes.join("; "),
        first.to
    ))
}

/// The first of `name-2`, `name-3` and so on that is free.
pub(super) fn free_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let candidate = |number: usize| {
        let suffix = format!("-{number}");
        // The name is cut, so that name and suffix together stay within the limit. A cut name may end in a separator.
        let room = ProfileName::LONGEST.saturating_sub(suffix.len());
        let beginning: String = name.chars().take(room).collect();
        format!("{}{suffix}", beginning.trim_end_matches(['-', '.', '_']))
    };
    // The search always ends, because there are more numbers than clients.
    (2..).map(candidate).find(|candidate| !is_taken(candidate)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
    fn sentence_has_every_clash_and_both_ways_out() {
        let clash =
            |line, holder| Renamed { line, from: "laptop".into(), to: format!("laptop-{line}"), holder };
        assert_eq!(sentence(&[]), None);
        assert_eq!(
            sentence(&[clash(5, Some(2)), clash(9, None)]).unwrap(),
            "\"laptop\" at line 5 is also the name of the peer at line 2, \"laptop-5\" is free; \"laptop\" at line 9 is \
             also the name of an enrolled client, \"laptop-9\" is free; add --rename to take each free name, or give \
             names in comments: # Name = laptop-5"
        );
    }
}
