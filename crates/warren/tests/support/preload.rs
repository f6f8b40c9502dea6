//! Libraries of the tests, which are loaded before the C library and simulate a different host.

use std::process::Command;

use tempfile::TempDir;

use super::finished;

/// A library built from C, removed on drop.
#[derive(Debug)]
pub struct Preload {
    /// `LD_PRELOAD=...`, for `env`.
    pub variable: String,
    _directory: TempDir,
}

impl Preload {
    /// Builds `NAME.c` from this directory.
    pub fn build(name: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("wt-").tempdir().unwrap();
        let library = directory.path().join(format!("{name}.so"));
        let source = format!("{}/tests/support/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let mut compiler = Command::new("cc");
        finished(compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).args([&source, "-ldl"])).ok();
        Self { variable: format!("LD_PRELOAD={}", library.display()), _directory: directory }
    }
}
