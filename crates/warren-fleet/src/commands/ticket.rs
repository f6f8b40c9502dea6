//! `warren fleet ticket`: admits a further exit to the fleet.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use warren_config::parse_time;
use warren_fleet_link::ExitId;

use super::{Connected, connect, print};
use crate::certificates::common_name;
use crate::config::{StoreConfig, read_identity, read_text};
use crate::keys::{Key, Keys, is_fleet_name};
use crate::run::{Directories, random_name};
use crate::store::{StoreOptions, ended, has_found, in_words};
use crate::users::{self, Grant, user_name};

/// The beginning of every ticket.
const MARK: &str = "warrenfleet1:";

/// `warren fleet ticket`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TicketArguments {
    /// The new exit's name in the fleet.
    exit: String,
    /// The new exit's certificate for the store. Its common name must be warren-FLEET-NAME. Without a certificate, the exit
    /// gets a password. This works only if the store does not ask this exit for a certificate.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    #[command(flatten)]
    admin: AdminArguments,
    /// How long the ticket works.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = validity)]
    expires: Duration,
}

/// The etcd user that makes and removes users.
#[derive(Args, Clone, Debug)]
pub(super) struct AdminArguments {
    /// A user of the store who may make and remove users. Without it, this exit's own user is asked.
    #[arg(long, value_name = "NAME", requires = "admin_password_file")]
    admin: Option<String>,
    /// A file with that user's password.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_password_file: Option<PathBuf>,
}

impl AdminArguments {
    /// Whether the command line names a user.
    pub(super) fn is_given(&self) -> bool {
        self.admin.is_some()
    }

    /// The options with which the user of these arguments reaches the store.
    fn options(&self, fleet: &Connected) -> anyhow::Result<StoreOptions> {
        let mut options = fleet.config.store.options()?;
        if let (Some(admin), Some(file)) = (&self.admin, &self.admin_password_file) {
            options.user = Some((admin.clone(), read_text(file)?.trim_end().to_owned()));
        }
        Ok(options)
    }

    /// The name of the user of these arguments, if it has one.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn user(&self, fleet: &Connected) -> anyhow::Result<Option<String>> {
        let StoreOptions { user, identity, .. } = self.options(fleet)?;
        let of_certificate = || common_name(&identity?.0).ok();
        Ok(user.map(|(name, _)| name).or_else(of_certificate))
    }

    /// Connects as the user of these arguments.
    ///
    /// # Errors
    /// If the store refuses the user.
    pub(super) async fn connect(&self, fleet: &Connected) -> anyhow::Result<Client> {
        self.options(fleet)?
            .connect_any()
            .await
            .context("the store refuses the etcd user that is to make or remove users")
    }
}

fn validity(text: &str) -> Result<Duration, String> {
    parse_time(text, "1min", "30d")
}

/// The content of a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ticket {
    pub(super) fleet: String,
    pub(super) exit: ExitId,
    pub(super) endpoints: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ca: Option<String>,
    /// Certificate and private key, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) identity: Option<(String, String)>,
    /// Name and password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<(String, String)>,
    /// A random text. From its digest, the store knows whether the ticket was used.
    pub(super) secret: String,
    /// When the ticket expires, in seconds since 1970. The store deletes its record of the ticket at that time.
    pub(super) expires: u64,
}

