//! `warren fleet ticket` and `warren fleet join`: how a further exit gets into the fleet.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use etcd_client::{
    AuthClient, Client, Compare, CompareOp, Permission, RoleAddResponse, Txn, TxnOp, UserAddOptions,
};
use serde::{Deserialize, Serialize};
use warren_fleet_link::{ExitId, Pools};

use super::files::{write, write_config};
use super::{Connected, connect, print, print_json, read_meta};
use crate::config::{FleetConfig, StoreConfig};
use crate::exits::Member;
use crate::keys::{Key, Keys, is_fleet_name};
use crate::run::{Directories, random_name};
use crate::store::{StoreOptions, has_found, in_words};

/// What a ticket begins with.
const MARK: &str = "warrenfleet1:";

/// `warren fleet ticket`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TicketArguments {
    /// The new exit's name in the fleet.
    exit: String,
    /// The new exit's certificate for the store. Its common name must be warren-FLEET-NAME. Without one, the exit gets a password.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// A user of the store who may make users. Without it, this exit's own user is asked.
    #[arg(long, value_name = "NAME", requires = "admin_password_file")]
    admin: Option<String>,
    /// A file with that user's password.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_password_file: Option<PathBuf>,
}

/// `warren fleet join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArguments {
    /// What `warren fleet ticket` has printed.
    ticket: String,
    /// Print the exit's name and the fleet's inner prefixes as JSON.
    #[arg(long)]
    json: bool,
}

/// What a ticket says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ticket {
    fleet: String,
    exit: ExitId,
    endpoints: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    /// Certificate and private key, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<(String, String)>,
    /// Name and password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<(String, String)>,
    /// Makes the ticket one that can be used once.
    secret: String,
}

impl Ticket {
    fn text(&self) -> anyhow::Result<String> {
        Ok(format!("{MARK}{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(self)?)))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let rest = text.trim().strip_prefix(MARK);
        let rest = rest.with_context(|| {
            format!("this is no ticket; it begins with {MARK}, as `warren fleet ticket` prints it")
        })?;
        let damaged = "the ticket is damaged; copy all of what `warren fleet ticket` has printed";
        let json = URL_SAFE_NO_PAD.decode(rest).context(damaged)?;
        let ticket: Self = serde_json::from_slice(&json).context(damaged)?;
        if !is_fleet_name(&ticket.fleet) {
            bail!("{damaged}");
        }
        // Before the ticket's password goes to any of them.
        StoreConfig { endpoints: ticket.endpoints.clone(), ..StoreConfig::default() }.check()?;
        Ok(ticket)
    }

    /// The key that is in the store while the ticket is unused.
    fn key(&self, keys: &Keys) -> String {
        let hash = digest(&SHA256, self.secret.as_bytes());
        keys.ticket(&URL_SAFE_NO_PAD.encode(hash.as_ref()))
    }
}

/// Makes a ticket and prints it.
///
/// # Errors
/// If the name is taken, or the store cannot be written.
pub(crate) async fn ticket(directories: Directories<'_>, arguments: &TicketArguments) -> anyhow::Result<()> {
    let mut fleet = connect(directories.config).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    let member = fleet.keys.name(&Key::Member(exit.clone()));
    let taken = format!(
        "the fleet has an exit {exit} already; choose another name, or remove that one with `warren fleet remove {exit}`"
    );
    // Before `make_user`, which replaces a user of that name. The exit that has the name would lose the store.
    let found = in_words(fleet.client.get(member.as_str(), None).await)?;
    if !found.kvs().is_empty() {
        bail!("{taken}");
    }
    let own = fleet.config.store.options()?;
    let identity = identity_for(arguments, &own)?;
    let user = make_user(&fleet, &exit, arguments, identity.is_some()).await?;
    // A certificate that this exit shares with the new one proves no user; a password does.
    let identity = identity.or(own.identity.filter(|_| user.is_some()));
    let ticket = Ticket {
        fleet: fleet.config.fleet.clone(),
        exit: exit.clone(),
        endpoints: fleet.config.store.endpoints.clone(),
        ca: own.ca,
        identity,
        user,
        secret: random_name()?,
    };
    let is_free = Compare::version(member, CompareOp::Equal, 0);
    let put = TxnOp::put(ticket.key(&fleet.keys), exit.as_str(), None);
    let answer = in_words(fleet.client.txn(Txn::new().when([is_free]).and_then([put])).await)?;
    if !answer.succeeded() {
        bail!("{taken}");
    }
    print(&format!("{}\n", ticket.text()?))
}

/// The new exit's certificate.
fn identity_for(arguments: &TicketArguments, own: &StoreOptions) -> anyhow::Result<Option<(String, String)>> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
    };
    match (&arguments.certificate, &arguments.key) {
        (Some(certificate), Some(key)) => Ok(Some((read(certificate)?, read(key)?))),
        _ if own.identity.is_some() && own.user.is_none() => bail!(
            "this exit proves who it is by a certificate, so the new one needs one of its own: give it with --certificate and \
             --key; its common name is the store's user (warren-FLEET-NAME)"
        ),
        _ => Ok(None),
    }
}

