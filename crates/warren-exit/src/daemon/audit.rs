//! What operators do to clients, as lines of the exit's log: which client, what, and by which way.

use std::fmt::Display;

use warren_config::counted;
use warren_control::{
    AddressChoice, ClientChange, ClientSettings, ImportSummary, InvitationView, RateChoice, Request,
};

/// How an operator has asked for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By a command on this host.
    Command,
    /// By the page for operators.
    Page,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Page => "page",
        }
    }
}

/// A change that an operator has asked for. It is logged once it is in force.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    client: String,
    what: String,
}

impl Change {
    /// The change that a request asks for. None if it changes no client, or many at once.
    pub(super) fn of(request: &Request) -> Option<Self> {
        if let Request::ClientAdd { client } = request {
            let limit = client.rate_limit.map(|limit| format!(", rate limit {limit}")).unwrap_or_default();
            return Some(Self::new(&client.name, format!("enrolled{limit}")));
        }
        if let Request::ClientInvite { invitation } = request {
            return Some(Self::invited(&InvitationView::of(invitation)));
        }
        if let Request::ClientRemove { name } = request {
            return Some(Self::removed(name));
        }
        if let Request::ClientChange { name, change } = request {
            return Some(Self::of_client(name, change));
        }
        None
    }

    pub(super) fn invited(invitation: &InvitationView) -> Self {
        Self::new(&invitation.name, format!("invited until {}", invitation.expires))
    }

    pub(super) fn of_client(name: &str, change: &ClientChange) -> Self {
        Self::new(name, text(change))
    }

    pub(super) fn removed(name: &str) -> Self {
        Self::new(name, "removed".to_owned())
    }

    fn new(client: &str, what: String) -> Self {
        Self { client: client.to_owned(), what }
    }

    /// Writes the line.
    pub(super) fn log(&self, by: By) {
        tracing::info!(client = self.client, by = by.name(), "{}", self.what);
    }
}

/// Logs how many clients a command has enrolled at once.
pub(super) fn log_enrolled(count: usize) {
    tracing::info!(by = By::Command.name(), "{} enrolled", counted(count, "client"));
}

/// Logs what an import has changed.
pub(super) fn log_import(summary: &ImportSummary) {
    let ImportSummary { added, removed, changed, withdrawn, .. } = summary;
    tracing::info!(
        by = By::Command.name(),
        "clients imported: {} added, {} removed, {} changed, {} invitations withdrawn",
        added.count,
        removed.count,
        changed.count,
        withdrawn.count
    );
}

fn text(change: &ClientChange) -> String {
    match change {
        ClientChange::Rename { to } => format!("renamed to {to}"),
        ClientChange::Disable => "disabled".to_owned(),
        ClientChange::Enable => "enabled".to_owned(),
        ClientChange::Set(settings) => settings_text(settings),
        ClientChange::AddForward { forward } => format!("forward {forward} added"),
        ClientChange::RemoveForward { ports } => format!("forward {ports} removed"),
    }
}

fn settings_text(settings: &ClientSettings) -> String {
    let ClientSettings { ipv4, ipv6, prefixes, rate_limit, public_key, .. } = settings;
    let prefixes = prefixes.as_ref().map(|prefixes| match prefixes.as_slice() {
        [] => "no prefixes".to_owned(),
        some => format!("prefixes {}", some.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
    });
    let rate_limit = rate_limit.map(|choice| match choice {
        RateChoice::Limited(limit) => format!("rate limit {limit}"),
        RateChoice::Off => "no rate limit".to_owned(),
    });
    let parts = [
        ipv4.map(|choice| address("IPv4", choice)),
        ipv6.map(|choice| address("IPv6", choice)),
        prefixes,
        rate_limit,
        public_key.map(|_| "a new key, from its first connection with it".to_owned()),
    ];
    format!("changed: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn address<Address: Display>(family: &str, choice: AddressChoice<Address>) -> String {
    match choice {
        AddressChoice::Fixed(address) => format!("{family} address {address}"),
        AddressChoice::Automatic => format!("automatic {family} address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(request: &Request) -> Option<(String, String)> {
        Change::of(request).map(|change| (change.client, change.what))
    }

    fn changed(change: ClientChange) -> String {
        logged(&Request::ClientChange { name: "laptop".to_owned(), change }).unwrap().1
    }

    #[test]
    fn each_change_of_a_client_has_a_line_with_its_values() {
        assert_eq!(changed(ClientChange::Rename { to: "desk".to_owned() }), "renamed to desk");
        assert_eq!(changed(ClientChange::Disable), "disabled");
        assert_eq!(changed(ClientChange::Enable), "enabled");
        let forward = "tcp/8443-8450 to 443".parse().unwrap();
        assert_eq!(changed(ClientChange::AddForward { forward }), "forward tcp/8443-8450 to 443 added");
        let ports = forward.ports();
        assert_eq!(changed(ClientChange::RemoveForward { ports }), "forward tcp/8443-8450 removed");
        let settings = ClientSettings {
            ipv4: Some(AddressChoice::Fixed("10.66.0.9".parse().unwrap())),
            ipv6: Some(AddressChoice::Automatic),
            prefixes: Some(vec!["192.168.7.0/24".parse().unwrap()]),
            rate_limit: Some(RateChoice::Limited("20mbit".parse().unwrap())),
            ..ClientSettings::default()
        };
        assert_eq!(
            changed(ClientChange::Set(settings)),
            "changed: IPv4 address 10.66.0.9, automatic IPv6 address, prefixes 192.168.7.0/24, rate limit 20mbit"
        );
        let off = ClientSettings {
            prefixes: Some(Vec::new()),
            rate_limit: Some(RateChoice::Off),
            ..ClientSettings::default()
        };
        assert_eq!(changed(ClientChange::Set(off)), "changed: no prefixes, no rate limit");
        let removed = logged(&Request::ClientRemove { name: "laptop".to_owned() });
        assert_eq!(removed, Some(("laptop".to_owned(), "removed".to_owned())));
    }

    #[test]
    fn what_changes_no_client_has_no_line() {
        assert_eq!(logged(&Request::Status), None);
        assert_eq!(logged(&Request::ClientShow { name: "laptop".to_owned() }), None);
    }
}
