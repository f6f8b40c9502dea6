//! Self-signed certificates for peers that need them, made by the openssl program.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::Context as _;

use super::{install, tunnel::Start};
use crate::vpn::process;

/// The program and its Debian package.
pub(super) const OPENSSL: (&str, &str) = ("openssl", "openssl");

/// The files of a self-signed certificate.
pub(super) struct Certificate {
    pub(super) certificate: String,
    pub(super) key: String,
    /// SHA-256 in upper-case hexadecimal with colons.
    pub(super) fingerprint: String,
}

impl Certificate {
    /// Makes NAME.crt and NAME.key with a P-256 key.
    pub(super) fn make(start: &Start<'_>, name: &str, extensions: &[&str]) -> anyhow::Result<Self> {
        let path =
            |ending: &str| start.topology.path().join(format!("{name}.{ending}")).display().to_string();
        let (certificate, key) = (path("crt"), path("key"));
        let openssl = |arguments: &[&str]| {
            let program = install::on_path("openssl").unwrap_or_else(|| PathBuf::from("openssl"));
            process::run(Command::new(program).args(arguments), Duration::from_secs(10), start.interrupt)
                .context("cannot make a certificate")
        };
        let subject = format!("/CN={name}");
        let mut arguments = vec!["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        // -nodes leaves the key unencrypted, because the benchmark cannot ask for a passphrase.
        arguments.extend(["-nodes", "-days", "30", "-subj", &subject, "-keyout", &key, "-out", &certificate]);
        for extension in extensions {
            arguments.extend(["-addext", extension]);
        }
        openssl(&arguments)?;
        let printed = openssl(&["x509", "-in", &certificate, "-noout", "-fingerprint", "-sha256"])?;
        let (_, fingerprint) = printed.trim().split_once('=').context("openssl printed no fingerprint")?;
        Ok(Self { certificate, key, fingerprint: fingerprint.to_owned() })
    }
}