/// Makes a user and a role for the new exit, which may write the fleet's keys only. `None` if the store checks no users, or if the
/// certificate is enough.
async fn make_user(
    fleet: &Connected,
    exit: &ExitId,
    arguments: &TicketArguments,
    has_certificate: bool,
) -> anyhow::Result<Option<(String, String)>> {
    let name = user_name(&fleet.config.fleet, exit);
    let mut options = fleet.config.store.options()?;
    if let (Some(admin), Some(file)) = (&arguments.admin, &arguments.admin_password_file) {
        let password =
            std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        options.user = Some((admin.clone(), password.trim_end().to_owned()));
    }
    let admin = options.connect_any().await.context("the user who makes users is refused")?;
    let mut auth = admin.auth_client();
    let password = random_name()? + &random_name()?;
    let made = add_user(&mut auth, &fleet.keys, &name, (!has_certificate).then_some(password.as_str())).await;
    made.with_context(|| {
        format!("the store's user {name} cannot be made; name a user who may make users with --admin, such as root")
    })?;
    if has_certificate {
        return Ok(None);
    }
    // A store that checks no users answers so.
    let with_user = StoreOptions { user: Some((name.clone(), password.clone())), ..options };
    match with_user.connect_any().await {
        Err(error) if format!("{error:#}").contains("authentication is not enabled") => {
            tracing::warn!(
                "the store checks no users: whoever reaches it may change everything; make its user root and run `etcdctl auth enable`"
            );
            Ok(None)
        }
        connected => connected.map(|_| Some((name, password))).context("the new user is refused"),
    }
}

/// The store's user of an exit, and the name of its role.
pub(crate) fn user_name(fleet: &str, exit: &ExitId) -> String {
    format!("warren-{fleet}-{exit}")
}

async fn add_user(
    auth: &mut AuthClient,
    keys: &Keys,
    name: &str,
    password: Option<&str>,
) -> anyhow::Result<()> {
    let _: Option<RoleAddResponse> = unless_exists(auth.role_add(name).await)?;
    in_words(auth.role_grant_permission(name, Permission::read_write(keys.prefix()).with_prefix()).await)?;
    // One of an earlier ticket, whose password nobody needs any more.
    let _ = auth.user_delete(name).await;
    let options = password.is_none().then(|| UserAddOptions::new().with_no_pwd());
    in_words(auth.user_add(name, password.unwrap_or_default(), options).await)?;
    in_words(auth.user_grant_role(name, name).await)?;
    Ok(())
}

fn unless_exists<T>(answer: Result<T, etcd_client::Error>) -> anyhow::Result<Option<T>> {
    match in_words(answer) {
        Err(error) if error.to_string().contains("already exists") => Ok(None),
        answer => answer.map(Some),
    }
}

/// What `warren fleet join --json` prints.
#[derive(Serialize)]
struct Joined<'a> {
    fleet: &'a str,
    exit: &'a ExitId,
    pools: &'a Pools,
}

