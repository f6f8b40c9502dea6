//! Answers to the page for operators: its questions, and the changes that operators make there.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;
use warren_quic::key::PublicKey;
use warren_session::clients::{Forward, PortRange, RateLimit};

use super::{Daemon, Propose, Then};
use crate::audit::Change as Audited;
use crate::clients::Clients;
use crate::host::HostSetup;
use crate::http::Peer;
use crate::web::{
    self, ApiCall, Change, ForwardedPorts, Named, NewForward, NewInvitation, NewLimit, Question, Typed,
};
use crate::wireguard::NewKey;
use crate::{invitation, list, wireguard};
use warren_config::{ExitSettings, proposed_name};
use warren_control::{ClientChange, ClientSettings, InvitationView, RateChoice};

/// The longest life of an invitation from the page, in hours.
const MOST_HOURS: u32 = 8_760;

/// The longest text that a name is made from, in bytes.
const LONGEST_TYPED: usize = 400;

/// A function that makes the answer to a change, and the change's entry in the audit log.
type Made = Box<dyn FnOnce(&Daemon<'_>, Value) -> (Value, Audited)>;

/// A change that the page asked for and that passed the checks.
struct Prepared {
    propose: Propose,
    follows_host: bool,
    made: Made,
}

impl Daemon<'_> {
    /// Answers a question of the page.
    pub(super) async fn answer_page(&mut self, question: Question) {
        self.clients.look_at_clock();
        let Question { asked, visitor, answer } = question;
        let reply = match asked {
            ApiCall::Overview => Ok(self.reporting.overview(&self.observe().await)),
            ApiCall::Clients(query) => Ok(self.reporting.client_table(&self.observe().await, &query)),
            ApiCall::Client(named) => {
                let now = Instant::now();
                self.reporting.client_page(&self.observe().await, &named.name, &self.audit, now)
            }
            ApiCall::Day => Ok(self.reporting.day()),
            ApiCall::Audit(query) => Ok(self.audit.page(&query)),
            ApiCall::Name(typed) => self.page_view().name_of(&typed),
            // The answer follows when the change has its outcome.
            ApiCall::Change(change) => return self.change_by_page(change, visitor, answer).await,
        };
        drop(answer.send(reply));
    }

    /// Makes a change, and answers once it has its outcome.
    async fn change_by_page(
        &mut self,
        change: Change,
        visitor: Peer,
        answer: oneshot::Sender<Result<Value, String>>,
    ) {
        // The user is read before the change, because the visitor's connection may end during the change.
        let user = visitor.user();
        let Prepared { propose, follows_host, made } = match self.page_view().prepare(change).await {
            Ok(prepared) => prepared,
            Err(error) => return drop(answer.send(Err(error))),
        };
        let then: Then = Box::new(move |daemon, outcome| {
            let reply = outcome.map_err(|refusal| refusal.message).map(|value| {
                let (value, audited) = made(daemon, value);
                daemon.audit.note_page(user, visitor.address(), audited);
                value
            });
            drop(answer.send(reply));
        });
        self.change(propose, follows_host, then).await;
    }

    fn page_view(&self) -> PageView<'_> {
        PageView {
            config: &self.config,
            clients: &self.clients,
            host: self.host,
            wireguard_key: self.reporting.wireguard_key,
        }
    }
}

/// The state about which the page asks questions, and with which its changes are checked.
struct PageView<'a> {
    config: &'a ExitSettings,
    clients: &'a Clients,
    host: &'a HostSetup,
    /// The exit's WireGuard key. `None` if the exit does not serve WireGuard.
    wireguard_key: Option<PublicKey>,
}

