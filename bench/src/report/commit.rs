//! The commit that was measured.

use std::process::{Command, Stdio};

/// Returns the commit of this repository, and whether source files differ from it, as in "commit 7952d9ec6938, changed".
pub(crate) fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown commit".to_owned() };
    // Changed results and plots are ignored, because they do not affect the programs.
    let changes =
        git(&["status", "--porcelain", "--untracked-files=no", "--", "*.rs", "*.toml", "*.lock", "*.patch"]);
    let changed = changes.is_none_or(|changes| !changes.is_empty());
    format!("commit {commit}{}", if changed { ", changed" } else { "" })
}

fn git(arguments: &[&str]) -> Option<String> {
    // `safe.directory=*` lets root read a repository that another user owns.
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
