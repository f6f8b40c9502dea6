//! Libraries of the tests' own that are loaded before the C library, and stand for a host that is another.

use std::process::Command;

use tempfile::TempDir;

use super::finished;

/// A library that was built from C; dropping it removes it.
#[derive(Debug)]
pub struct Preload {
    /// For `env`, as in `LD_PRELOAD=...`.
    pub variable: String,
    _directory: TempDir,
}

impl Preload {
    /// Builds `NAME.c` of this directory.
    pub fn build(name: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let library = directory.path().join(format!("{name}.so"));
        let source = format!("{}/tests/support/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let mut compiler = Command::new("cc");
        finished(compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).args([&source, "-ldl"])).ok();
        Self { variable: format!("LD_PRELOAD={}", library.display()), _directory: directory }
    }
}
