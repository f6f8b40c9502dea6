//! Proposes other names for peers whose names are taken.

/// A peer that gets another name, because its own name is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Renamed {
    /// The line of the peer in the file.
    pub(super) line: usize,
    /// The name in the file.
    pub(super) from: String,
    /// The proposed name.
    pub(super) to: String,
    /// The line of the peer that has the name. `None` if an enrolled client has it.
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

/// Returns the message about names that clash. `None` if no name clashes.
pub(super) fn sentence(renamed: &[Renamed]) -> Option<String> {
    let first = renamed.first()?;
    let clashes: Vec<String> = renamed.iter().map(Renamed::described).collect();
    Some(format!(
        "{}; add --rename to take each free name, or give names in comments: # Name = {}",
        clashes.join("; "),
        first.to
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
