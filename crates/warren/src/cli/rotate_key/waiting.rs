//! The clients that have not connected with the exit's new key yet, and what each of them needs.

use std::time::SystemTime;

use anyhow::Context as _;
use serde::Serialize;
use warren_quic::key::PublicKey;

use crate::cli::exit_client::store;
use crate::cli::status::units::ago;
use warren_config::{ExitSettings, counted};
use warren_control::{ClientView, InvitationView, PageQuery};
use warren_daemon::directories::Directories;
use warren_daemon::output;

/// Maximum number of clients that are listed as text.
const MOST_SHOWN: usize = 20;

/// The state of a rotation.
#[derive(Debug, Serialize)]
pub(super) struct Waiting {
    /// The number of clients that pin a key of the exit. WireGuard clients do not count, because they use another key.
    clients: usize,
    /// The clients that have not connected with the new key, by name.
    waiting: Vec<WaitingClient>,
    /// The names of open invitations. Invitations from before the rotation contain the old key.
    invitations: Vec<String>,
    /// At an exit of a fleet: the names of clients that have never connected to any exit. The rotation does not wait for them,
    /// because it is unknown which exit is in their profiles.
    never_seen: Vec<String>,
}

#[derive(Debug, Serialize)]
struct WaitingClient {
    name: String,
    /// When the client was last seen, in the format of RFC 3339. `None` if it was never seen.
    last_seen: Option<String>,
    needs: Need,
}

/// What is needed before a client connects with the new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Need {
    /// The client is connected, and is about to use the new key.
    Nothing,
    /// The client is connected, but its version of Warren cannot receive keys from the exit.
    KeyByHand,
    /// The client is not connected, or has never connected.
    ToConnect,
    /// The client is disabled.
    ToBeEnabled,
}

impl Waiting {
    /// Asks the running exit, or reads its store.
    ///
    /// # Errors
    /// When the clients cannot be listed.
    pub(super) async fn look(
        directories: &Directories,
        config: &ExitSettings,
        new: PublicKey,
    ) -> anyhow::Result<Self> {
        let (directories, path) = (directories.clone(), config.path.clone());
        // Reading the store blocks until the exit answers, so it runs on another thread.
        let listing = tokio::task::spawn_blocking(move || {
            let config = warren_config::load_exit(&path)?;
            let mut store = store::open(&directories, &config)?;
            let clients = store::all(&PageQuery::default(), |page| store.clients(page))?.rows;
            let invitations = store::all(&PageQuery::default(), |page| store.invitations(page))?.rows;
            Ok((clients, invitations))
        });
        type Listing = (Vec<ClientView>, Vec<InvitationView>);
        let listing: anyhow::Result<Listing> = listing.await.context("cannot list the clients")?;
        let (clients, invitations) = listing?;
        let invitations = invitations.into_iter().map(|invitation| invitation.name).collect();
        // In a fleet, only clients that use the old key of this exit matter, because all other clients get the new key from the
        // roster.
        let only_of = config.fleet.as_ref().and(config.keys.old.as_ref()).map(|old| old.public());
        Ok(Self { invitations, ..Self::of(&clients, new, only_of) })
    }

    /// At an exit of a fleet, `only_of` is the old key. Clients that last connected to another exit are left out, because they
    /// pin that exit's key.
    fn of(clients: &[ClientView], new: PublicKey, only_of: Option<PublicKey>) -> Self {
        let is_own = |client: &ClientView| match (only_of, client.exit_key) {
            (Some(old), Some(key)) => key == old || key == new,
            // The fleet has not recorded to which exit this client last connected, so the client may have a profile for this
            // exit.
            (Some(_), None) => client.last_seen.is_some(),
            (None, _) => true,
        };
        let is_unseen = |client: &&ClientView| {
            only_of.is_some() && client.exit_key.is_none() && client.last_seen.is_none() && !client.wireguard
        };
        let pinning = clients.iter().filter(|client| !client.wireguard && is_own(client));
        let waiting = pinning.clone().filter(|client| client.exit_key != Some(new));
        Self {
            clients: pinning.count(),
            waiting: waiting
                .map(|client| WaitingClient {
                    name: client.name.clone(),
                    last_seen: client.last_seen.clone(),
                    needs: Need::of(client),
                })
                .collect(),
            invitations: Vec::new(),
            never_seen: clients.iter().filter(is_unseen).map(|client| client.name.clone()).collect(),
        }
    }

    /// Whether every client has connected with the new key.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a client is about to connect with the new key.
    pub(super) fn is_under_way(&self) -> bool {
        self.waiting.iter().any(|client| client.needs == Need::Nothing)
    }

    /// Describes how many clients have not connected with the new key.
    pub(super) fn count(&self) -> String {
        let (waiting, clients) = (self.waiting.len(), self.clients);
        let have = if waiting == 1 { "has" } else { "have" };
        format!("{waiting} of {} {have} not connected with the new key yet", counted(clients, "client"))
    }

