//! The source that a result was measured with.

use std::process::{Command, Stdio};

/// Returns the commit of this repository's tree, and whether source files differ from it: "commit 7952d9ec6938, changed".
pub(crate) fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown commit".to_owned() };
    // Results and plots in the tree do not change any program.
    let changes =
        git(&["status", "--porcelain", "--untracked-files=no", "--", "*.rs", "*.toml", "*.lock", "*.patch"]);
    let changed = changes.is_none_or(|changes| !changes.is_empty());
    format!("commit {commit}{}", if changed { ", changed" } else { "" })
}

fn git(arguments: &[&str]) -> Option<String> {
    // Lets root read a tree that another user owns.
    let common = ["-c", "safe.directory=*", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/..")];
    let output = Command::new("git").args(common).args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_is_a_number_or_said_to_be_unknown() {
        let text = commit();
        let number = text.strip_prefix("commit ").map(|rest| rest.split(',').next().unwrap());
        let is_number = |text: &str| text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(number.map_or(text == "unknown commit", is_number), "{text}");
    }
}
