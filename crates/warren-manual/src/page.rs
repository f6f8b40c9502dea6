//! Parts that all man pages share: version and date for the footer, and escaping of text so that roff sees no macro in it.

use std::time::{Duration, SystemTime};

use warren_control::timestamp;

/// The content that all pages of one program share.
#[derive(Clone, Copy, Debug)]
pub struct Manual<'a> {
    /// Exit codes and their meaning.
    pub exit_status: &'a [(&'a str, &'a str)],
    /// Related pages of which neither is a subcommand of the other: each entry is the name of a page, and its related pages with
    /// their sections.
    pub related: &'a [(&'a str, &'a [&'a str])],
    /// Version and date.
    pub origin: &'a Origin,
}

/// The date and version in a page's footer.
#[derive(Clone, Debug)]
pub struct Origin {
    /// YYYY-MM-DD.
    pub date: String,
}

impl Origin {
    /// Takes the date from `epoch`, in seconds since 1970 (`SOURCE_DATE_EPOCH`), which makes builds repeatable. Without it, takes
    /// the date of `now`.
    pub fn of(epoch: Option<&str>, now: SystemTime) -> Self {
        let epoch = epoch.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let made = epoch.and_then(|epoch| SystemTime::UNIX_EPOCH.checked_add(epoch)).unwrap_or(now);
        Self { date: timestamp(made).chars().take("YYYY-MM-DD".len()).collect() }
    }

    /// The version of Warren.
    pub fn source(&self) -> String {
        format!("warren {}", env!("CARGO_PKG_VERSION"))
    }
}

/// Escapes a line of text, so that roff sees no macro in it.
pub fn escaped(line: &str) -> String {
    // roff may print an unescaped `-` as a hyphen (U+2010). An option that is copied from the page would then not work.
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    // A dot or quote at the start of a line would begin a macro. `\&`, which has no width, is inserted before it.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_an_example_is_never_a_macro() {
        assert_eq!(escaped(".TH"), "\\&.TH");
        assert_eq!(escaped("'a"), "\\&'a");
        assert_eq!(escaped("a\\n -1"), "a\\en \\-1");
    }

    #[test]
    fn date_is_that_of_the_source_or_of_today() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400);
        assert_eq!(Origin::of(Some("1790000000"), now).date, "2026-09-21");
        assert_eq!(Origin::of(None, now).date, "1970-01-02");
        assert_eq!(Origin::of(Some("yesterday"), now).date, "1970-01-02");
    }
}
