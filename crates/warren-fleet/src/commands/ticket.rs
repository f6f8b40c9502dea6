//! `warren fleet ticket` and `warren fleet join`: how a further exit gets into the fleet.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use etcd_client::{
    AuthClient, Client, Compare, CompareOp, GetOptions, Permission, PutOptions, RoleAddResponse, Txn, TxnOp,
    UserAddOptions,
};
use serde::{Deserialize, Serialize};
use warren_fleet_link::{ExitId, Pools};

use super::files::{credentials_directory, write, write_config};
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
    /// How long the ticket works.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = validity)]
    expires: Duration,
}

/// A time from a minute to 30 days.
fn validity(text: &str) -> Result<Duration, String> {
    const MINUTE: Duration = Duration::from_secs(60);
    const MONTH: Duration = Duration::from_secs(30 * 86_400);
    let time =
        humantime::parse_duration(text).map_err(|_| "must be a time such as 24h or 30min".to_owned())?;
    if !(MINUTE..=MONTH).contains(&time) {
        return Err("must be from 1min to 30d".to_owned());
    }
    Ok(time)
}

/// `warren fleet join`.
#[derive(Args, Clone, Debug)]
pub(crate) struct JoinArguments {
    /// What `warren fleet ticket` has printed; `-` to read it from standard input, or @FILE to read it from a file. Every user of
    /// this host can see command lines.
    #[arg(value_name = "TICKET|-|@FILE")]
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
    /// A random text, by which the store knows whether the ticket was used.
    secret: String,
    /// In seconds since 1970. The store deletes its record of the ticket at that time.
    expires: u64,
}

