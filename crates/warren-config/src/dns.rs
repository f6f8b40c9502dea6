//! The `[dns]` section of a profile.

use ipnet::IpNet;
use warren_host::dns::{Servers, is_full};

use super::ConfigError;
use super::document::Document;
use super::value::{Problem, Value, address, list};
use super::wording::quoted;

/// A profile's settings for the host's resolvers while the tunnel is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSettings {
    /// The tunnel's resolvers.
    pub servers: Servers,
    /// The domains whose names are looked up at the tunnel's resolvers. In lower case and without a final dot. If empty, all
    /// names are looked up there.
    pub domains: Vec<String>,
}

impl DnsSettings {
    /// Reads the section, for a tunnel to the networks `include`.
    pub(super) fn read(document: &mut Document<'_>, include: &[IpNet]) -> Result<Self, ConfigError> {
        const DOMAINS: &str = "a list of domains such as [\"corp.example\"]";
        let mut section = document.section("dns")?;
        let servers = section.or("servers", Servers::Exit, dns_servers)?;
        let domains = section.or("domains", Vec::new(), |value| {
            let domains = list(DOMAINS, domain)(value)?;
            let refusal = match &servers {
                _ if domains.is_empty() => return Ok(domains),
                Servers::Listed(listed) if listed.is_empty() => {
                    "needs a resolver; list one in servers, or remove servers = []"
                }
                _ if is_full(include) => {
                    "needs a split tunnel, because a full tunnel lets no query leave outside; remove it, or list networks in include of [routes]"
                }
                Servers::Exit | Servers::Listed(_) => return Ok(domains),
            };
            Err(value.problem(refusal))
        })?;
        section.finish()?;
        Ok(Self { servers, domains })
    }
}

fn dns_servers(value: Value<'_>) -> Result<Servers, Problem> {
    const EXPECTED: &str = "\"exit\" or a list of addresses such as [\"9.9.9.9\"]";
    if value.is_list() {
        return Ok(Servers::Listed(list(EXPECTED, address)(value)?));
    }
    match value.text(EXPECTED)? {
        "exit" => Ok(Servers::Exit),
        other => Err(value.problem(format!("is {}, but must be {EXPECTED}", quoted(other)))),
    }
}

/// A domain, such as `corp.example` or `10.in-addr.arpa`.
fn domain(value: Value<'_>) -> Result<String, Problem> {
    domain_of(value.text("a domain such as \"corp.example\"")?).map_err(|sentence| value.problem(sentence))
}

/// Returns a domain in lower case and without a final dot.
///
/// # Errors
/// If the text is not a domain in ASCII. The sentence continues after the name of a setting.
pub fn domain_of(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        (1..=63).contains(&label.len()) && label.chars().all(is_known)
    };
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(format!(
            "has {}, but must have domains such as \"corp.example\", in ASCII (write \"b\u{fc}ro.example\" as \
             \"xn--bro-hoa.example\")",
            quoted(text)
        ));
    }
    Ok(name.to_ascii_lowercase())
}