impl PageView<'_> {
    /// Checks the change that the page asks for.
    async fn prepare(&self, change: Change) -> Result<Prepared, String> {
        match change {
            Change::Invite(asked) => self.invite_by_page(&asked),
            Change::AddWireGuard(named) => self.add_wireguard(&named.name),
            Change::Rename(asked) => {
                // The page must check the name here. The command line does so before it asks.
                invitation::check_name(&asked.to).map_err(|error| format!("{error:#}"))?;
                let to = asked.to.clone();
                self.change_one(asked.name, ClientChange::Rename { to }, asked.to).await
            }
            Change::Disable(named) => {
                self.change_one(named.name.clone(), ClientChange::Disable, named.name).await
            }
            Change::Enable(named) => {
                self.change_one(named.name.clone(), ClientChange::Enable, named.name).await
            }
            Change::Limit(asked) => self.limit_by_page(asked).await,
            Change::Remove(Named { name }) => {
                let audited = Audited::removed(&name);
                Ok(Prepared {
                    propose: Box::new(move |clients| clients.remove(&name)),
                    follows_host: true,
                    made: Box::new(move |_, outcome| (outcome, audited)),
                })
            }
            Change::Forward(forward) => self.forward_by_page(forward).await,
            Change::Unforward(forward) => self.unforward_by_page(forward).await,
        }
    }

    /// Returns a free name made from a person's text (`name`), and the name that the text alone gives (`wanted`). If a client or
    /// an invitation has the wanted name, also returns which of the two has it (`holder`).
    fn name_of(&self, typed: &Typed) -> Result<Value, String> {
        if typed.text.len() > LONGEST_TYPED {
            return Err(format!("a name is at most {LONGEST_TYPED} bytes long"));
        }
        let registry = self.clients.registry();
        let is_invited = |name: &str| list::is_invited(registry, name);
        let own = typed.of.as_deref();
        let is_taken =
            |name: &str| own != Some(name) && (registry.by_name(name).is_some() || is_invited(name));
        let wanted = proposed_name(&typed.text, |_| false);
        let holder = is_taken(&wanted).then(|| if is_invited(&wanted) { "invitation" } else { "client" });
        Ok(json!({ "name": proposed_name(&typed.text, is_taken), "wanted": wanted, "holder": holder }))
    }

    /// A change of a client. The answer contains the client's forwards for the page's dialog. `after` is the
    /// client's name after the change.
    async fn change_one(
        &self,
        name: String,
        change: ClientChange,
        after: String,
    ) -> Result<Prepared, String> {
        let refused = self.host.refuse_forward(&change, self.config, self.clients.registry()).await;
        refused.map_err(|error| format!("{error:#}"))?;
        let audited = Audited::of_client(&name, &change);
        let made: Made = Box::new(move |daemon, outcome| {
            let client = daemon.clients.registry().by_name(&after);
            let forwards = client.map(|client| client.forwards.clone()).unwrap_or_default();
            let mut answer = json!({ "name": after, "forwards": forwards });
            if let (Value::Object(answer), Value::Object(outcome)) = (&mut answer, outcome) {
                answer.extend(outcome);
            }
            (answer, audited)
        });
        let propose: Propose = Box::new(move |clients| clients.change(&name, &change));
        Ok(Prepared { propose, follows_host: true, made })
    }

    async fn limit_by_page(&self, asked: NewLimit) -> Result<Prepared, String> {
        let limit = match &asked.rate {
            Some(rate) => RateChoice::Limited(rate.parse::<RateLimit>().map_err(|error| error.to_string())?),
            None => RateChoice::Off,
        };
        let settings = ClientSettings { rate_limit: Some(limit), ..ClientSettings::default() };
        self.change_one(asked.name.clone(), ClientChange::Set(settings), asked.name).await
    }

    async fn forward_by_page(&self, asked: NewForward) -> Result<Prepared, String> {
        let ports: PortRange = asked.ports.parse().map_err(|error| format!("{error}"))?;
        let forward = Forward::new(ports, asked.to.unwrap_or(ports.first()));
        let forward = forward.ok_or("the client's ports must be between 1 and 65535")?;
        self.change_one(asked.name.clone(), ClientChange::AddForward { forward }, asked.name).await
    }

    async fn unforward_by_page(&self, asked: ForwardedPorts) -> Result<Prepared, String> {
        let ports = asked.ports.parse().map_err(|error| format!("{error}"))?;
        self.change_one(asked.name.clone(), ClientChange::RemoveForward { ports }, asked.name).await
    }

    fn invite_by_page(&self, asked: &NewInvitation) -> Result<Prepared, String> {
        if !(1..=MOST_HOURS).contains(&asked.hours) {
            return Err(format!("an invitation is good for 1 to {MOST_HOURS} hours"));
        }
        let expires_in = Duration::from_secs(3_600) * asked.hours;
        let (invitation, line) =
            invitation::make(self.config, &asked.name, expires_in).map_err(|error| format!("{error:#}"))?;
        let view = InvitationView::of(&invitation);
        let made: Made = Box::new(move |_, _| {
            let answer = json!({ "name": view.name, "expires": view.expires, "line": line, "qr": web::qr_code(&line) });
            (answer, Audited::invited(&view))
        });
        let propose: Propose = Box::new(move |clients| clients.invite(invitation));
        Ok(Prepared { propose, follows_host: false, made })
    }

    /// Enrols a client that uses WireGuard's own apps. The answer contains the only copy of its
    /// configuration.
    fn add_wireguard(&self, name: &str) -> Result<Prepared, String> {
        let enrol = || -> anyhow::Result<_> {
            wireguard::endpoint(self.config)?;
            invitation::check_name(name)?;
            // The exit has this key if it serves WireGuard. A missing key means that [wireguard] was added and the exit has not
            // been restarted.
            let exit_key = self.wireguard_key.ok_or_else(|| {
                anyhow::anyhow!(
                    "the exit does not serve WireGuard yet; restart it: systemctl restart warren-exit"
                )
            })?;
            let leases = self.clients.registry().iter().map(warren_session::clients::Client::lease);
            let taken: HashSet<IpAddr> =
                leases.flat_map(|lease| lease.addresses().collect::<Vec<_>>()).collect();
            let addresses = wireguard::free_addresses(self.config, &taken, (None, None))?;
            wireguard::new_client(self.config, exit_key, (name, &NewKey::generate()?), addresses)
        };
        let (client, text) = enrol().map_err(|error| format!("{error:#}"))?;
        let new = client.clone();
        let made: Made = Box::new(move |_, _| {
            let answer = json!({
                "name": client.name,
                "configuration": text.as_str(),
                "file": configuration_file(&client.name),
                "qr": web::qr_code(&text),
            });
            (answer, Audited::enrolled(&client))
        });
        let propose: Propose = Box::new(move |clients| clients.add(&new));
        Ok(Prepared { propose, follows_host: true, made })
    }
}

/// A name for the configuration's file. WireGuard's apps name the tunnel after it, and take at most 15 characters.
fn configuration_file(client: &str) -> String {
    const LONGEST: usize = 15;
    let name: String = client.chars().take(LONGEST).collect();
    format!("{}.conf", name.trim_end_matches(['-', '.', '_']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configurations_file_is_a_name_that_the_apps_take() {
        assert_eq!(configuration_file("phone"), "phone.conf");
        assert_eq!(configuration_file("annas-new-phone-of-2026"), "annas-new-phone.conf");
        assert_eq!(configuration_file("annas-very-old-phone"), "annas-very-old.conf");
    }
}
