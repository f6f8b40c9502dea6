//! Log lines that are written once, until their subject changes.

use std::collections::BTreeSet;

/// Maximum number of remembered lines. When it is reached, all lines are forgotten, and each may be logged once more.
const MOST: usize = 100;

/// The lines that were logged.
#[derive(Debug, Default)]
pub(crate) struct Once(BTreeSet<String>);

impl Once {
    /// Whether a line is not in the log yet. After this call, it counts as logged.
    pub(crate) fn is_news(&mut self, line: &str) -> bool {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(line.to_owned())
    }

    /// Forgets the logged lines: something has changed, so each line counts as new again. Returns whether any line had been logged.
    pub(crate) fn forget(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_news_once_until_something_has_changed() {
        let mut once = Once::default();
        let first: Vec<bool> = ["a", "a", "b", "a"].into_iter().map(|line| once.is_news(line)).collect();
        assert_eq!(first, [true, false, true, false]);
        assert!(once.forget() && !once.forget());
        assert!(once.is_news("a"));
    }

    #[test]
    fn lines_without_end_take_no_memory_without_end() {
        let mut once = Once::default();
        assert!((0..10_000).all(|number| once.is_news(&number.to_string())));
        assert!(once.0.len() <= MOST);
    }
}