    /// The list, with the number of clients that it leaves out.
    pub(super) fn text(&self) -> String {
        let now = SystemTime::now();
        if self.is_over() {
            return match self.clients {
                0 => "No client is enrolled that pins the exit's key.\n".to_owned(),
                1 => "The only client has connected with the new key.\n".to_owned(),
                clients => format!("All {clients} clients have connected with the new key.\n"),
            } + &self.others();
        }
        let row = |client: &WaitingClient| {
            let seen = client.last_seen.as_deref().map_or("never".to_owned(), |seen| ago(seen, now));
            vec![client.name.clone(), seen, client.needs.sentence().to_owned()]
        };
        let rows: Vec<_> = self.waiting.iter().take(MOST_SHOWN).map(row).collect();
        let more = match self.waiting.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            more => format!("and {more} more\n"),
        };
        let table = output::table(&["NAME", "LAST SEEN", "WHAT IT NEEDS"], &rows);
        format!("{}:\n{table}{more}{}", self.count(), self.others())
    }

    /// Describes what happens to open invitations, and to clients that have never connected.
    pub(super) fn others(&self) -> String {
        let mut text = String::new();
        if !self.invitations.is_empty() {
            text += &format!(
                "Open invitations: {}. Invitations from before the rotation contain the old key and stop working when \
                 it is retired. Make new ones.\n",
                shown(&self.invitations)
            );
        }
        if !self.never_seen.is_empty() {
            text += &format!(
                "These clients have never connected to any exit of the fleet: {}. The rotation does not wait for them. If a \
                 client's profile has only the old key of this exit, add the new key.\n",
                shown(&self.never_seen)
            );
        }
        text
    }
}

/// Joins the first names of a list.
fn shown(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(MOST_SHOWN).map(String::as_str).collect();
    shown.join(", ") + if names.len() > MOST_SHOWN { " and others" } else { "" }
}

impl Need {
    fn of(client: &ClientView) -> Self {
        let live = client.live.as_ref().filter(|live| live.connected);
        match live.map(|live| live.takes_updates) {
            _ if client.disabled => Self::ToBeEnabled,
            Some(Some(true)) => Self::Nothing,
            Some(Some(false) | None) => Self::KeyByHand,
            None => Self::ToConnect,
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Nothing => "nothing: it switches to the new key by itself",
            Self::KeyByHand => {
                "the new key written into its profile: its version of Warren is too old to receive keys from the exit"
            }
            Self::ToConnect => "to connect once before the old key is retired",
            Self::ToBeEnabled => "to be enabled, and to connect once",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_control::LiveView;
    use warren_session::clients::Client;

    const NEW: PublicKey = PublicKey([7; 32]);

    #[test]
    fn clients_without_the_new_key_are_listed_with_what_they_need() {
        let clients = [
            view("new", |client| client.exit_key = Some(NEW)),
            view("older", |client| client.exit_key = Some(PublicKey([6; 32]))),
            view("off", |client| client.disabled = true),
            connected("here", Some(true)),
            connected("old", Some(false)),
            connected("unknown", None),
            view("phone", |client| client.wireguard = true),
        ];
        let waiting = Waiting::of(&clients, NEW, None);

        let needs: Vec<_> =
            waiting.waiting.iter().map(|client| (client.name.as_str(), client.needs)).collect();
        assert_eq!(
            needs,
            [
                ("older", Need::ToConnect),
                ("off", Need::ToBeEnabled),
                ("here", Need::Nothing),
                ("old", Need::KeyByHand),
                ("unknown", Need::KeyByHand),
            ]
        );
        assert!(waiting.is_under_way() && !waiting.is_over());
        let text = waiting.text();
        assert!(text.starts_with("5 of 6 clients have not connected with the new key yet:\nNAME"), "{text}");
        assert!(text.contains("older    never      to connect once"), "{text}");
    }

    #[test]
    fn a_crowd_is_counted_beyond_the_first_names() {
        let crowd: Vec<_> = (10..110).map(|number| view(&format!("c{number}"), |_| {})).collect();
        let text = Waiting::of(&crowd, NEW, None).text();
        assert!(text.contains("c29") && !text.contains("c30") && text.ends_with("and 80 more\n"), "{text}");
    }

    #[test]
    fn a_rotation_is_over_once_everybody_has_the_key() {
        let all = [view("a", |client| client.exit_key = Some(NEW))];
        assert!(Waiting::of(&all, NEW, None).is_over());
        assert_eq!(Waiting::of(&all, NEW, None).text(), "The only client has connected with the new key.\n");
        assert!(Waiting::of(&[], NEW, None).is_over());
    }

    #[test]
    fn in_a_fleet_nobody_waits_for_clients_of_other_exits() {
        const OLD: PublicKey = PublicKey([6; 32]);
        let clients = [
            view("mine", |client| client.exit_key = Some(OLD)),
            view("moved", |client| client.exit_key = Some(NEW)),
            view("elsewhere", |client| client.exit_key = Some(PublicKey([5; 32]))),
            view("unseen", |_| {}),
            view("earlier", |client| client.last_seen = Some("2026-01-01T00:00:00Z".to_owned())),
        ];
        let names =
            |waiting: Waiting| waiting.waiting.into_iter().map(|client| client.name).collect::<Vec<_>>();
        let in_fleet = Waiting::of(&clients, NEW, Some(OLD));
        assert!(
            in_fleet.text().contains("These clients have never connected to any exit of the fleet: unseen."),
            "{}",
            in_fleet.text()
        );
        assert_eq!(names(in_fleet), ["mine", "earlier"]);
        assert_eq!(names(Waiting::of(&clients, NEW, None)), ["mine", "elsewhere", "unseen", "earlier"]);
    }

    fn view(name: &str, change: impl FnOnce(&mut ClientView)) -> ClientView {
        let client = Client::new(name, PublicKey([1; 32]), SystemTime::UNIX_EPOCH);
        let mut view = ClientView::of(&client, None);
        change(&mut view);
        view
    }

    fn connected(name: &str, takes_updates: Option<bool>) -> ClientView {
        let live = LiveView {
            connected: true,
            takes_updates,
            remote: None,
            received_bytes: 0,
            sent_bytes: 0,
            rate_limited_packets: 0,
            forwards_not_in_force: Vec::new(),
        };
        view(name, |client| client.live = Some(live))
    }
}