/// Joins a fleet: writes `fleet.toml` and the files that it names.
///
/// # Errors
/// If the ticket is used or damaged, or the store cannot be reached.
pub(crate) async fn join(directories: Directories<'_>, arguments: &JoinArguments) -> anyhow::Result<()> {
    let path = FleetConfig::free_path(directories.config)?;
    let ticket = Ticket::parse(&arguments.ticket)?;
    let Ticket { endpoints, ca, identity, user, .. } = ticket.clone();
    let mut client = StoreOptions { endpoints, ca, identity, user }.connect_any().await?;
    let keys = Keys::new(&ticket.fleet);
    let meta = read_meta(&mut client, &keys).await?;
    let meta = meta.with_context(|| format!("the store has no fleet {:?} any more", ticket.fleet))?;
    let config = write_files(directories.config, &ticket)?;
    if let Err(error) = use_up(&mut client, &keys, &ticket).await {
        // Without them the exit belongs to no fleet.
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    if arguments.json {
        return print_json(&Joined { fleet: &config.fleet, exit: &config.exit, pools: &meta.pools });
    }
    let pools = crate::link::pools_text(&meta.pools);
    print(&format!(
        "This exit is {} of fleet {:?}. {} is written.\nNext: give exit.toml the pools {pools} and `[fleet]` with `name = \"{}\"`, \
         then start warren-fleet.service and the exit.\n",
        config.exit,
        config.fleet,
        path.display(),
        config.exit,
    ))
}

/// Turns the ticket into a member of the fleet.
async fn use_up(client: &mut Client, keys: &Keys, ticket: &Ticket) -> anyhow::Result<()> {
    let (key, member) = (ticket.key(keys), keys.name(&Key::Member(ticket.exit.clone())));
    let content = serde_json::to_vec(&Member::default())?;
    let compares = [
        Compare::version(key.as_str(), CompareOp::Greater, 0),
        Compare::version(member.as_str(), CompareOp::Equal, 0),
    ];
    let then = [TxnOp::delete(key.as_str(), None), TxnOp::put(member, content, None)];
    let otherwise = [TxnOp::get(key, None)];
    let answer = in_words(client.txn(Txn::new().when(compares).and_then(then).or_else(otherwise)).await)?;
    if answer.succeeded() {
        return Ok(());
    }
    let is_unused = answer.op_responses().iter().any(has_found);
    if is_unused {
        bail!("the fleet has an exit {} already; get a ticket with another name", ticket.exit);
    }
    bail!("this ticket was used already; get another one with `warren fleet ticket {}`", ticket.exit)
}

fn write_files(directory: &Path, ticket: &Ticket) -> anyhow::Result<FleetConfig> {
    let file = |name: &str, content: Option<&String>| {
        let path = std::path::absolute(directory.join("fleet").join(name))?;
        content.map(|content| write(&path, content.as_bytes()).map(|()| path)).transpose()
    };
    let identity = ticket.identity.as_ref();
    let store = StoreConfig {
        endpoints: ticket.endpoints.clone(),
        ca: file("store-ca.pem", ticket.ca.as_ref())?,
        certificate: file("store.pem", identity.map(|(certificate, _)| certificate))?,
        key: file("store.key", identity.map(|(_, key)| key))?,
        user: ticket.user.as_ref().map(|(user, _)| user.clone()),
        password_file: file("store.password", ticket.user.as_ref().map(|(_, password)| password))?,
    };
    let config = FleetConfig { fleet: ticket.fleet.clone(), exit: ticket.exit.clone(), store };
    write_config(directory, &config)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn a_ticket() -> Ticket {
        Ticket {
            fleet: "home".to_owned(),
            exit: ExitId::try_from("ams2".to_owned()).unwrap(),
            endpoints: vec!["https://a:2379".to_owned()],
            ca: Some("PEM".to_owned()),
            identity: None,
            user: Some(("warren-home-ams2".to_owned(), "secret".to_owned())),
            secret: "x".to_owned(),
        }
    }

    #[test]
    fn a_ticket_comes_back() {
        assert_eq!(Ticket::parse(&format!(" {}\n", a_ticket().text().unwrap())).unwrap(), a_ticket());
    }

    proptest! {
        #[test]
        fn no_other_text_is_a_ticket(text in ".{0,40}") {
            prop_assert!(Ticket::parse(&text).is_err());
            let damaged = format!("{MARK}{text}");
            prop_assert!(Ticket::parse(&damaged).is_err());
        }
    }
}