impl Ticket {
    pub(super) fn text(&self) -> anyhow::Result<String> {
        Ok(format!("{MARK}{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(self)?)))
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let rest = text.trim().strip_prefix(MARK);
        let rest = rest.with_context(|| {
            format!("this is not a ticket; a ticket begins with {MARK}, as `warren fleet ticket` prints it")
        })?;
        let damaged = "the ticket is damaged; copy all of what `warren fleet ticket` has printed";
        let json = URL_SAFE_NO_PAD.decode(rest).map_err(|_| anyhow!(damaged))?;
        let ticket: Self = serde_json::from_slice(&json).map_err(|_| anyhow!(damaged))?;
        if !is_fleet_name(&ticket.fleet) {
            bail!("{damaged}");
        }
        // The endpoints are checked before the ticket's password is sent to any of them.
        StoreConfig { endpoints: ticket.endpoints.clone(), ..StoreConfig::default() }.check()?;
        Ok(ticket)
    }

    /// Returns the ticket's name in the store, which does not learn the secret.
    pub(super) fn digest(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(&SHA256, self.secret.as_bytes()))
    }

    /// The key that is in the store while the ticket is unused.
    pub(super) fn key(&self, keys: &Keys) -> String {
        keys.ticket(&self.digest())
    }
}

/// The interval and the number of checks whether the removal of a user is over. A removal takes longer only if its process was
/// killed halfway.
const REMOVAL: (Duration, u32) = (Duration::from_millis(200), 25);

/// Makes a ticket and prints it.
///
/// # Errors
/// If the name is taken, or the store cannot be written.
pub(crate) async fn ticket(directories: Directories<'_>, arguments: &TicketArguments) -> anyhow::Result<()> {
    let mut fleet = connect(&directories).await?;
    let exit = ExitId::try_from(arguments.exit.clone())?;
    let own = fleet.config.store.options()?;
    let user = user_name(&fleet.config.fleet, &exit);
    let identity = identity_for(arguments, &own, &user)?;
    if let (Some(_), Some(certificate)) = (&identity, &arguments.certificate) {
        let certificate_name = certificate.display().to_string();
        let new = StoreOptions { identity: identity.clone(), user: None, certificate_name, ..own.clone() };
        new.connect_any().await.context("the ticket would not work, so none was made")?;
    }
    // `grant` checks this again. Here, the refusal comes before any warning.
    let was_removed = check_stopped(&mut fleet, &exit).await? > 0;
    let mut admin = arguments.admin.connect(&fleet).await?;
    // Without the right to make users, nothing may be written: the grant of an exit that has left says that its user must be removed.
    let looked = users::is_there(&admin, &user).await;
    looked.with_context(|| cannot_make(&user))?;
    let is_member = Key::Member(exit.clone());
    let is_member = !in_words(fleet.client.get(fleet.keys.name(&is_member), None).await)?.kvs().is_empty();
    if !is_member
        && identity.is_some()
        && (was_removed || users::granted(&mut fleet.client, &fleet.keys, &exit).await?.is_some())
    {
        tracing::warn!(
            "{exit} has been an exit or had a ticket before, and every certificate that was made for {user} opens the store again from now on; \
             if another host may still have one, run `warren fleet remove {exit}` now, and choose another name"
        );
    }
    let mut ticket = Ticket {
        expires: seconds(SystemTime::now()) + arguments.expires.as_secs(),
        fleet: fleet.config.fleet.clone(),
        exit,
        endpoints: fleet.config.store.endpoints.clone(),
        ca: own.ca,
        identity,
        user: None,
        secret: random_name()?,
    };
    // The ticket is stored before the user is made. So the user is removed when the ticket ends, even if this command is killed
    // halfway.
    grant(&mut fleet, &mut admin, &ticket, arguments.expires).await?;
    match make_user(&fleet, &admin, arguments, ticket.identity.is_some(), &user).await {
        Ok(made) => ticket.user = made,
        Err(error) => {
            // The grant stays, so that a link removes the user if it was made.
            in_words(fleet.client.delete(ticket.key(&fleet.keys), None).await)?;
            return Err(error);
        }
    }
    print(&format!("{}\n", ticket.text()?))
}

fn cannot_make(user: &str) -> String {
    format!(
        "the store's user {user} cannot be made; use --admin to name a user who may make users, such as root"
    )
}

/// Refuses the name of a removed exit that may still serve. If a new exit had that name, the removed one would no longer be listed
/// anywhere. Returns the revision of the exit's removal, or 0 if there is none.
async fn check_stopped(fleet: &mut Connected, exit: &ExitId) -> anyhow::Result<i64> {
    let removed = ended(&mut fleet.client, &fleet.keys, exit).await?;
    if removed.is_some_and(|removed| removed.may_serve(SystemTime::now())) {
        bail!(
            "{exit} was removed and has not confirmed that it stops, so it may still serve; stop it on its host and run `warren fleet remove \
             {exit} --stopped`, or choose another name"
        );
    }
    Ok(removed.map_or(0, |removed| removed.at))
}

/// Puts a ticket into the store. Voids an earlier one for the same exit.
async fn grant(
    fleet: &mut Connected,
    admin: &mut Client,
    ticket: &Ticket,
    lifetime: Duration,
) -> anyhow::Result<()> {
    let exit = &ticket.exit;
    // If the ticket is not stored, the lease ends by itself.
    let lease = in_words(fleet.client.lease_grant(i64::try_from(lifetime.as_secs())?, None).await)?;
    let earlier = settled(fleet, admin, exit).await?;
    // The exit may have been removed since the grant was read, or while this command waited. The transaction would otherwise give a
    // lingering exit its rights back.
    let removed_at = check_stopped(fleet, exit).await?;
    let [member, removed] =
        [Key::Member(exit.clone()), Key::RemovedExit(exit.clone())].map(|key| fleet.keys.name(&key));
    let key = fleet.keys.grant(exit);
    let modified = earlier.as_ref().map_or(0, |earlier| earlier.modified);
    let compares = [
        Compare::version(member.as_str(), CompareOp::Equal, 0),
        Compare::mod_revision(key.as_str(), CompareOp::Equal, modified),
        Compare::mod_revision(removed, CompareOp::Equal, removed_at),
    ];
    let grant = Grant { ticket: ticket.digest(), ..Grant::default() };
    let until = PutOptions::new().with_lease(lease.id());
    let mut then = vec![
        TxnOp::put(key, serde_json::to_vec(&grant)?, None),
        TxnOp::put(ticket.key(&fleet.keys), exit.as_str(), Some(until)),
    ];
    then.extend(earlier.map(|earlier| TxnOp::delete(fleet.keys.ticket(&earlier.grant.ticket), None)));
    let look = TxnOp::get(member, None);
    let answer = in_words(fleet.client.txn(Txn::new().when(compares).and_then(then).or_else([look])).await)?;
    if answer.succeeded() {
        return Ok(());
    }
    if answer.op_responses().iter().any(has_found) {
        bail!(
            "the fleet has an exit {exit} already; choose another name, or remove that one with `warren fleet remove {exit}`"
        );
    }
    bail!("the ticket or the user of {exit} is being changed right now; run this again")
}

/// Returns the earlier grant of an exit. If its user is being removed, waits until the user is gone.
async fn settled(
    fleet: &mut Connected,
    admin: &mut Client,
    exit: &ExitId,
) -> anyhow::Result<Option<users::Granted>> {
    let (pause, most) = REMOVAL;
    for _ in 0..most {
        let earlier = users::granted(&mut fleet.client, &fleet.keys, exit).await?;
        if earlier.as_ref().is_none_or(|earlier| !earlier.grant.is_ending) {
            return Ok(earlier);
        }
        sleep(pause).await;
    }
    if let Some(earlier) = users::granted(&mut fleet.client, &fleet.keys, exit).await? {
        users::end(admin, &fleet.keys, &earlier).await?;
    }
    users::granted(&mut fleet.client, &fleet.keys, exit).await
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Reads the new exit's certificate, which must be that of its user. With this exit's own certificate, the holder of the ticket
/// could pose as this exit.
fn identity_for(
    arguments: &TicketArguments,
    own: &StoreOptions,
    user: &str,
) -> anyhow::Result<Option<(String, String)>> {
    let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) else {
        if own.identity.is_some() {
            bail!(
                "the store asks this exit for a certificate, so the new one needs one of its own, whose common name is {user} \
                 (docs/fleet.md says how to make it); give it with --certificate and --key"
            );
        }
        return Ok(None);
    };
    let path = certificate.display();
    let (certificate, key) = read_identity(certificate, key)?;
    let name = common_name(&certificate).with_context(|| format!("{path} has no certificate"))?;
    if name != user {
        bail!(
            "the certificate {path} belongs to the etcd user {name:?}, and anyone with the ticket could act as that user; give a \
             certificate whose common name is {user}"
        );
    }
    if own.identity.as_ref().is_some_and(|(_, own)| *own == key) {
        bail!("{path} contains this exit's own key; make another key for the new exit");
    }
    Ok(Some((certificate, key)))
}

/// Makes a user and a role for the new exit. The user may write only the fleet's keys. Returns `None` if the store checks no users,
/// or if the certificate is enough.
async fn make_user(
    fleet: &Connected,
    admin: &Client,
    arguments: &TicketArguments,
    has_certificate: bool,
    name: &str,
) -> anyhow::Result<Option<(String, String)>> {
    let mut auth = admin.auth_client();
    // Each half has 96 random bits.
    let password = random_name()? + &random_name()?;
    let made =
        users::add(&mut auth, &fleet.keys, name, (!has_certificate).then_some(password.as_str())).await;
    made.with_context(|| cannot_make(name))?;
    if has_certificate {
        return Ok(None);
    }
    // A store without authentication answers with the error that is handled here.
    let user = Some((name.to_owned(), password.clone()));
    match (StoreOptions { user, ..arguments.admin.options(fleet)? }).connect_any().await {
        Err(error) if format!("{error:#}").contains("authentication is not enabled") => {
            tracing::warn!(
                "the store does not check users: anyone who reaches it may change everything; create its user root and run `etcdctl auth enable`"
            );
            Ok(None)
        }
        connected => connected.map(|_| Some((name.to_owned(), password))).context("the new user is refused"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn a_ticket() -> Ticket {
        Ticket {
            fleet: "home".to_owned(),
            exit: ExitId::try_from("ams2".to_owned()).unwrap(),
            endpoints: vec!["https://a:2379".to_owned()],
            ca: Some(include_str!("../certificates/test.pem").to_owned()),
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
