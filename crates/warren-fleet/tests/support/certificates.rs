//! Certificates of a store's members and users, made by openssl.

use std::path::Path;
use std::process::Command;

fn openssl(directory: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").current_dir(directory).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const KEY: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

pub(crate) fn make_authority(directory: &Path) {
    let arguments = [
        &["req", "-x509"],
        &KEY[..],
        &["-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=store-ca"],
    ];
    openssl(directory, &arguments.concat());
}

/// Makes the key `NAME.key` and its certificate `NAME.pem` for these addresses.
pub(crate) fn make_certificate(
    directory: &Path,
    (name, common_name): (&str, &str),
    days: i32,
    addresses: &[String],
) {
    let days = days.to_string();
    let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
    let subject = format!("/CN={common_name}");
    let arguments = [&["req"], &KEY[..], &["-nodes", "-keyout", &key, "-out", &request, "-subj", &subject]];
    openssl(directory, &arguments.concat());
    let names: Vec<String> = addresses.iter().map(|address| format!("IP:{address}")).collect();
    let extensions = format!(
        "subjectAltName={}\nextendedKeyUsage=clientAuth,serverAuth\nbasicConstraints=CA:FALSE\n",
        names.join(",")
    );
    std::fs::write(directory.join("extensions"), extensions).unwrap();
    openssl(
        directory,
        &[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            &days,
            "-extfile",
            "extensions",
            "-out",
            &certificate,
        ],
    );
}
