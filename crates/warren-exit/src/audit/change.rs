//! A change that an operator has asked for, in words.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use warren_config::counted;
use warren_control::{
    AddressChoice, ClientChange, ClientSettings, ImportSummary, InvitationView, NewClient, RateChoice,
    Request,
};

/// A change that an operator has asked for. It is logged once it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The client that the change is about. `None` if the change is about the exit, or about many clients at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// A description of the change.
    pub what: String,
}

impl Change {
    /// Returns the change that a request asks for. `None` if the request changes nothing, or if only the answer shows the changes.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        match request {
            Request::ClientAdd { client } => Some(Self::enrolled(client)),
            Request::ClientAddAll { clients } => Some(Self::enrolled_many(clients.len())),
            Request::ClientInvite { invitation } => Some(Self::invited(&InvitationView::of(invitation))),
            Request::ClientRemove { name } => Some(Self::removed(name)),
            Request::ClientChange { name, change } => Some(Self::of_client(name, change)),
            Request::Reload => Some(Self::of_exit("configuration read again".to_owned())),
            Request::Set { change } => Some(Self::of_exit(format!("setting {change}"))),
            Request::SetKeys { keys, end_sessions } => {
                let sessions = if *end_sessions { ", and every session ended" } else { "" };
                let number = keys.len();
                let keys = if number == 1 { "one key" } else { "the new key and the old one" };
                Some(Self::of_exit(format!("key rotation: {keys} served{sessions}")))
            }
            Request::Drain { .. } => Some(Self::of_exit("clients sent to other exits, to stop".to_owned())),
            Request::Stop => Some(Self::of_exit("stopped".to_owned())),
            Request::Status
            | Request::Exec { .. }
            | Request::NetworkResolvers
            | Request::Retry
            | Request::PublicKeys
            | Request::ClientList { .. }
            | Request::ClientShow { .. }
            | Request::InvitationList { .. }
            | Request::IsInvited { .. }
            | Request::RemovedList { .. }
            | Request::ClientImport { .. } => None,
            #[cfg(debug_assertions)]
            Request::BreakDown { .. } => None,
        }
    }

    /// The enrolment of a client.
    pub fn enrolled(client: &NewClient) -> Self {
        let limit = client.rate_limit.map(|limit| format!(", rate limit {limit}")).unwrap_or_default();
        let protocol = if client.wireguard.is_some() { " for WireGuard" } else { "" };
        Self::new(&client.name, format!("enrolled{protocol}{limit}"))
    }

    /// The enrolment of many clients at once.
    pub fn enrolled_many(count: usize) -> Self {
        Self::of_exit(format!("{} enrolled", counted(count, "client")))
    }

    /// The enrolment of a client that has used its invitation.
    pub(crate) fn joined(name: &str) -> Self {
        Self::new(name, "enrolled by invitation".to_owned())
    }

    /// The invitation of a client.
    pub fn invited(invitation: &InvitationView) -> Self {
        // The time is in UTC. It is shown without RFC 3339's letters T and Z.
        let expires = invitation.expires.trim_end_matches('Z').replace('T', " ");
        Self::new(&invitation.name, format!("invited until {expires} UTC"))
    }

    /// A change of a client.
    pub fn of_client(name: &str, change: &ClientChange) -> Self {
        Self::new(name, text(change))
    }

    /// Whether the change renames a client to this name.
    pub(crate) fn is_rename_to(&self, name: &str) -> bool {
        self.what.strip_prefix(RENAMED) == Some(name)
    }

    /// Whether the change frees the client's name for others.
    pub(crate) fn frees_name(&self) -> bool {
        self.what == REMOVED || self.what.starts_with(RENAMED)
    }

    /// The removal of a client, or the withdrawal of an invitation.
    pub fn removed(name: &str) -> Self {
        Self::new(name, REMOVED.to_owned())
    }

    /// An import of clients.
    pub fn imported(summary: &ImportSummary) -> Self {
        let ImportSummary { added, removed, changed, withdrawn, .. } = summary;
        Self::of_exit(format!(
            "clients imported: {} added, {} removed, {} changed, {} invitations withdrawn",
            added.count, removed.count, changed.count, withdrawn.count
        ))
    }

    fn new(client: &str, what: String) -> Self {
        Self { client: Some(client.to_owned()), what }
    }

    fn of_exit(what: String) -> Self {
        Self { client: None, what }
    }
}
const REMOVED: &str = "removed";

/// How the text of a rename begins. The new name follows.
const RENAMED: &str = "renamed to ";

fn text(change: &ClientChange) -> String {
    match change {
        ClientChange::Rename { to } => format!("{RENAMED}{to}"),
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
        Change::of(request).map(|change| (change.client.unwrap_or_default(), change.what))
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
    fn what_changes_the_exit_has_a_line_without_a_client() {
        let line = |request| logged(&request).unwrap();
        assert_eq!(line(Request::Reload), (String::new(), "configuration read again".to_owned()));
        assert_eq!(line(Request::Stop).1, "stopped");
        assert_eq!(line(Request::ClientAddAll { clients: Vec::new() }).1, "0 clients enrolled");
        let keys = Request::SetKeys { keys: Vec::new(), end_sessions: true };
        assert!(line(keys).1.ends_with("and every session ended"));
    }

    #[test]
    fn what_changes_nothing_has_no_line() {
        assert_eq!(logged(&Request::Status), None);
        assert_eq!(logged(&Request::ClientShow { name: "laptop".to_owned() }), None);
    }
}
