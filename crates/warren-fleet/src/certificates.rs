//! How long the certificates of the store and its users are valid: the authority's, this exit's own, and those of the store's
//! members.
//!
//! An expired certificate cuts the exit off from the store. So the exit's metrics, the status and the log warn in advance.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use warren_config::counted;
use warren_fleet_link::StoreCertificate;

use crate::config::StoreConfig;
use crate::once::Once;
use crate::store::{ANSWER_TIMEOUT, StoreOptions};
use crate::tls::{address_of, end_of_pem, first_end, handshake, parsed};

/// The interval between checks once every certificate has been seen, and the interval until then.
const EVERY: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(60));

/// Operators are warned of a certificate that expires in fewer than this many days.
const WARNED: i64 = 14;

/// Checks the certificates periodically. Reports the results, and warns of certificates that expire soon.
pub(crate) async fn watch(store: StoreConfig, report: mpsc::Sender<Vec<StoreCertificate>>) {
    // If a member does not answer now, its certificate stays as it was last seen.
    let mut seen = BTreeMap::new();
    let mut warned = Once::default();
    loop {
        // An operator may have replaced the files. If they are missing, the connection to the store reports that.
        let (found, is_complete) = match store.options() {
            Ok(options) => {
                let found = look(&options).await;
                let is_complete = found.len() >= expected(&options);
                (found, is_complete)
            }
            Err(_) => (Vec::new(), false),
        };
        seen.extend(found.into_iter().map(|one| (one.name, one.expires)));
        let all: Vec<_> = seen
            .iter()
            .map(|(name, expires)| StoreCertificate { name: name.clone(), expires: *expires })
            .collect();
        for certificate in &all {
            // The line contains the number of days, so there is one line a day.
            if let Some(line) = warning(certificate, SystemTime::now()).filter(|line| warned.is_news(line)) {
                tracing::warn!("{line}");
            }
        }
        if report.send(all).await.is_err() {
            return;
        }
        sleep(if is_complete { EVERY.0 } else { EVERY.1 }).await;
    }
}

/// Reads all certificates once. Leaves out members that do not answer.
pub(crate) async fn look(options: &StoreOptions) -> Vec<StoreCertificate> {
    let mut found = Vec::new();
    let own = options.identity.as_ref().map(|(certificate, _)| certificate);
    for (name, pem) in [("ca", options.ca.as_ref()), ("client", own)] {
        match pem.map(|pem| end_of_pem(pem)).transpose() {
            Ok(expires) => {
                found.extend(expires.map(|expires| StoreCertificate { name: name.to_owned(), expires }))
            }
            Err(error) => tracing::warn!("the store's certificate {name:?} cannot be read: {error:#}"),
        }
    }
    let mut asked = JoinSet::new();
    for endpoint in options.endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")) {
        let (endpoint, identity) = (endpoint.clone(), options.identity.clone());
        asked.spawn(async move {
            let address = address_of(&endpoint).to_owned();
            let shown = timeout(ANSWER_TIMEOUT * 2, shown_by(&address, identity)).await;
            let expires = shown.map_err(|_| anyhow!("it does not answer")).and_then(|shown| shown);
            (address, expires)
        });
    }
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((address, Ok(expires))) => {
                found.push(StoreCertificate { name: format!("server {address}"), expires });
            }
            Ok((address, Err(error))) => {
                tracing::debug!("cannot get the certificate of {address}: {error:#}");
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// Returns how many certificates [`look`] finds if all members answer.
fn expected(options: &StoreOptions) -> usize {
    let members = options.endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")).count();
    members + usize::from(options.ca.is_some()) + usize::from(options.identity.is_some())
}

/// Returns the whole days until a certificate expires, rounded down. Negative once it has expired.
pub(crate) fn days_left(certificate: &StoreCertificate, now: SystemTime) -> i64 {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let left = certificate.expires.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX));
    left.div_euclid(86_400)
}

/// Warns about a certificate that has expired or expires soon.
pub(crate) fn warning(certificate: &StoreCertificate, now: SystemTime) -> Option<String> {
    let (name, days) = (&certificate.name, days_left(certificate, now));
    if days < 0 {
        return Some(format!(
            "the store's certificate {name:?} has expired; replace it (docs/fleet.md says how)"
        ));
    }
    let left = if days == 0 {
        "less than a day".to_owned()
    } else {
        counted(usize::try_from(days).unwrap_or_default(), "day")
    };
    let sentence = format!(
        "the store's certificate {name:?} expires in {left}; replace it before then (docs/fleet.md says how)"
    );
    (days < WARNED).then_some(sentence)
}

/// Returns the common name of the first certificate of a file. etcd takes this name as the user.
///
/// # Errors
/// If there is no certificate, or it has no common name.
pub(crate) fn common_name(pem: &str) -> anyhow::Result<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| anyhow!("it is not PEM: {error:?}"))?;
    let certificate = parsed(&der)?;
    let name = certificate.tbs_certificate().subject().common_name();
    let name = name.map_err(|error| anyhow!("its common name cannot be read: {error}"))?;
    Ok(name.context("it has no common name")?.value().into_owned())
}

/// When the certificate that a member shows expires. Nothing is sent to the member.
async fn shown_by(address: &str, identity: Option<(String, String)>) -> anyhow::Result<i64> {
    let stream = handshake(address, identity).await?;
    first_end(stream.get_ref().1.peer_certificates().context("it shows none")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `openssl req -x509 -newkey ec ... -days 1`.
    const PEM: &str = include_str!("certificates/test.pem");
    const ENDS: i64 = 1_795_832_275;

    fn certificate(expires: i64) -> StoreCertificate {
        StoreCertificate { name: "client".to_owned(), expires }
    }

    #[test]
    fn the_end_of_a_certificate_is_read_and_a_file_ends_with_its_first() {
        assert_eq!(end_of_pem(PEM).unwrap(), ENDS);
        assert_eq!(end_of_pem(&PEM.repeat(2)).unwrap(), ENDS);
        assert!(end_of_pem("").is_err());
        assert!(end_of_pem(&PEM.replace("MII", "MIM")).is_err());
    }

    #[test]
    fn the_user_of_a_certificate_is_its_common_name() {
        assert_eq!(common_name(PEM).unwrap(), "store");
        assert!(common_name("").is_err());
    }

    #[test]
    fn a_certificate_is_warned_of_fourteen_days_before_its_end() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let after = |seconds: i64| certificate(1_000_000 + seconds);
        assert_eq!(warning(&after(14 * 86_400), now), None);
        assert!(warning(&after(14 * 86_400 - 1), now).unwrap().contains("expires in 13 days"));
        assert!(warning(&after(86_400), now).unwrap().contains("expires in 1 day;"));
        assert!(warning(&after(86_399), now).unwrap().contains("expires in less than a day;"));
        assert!(warning(&after(-1), now).unwrap().contains("has expired"));
        assert_eq!(days_left(&after(-1), now), -1);
        assert!(warning(&certificate(i64::MIN), now).is_some());
    }
}
