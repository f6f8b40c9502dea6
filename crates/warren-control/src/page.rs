//! Lists in pages, so that no answer grows with the number of clients.

use serde::{Deserialize, Serialize};

/// A request for some rows of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageQuery {
    /// Selects only rows whose name contains this text.
    #[serde(default)]
    pub name: Option<String>,
    /// Selects only rows after this one. Use the previous page's [`Page::next`].
    #[serde(default)]
    pub after: Option<String>,
    /// Maximum number of rows, up to [`PageQuery::MOST`].
    #[serde(default)]
    pub limit: Option<usize>,
}

impl PageQuery {
    /// The most rows of a page, about half a mebibyte.
    pub const MOST: usize = 1_000;

    /// The most rows that this page may have.
    pub fn limit(&self) -> usize {
        // A page has at least one row. With a limit of 0, the pages would never end.
        self.limit.unwrap_or(Self::MOST).clamp(1, Self::MOST)
    }

    /// Whether the query selects a row of this name.
    pub fn has(&self, name: &str) -> bool {
        self.name.as_deref().is_none_or(|part| name.contains(part))
    }

    /// Makes the page from `rows`, which must be sorted and begin after [`Self::after`]. `place` returns a row's sort key.
    pub fn page<Row, View>(
        &self,
        rows: impl Iterator<Item = Row>,
        place: impl Fn(&Row) -> String,
        mut view: impl FnMut(Row) -> View,
    ) -> Page<View> {
        let mut rows = rows.peekable();
        let mut page = Page { rows: Vec::new(), next: None };
        while let Some(row) = rows.next() {
            let is_last = page.rows.len() + 1 == self.limit();
            // The next row is peeked at, so that no empty page follows the last row.
            if is_last && rows.peek().is_some() {
                page.next = Some(place(&row));
            }
            page.rows.push(view(row));
            if is_last {
                break;
            }
        }
        page
    }
}

/// Some rows of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<Row> {
    /// The rows, in order.
    pub rows: Vec<Row>,
    /// The sort key of this page's last row, for [`PageQuery::after`]. `None` on the last page.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(query: &PageQuery, count: usize) -> Vec<Vec<usize>> {
        let mut query = query.clone();
        let mut pages = Vec::new();
        loop {
            let after = query.after.as_deref().map_or(0, |after| after.parse::<usize>().unwrap() + 1);
            let rows = (after..count).filter(|number| query.has(&number.to_string()));
            let page = query.page(rows, ToString::to_string, |number| number);
            pages.push(page.rows);
            query.after = page.next;
            if query.after.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn pages_have_every_row_once_and_the_last_says_so() {
        let of = |limit| PageQuery { limit: Some(limit), ..PageQuery::default() };
        assert_eq!(pages(&of(2), 5), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(pages(&of(5), 5), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(pages(&of(0), 2), [[0], [1]], "a page has one row at least");
        assert_eq!(pages(&of(9), 0), [Vec::<usize>::new()]);
        assert_eq!(
            pages(&of(usize::MAX), 2_500).iter().map(Vec::len).collect::<Vec<_>>(),
            [1_000, 1_000, 500]
        );
        let named = PageQuery { name: Some("9".to_owned()), ..of(2) };
        assert_eq!(pages(&named, 40), [vec![9, 19], vec![29, 39]]);
    }
}