impl Ticket {
    fn text(&self) -> anyhow::Result<String> {
        Ok(format!("{MARK}{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(self)?)))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let rest = text.trim().strip_prefix(MARK);
        let rest = rest.with_context(|| {
            format!("this is not a ticket; a ticket begins with {MARK}, as `warren fleet ticket` prints it")
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
    let lifetime = i64::try_from(arguments.expires.as_secs())?;
    let lease = in_words(fleet.client.lease_grant(lifetime, None).await)?;
    let ticket = Ticket {
        expires: seconds(SystemTime::now()) + arguments.expires.as_secs(),
        fleet: fleet.config.fleet.clone(),
        exit: exit.clone(),
        endpoints: fleet.config.store.endpoints.clone(),
        ca: own.ca,
        identity,
        user,
        secret: random_name()?,
    };
    let is_free = Compare::version(member, CompareOp::Equal, 0);
    let until = PutOptions::new().with_lease(lease.id());
    let put = TxnOp::put(ticket.key(&fleet.keys), exit.as_str(), Some(until));
    let answer = in_words(fleet.client.txn(Txn::new().when([is_free]).and_then([put])).await)?;
    if !answer.succeeded() {
        bail!("{taken}");
    }
    print(&format!("{}\n", ticket.text()?))
}

/// Voids the tickets of an exit that has not joined: the keys in the store, and the user. Returns whether there was any.
pub(super) async fn revoke(fleet: &mut Connected, exit: &ExitId) -> anyhow::Result<bool> {
    let all = GetOptions::new().with_prefix();
    let tickets = in_words(fleet.client.get(fleet.keys.ticket(""), Some(all)).await)?;
    let mut is_found = false;
    for ticket in tickets.kvs().iter().filter(|ticket| ticket.value() == exit.as_str().as_bytes()) {
        in_words(fleet.client.delete(ticket.key(), None).await)?;
        is_found = true;
    }
    let user = user_name(&fleet.config.fleet, exit);
    let mut auth = fleet.client.auth_client();
    is_found |= auth.user_delete(&user).await.is_ok();
    let _ = auth.role_delete(&user).await;
    Ok(is_found)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
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
        format!("the store's user {name} cannot be made; use --admin to name a user who may make users, such as root")
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
    let ticket = Ticket::parse(&text_of(&arguments.ticket)?)?;
    if ticket.expires <= seconds(SystemTime::now()) {
        bail!("this ticket has expired; get another one with `warren fleet ticket {}`", ticket.exit);
    }
    let files = Files::of(directories.config, &ticket)?;
    let Ticket { endpoints, ca, identity, user, .. } = ticket.clone();
    let mut client = StoreOptions { endpoints, ca, identity, user }.connect_any().await?;
    let keys = Keys::new(&ticket.fleet);
    let meta = read_meta(&mut client, &keys).await?;
    let meta = meta.with_context(|| format!("the store has no fleet {:?} any more", ticket.fleet))?;
    let written = match files.write(directories.config) {
        Ok(()) => use_up(&mut client, &keys, &ticket).await,
        Err(error) => Err(error),
    };
    if let Err(error) = written {
        // Without them the exit belongs to no fleet, and the ticket still has the secrets.
        files.remove(directories.config);
        return Err(error);
    }
    let config = files.config;
    if arguments.json {
        return print_json(&Joined { fleet: &config.fleet, exit: &config.exit, pools: &meta.pools });
    }
    let pools = crate::link::pools_text(&meta.pools);
    print(&format!(
        "This exit is {} of fleet {:?}. {} is written.\nNext: write the pools {pools} into [addresses] of exit.toml, and `[fleet]` with `name = \"{}\"`, \
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
    bail!(
        "this ticket was used already, has expired or is void; get another one with `warren fleet ticket {}`",
        ticket.exit
    )
}

/// The ticket itself, or what standard input or a file has.
fn text_of(argument: &str) -> anyhow::Result<String> {
    /// Longer than any ticket.
    const MOST: u64 = 256 * 1024;
    let mut text = String::new();
    if argument == "-" {
        std::io::stdin().take(MOST).read_to_string(&mut text).context("standard input cannot be read")?;
        return Ok(text);
    }
    let Some(path) = argument.strip_prefix('@') else { return Ok(argument.to_owned()) };
    let file = std::fs::File::open(path).with_context(|| format!("{path} cannot be opened"))?;
    file.take(MOST).read_to_string(&mut text).with_context(|| format!("{path} cannot be read"))?;
    Ok(text)
}

/// What joining writes: the ticket's credentials, and the `fleet.toml` that names them.
struct Files {
    config: FleetConfig,
    credentials: Vec<(PathBuf, String)>,
}

impl Files {
    /// # Errors
    /// If one of them exists.
    fn of(directory: &Path, ticket: &Ticket) -> anyhow::Result<Self> {
        let mut credentials = Vec::new();
        let mut file = |name: &str, content: Option<&String>| {
            let Some(content) = content else { return Ok(None) };
            let path = std::path::absolute(credentials_directory(directory).join(name))?;
            // Unlike `exists`, this also finds a link that leads nowhere.
            if std::fs::symlink_metadata(&path).is_ok() {
                bail!("{} exists and stays as it is; move it away, then run this again", path.display());
            }
            credentials.push((path.clone(), content.clone()));
            Ok(Some(path))
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
        Ok(Self { config, credentials })
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        for (path, content) in &self.credentials {
            write(path, content.as_bytes())?;
        }
        write_config(directory, &self.config)
    }

    fn remove(&self, directory: &Path) {
        for (path, _) in &self.credentials {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_dir(credentials_directory(directory));
        let _ = std::fs::remove_file(FleetConfig::path(directory));
    }
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
            expires: 2_000_000_000,
        }
    }

    #[test]
    fn a_ticket_comes_back() {
        assert_eq!(Ticket::parse(&format!(" {}\n", a_ticket().text().unwrap())).unwrap(), a_ticket());
    }

    #[test]
    fn a_refused_join_leaves_no_secret_and_touches_no_file_that_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::of(directory.path(), &a_ticket()).unwrap();
        files.write(directory.path()).unwrap();
        assert!(directory.path().join("fleet/store.password").exists());
        files.remove(directory.path());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

        let own = directory.path().join("fleet/store.password");
        std::fs::create_dir(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "mine").unwrap();
        let refused = Files::of(directory.path(), &a_ticket()).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("store.password exists"), "{refused}");
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "mine");
    }

    #[test]
    fn a_ticket_is_read_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ticket");
        std::fs::write(&path, a_ticket().text().unwrap() + "\n").unwrap();
        let text = text_of(&format!("@{}", path.display())).unwrap();
        assert_eq!(Ticket::parse(&text).unwrap(), a_ticket());
        assert!(text_of("@/nonexistent").unwrap_err().to_string().contains("/nonexistent"));
    }

    #[test]
    fn a_ticket_lives_from_a_minute_to_a_month() {
        assert_eq!(validity("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["0", "59s", "31d", "never", "24"] {
            assert!(validity(wrong).is_err(), "{wrong}");
        }
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
