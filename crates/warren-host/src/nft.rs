//! Firewall tables through nft(8), either owned by an nft process or permanent.

mod call;
mod emptied;
mod own_tables;
mod owner;
mod ruleset;

use std::{fs::File, io, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::TableFamily;
pub use call::{NftCall, NftRunner, NftService, set_nft_runner};
pub(crate) use emptied::emptied;
pub use own_tables::OwnTables;
pub(crate) use owner::Owner;
pub use ruleset::{Ruleset, RulesetError};

/// Errors of nft.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// There is no nft on this machine.
    #[error("nft is missing; install it with: apt install nftables")]
    Missing,
    /// nft or the kernel refused.
    #[error("nft refused: {0}; see what `nft list ruleset` shows")]
    Refused(String),
    /// nft gave no further answer.
    #[error("nft ended or hung without an answer; see whether `nft list ruleset` works")]
    Gone,
    /// Talking to nft failed.
    #[error("nft could not be run: {0}; see whether `nft list ruleset` works")]
    Io(#[from] io::Error),
}

/// Whether this machine has nft.
pub fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // `Path::join` keeps an absolute path as it is, so this also covers a program named with its directory.
    let directories = || std::env::split_paths(&path).chain([PathBuf::from("/")]);
    PROGRAMS.iter().any(|program| directories().any(|directory| directory.join(program).is_file()))
}

/// Loads a ruleset that belongs to no process.
///
/// nft keeps `lock` open. So a process that undoes a killed one's changes waits until nft has ended too.
pub(crate) async fn load(ruleset: &str, lock: File) -> Result<(), NftError> {
    call::make(NftCall::Load { ruleset: ruleset.into() }, Some(lock)).await.map(drop)
}

/// Replaces the table by `ruleset`, which holds the text of `table` alone, atomically. The table need not exist.
pub(crate) async fn replace(
    family: TableFamily,
    table: &str,
    ruleset: &str,
    lock: File,
) -> Result<(), NftError> {
    // The `add` makes the `delete` valid whether or not the table exists.
    load(&format!("add table {family} {table}\ndelete table {family} {table}\n{ruleset}"), lock).await
}

/// The table as nft prints it, without counters; none if it does not exist.
pub(crate) async fn listing(family: TableFamily, table: &str) -> Result<Option<String>, NftError> {
    match call::make(NftCall::ListTable { family, table: table.into(), stateless: true }, None).await {
        Ok(listing) => Ok(Some(listing)),
        Err(NftError::Refused(_)) if !has_table(family, table).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the table exists.
async fn has_table(family: TableFamily, table: &str) -> Result<bool, NftError> {
    let wanted = format!("table {family} {table}");
    Ok(call::make(NftCall::ListTables { family }, None).await?.lines().any(|line| line == wanted))
}

/// The number of chains and of rules in the table; none if it does not exist.
pub(crate) async fn count(family: TableFamily, table: &str) -> Result<Option<(usize, usize)>, NftError> {
    if !has_table(family, table).await? {
        return Ok(None);
    }
    let listing =
        call::make(NftCall::ListTable { family, table: table.into(), stateless: false }, None).await?;
    Ok(Some(count_statements(&listing)))
}

/// The number of chains and of rules in a table's text, from nft or from a plan.
pub(crate) fn count_statements(text: &str) -> (usize, usize) {
    let mut chains = 0;
    let mut rules = 0;
    let mut is_continued = false;
    let mut in_set = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // The packet path may change the elements of a set.
        if in_set || line.starts_with("set ") {
            in_set = line != "}";
            continue;
        }
        // nft breaks a long set after a comma.
        let is_start = !std::mem::replace(&mut is_continued, line.ends_with(','));
        if line.starts_with("chain ") {
            chains += 1;
        } else if is_start && !["table ", "flags ", "type ", "}"].iter().any(|other| line.starts_with(other))
        {
            rules += 1;
        }
    }
    (chains, rules)
}

/// Deletes the table if it exists. An owner that was just killed gets time to end.
pub(crate) async fn delete(family: TableFamily, table: &str) -> Result<(), NftError> {
    let mut waited = Duration::ZERO;
    while has_table(family, table).await? {
        let refused = match call::make(NftCall::DeleteTable { family, table: table.into() }, None).await {
            Ok(_) => return Ok(()),
            Err(NftError::Refused(reason)) => NftError::Refused(reason),
            Err(error) => return Err(error),
        };
        if waited >= PATIENCE {
            return Err(refused);
        }
        sleep(PAUSE).await;
        waited += PAUSE;
    }
    Ok(())
}

async fn run(arguments: &[&str], input: &str) -> Result<String, NftError> {
    run_with(arguments, input, None).await
}

/// Runs nft with its standard output sent to `output`, or returned if there is none.
async fn run_with(arguments: &[&str], input: &str, output: Option<File>) -> Result<String, NftError> {
    let (reader, writer) = io::pipe()?;
    let mut child = spawn(|command| {
        let stdout = match &output {
            Some(output) => Stdio::from(output.try_clone()?),
            None => Stdio::from(writer.try_clone()?),
        };
        command.args(arguments).stdin(Stdio::piped()).stdout(stdout).stderr(writer.try_clone()?);
        Ok(())
    })?;
    drop(writer);
    let stdin = child.stdin.take();
    let mut output = pipe::Receiver::from_owned_fd(reader.into())?;
    let talk = async {
        let mut answer = String::new();
        let write = async {
            match stdin {
                Some(mut stdin) => stdin.write_all(input.as_bytes()).await,
                None => Ok(()),
            }
        };
        // nft may end before it has read everything. Its own message is the better error then.
        let (_, read) = tokio::join!(write, output.read_to_string(&mut answer));
        read?;
        let status = child.wait().await?;
        Ok::<_, NftError>((status, answer))
    };
    let (status, answer) = timeout(PATIENCE, talk).await.map_err(|_| NftError::Gone)??;
    match (status.success(), reason(&answer)) {
        (true, _) => Ok(answer),
        (false, Some(reason)) => Err(NftError::Refused(reason)),
        (false, None) => {
            Err(NftError::Refused(answer.lines().next().unwrap_or("it gave no reason").to_owned()))
        }
    }
}

/// Starts nft with an empty environment. Otherwise it would answer in the user's language and, when interactive, add
/// to the history file in the user's home.
fn spawn(set_up: impl Fn(&mut Command) -> io::Result<()>) -> Result<Child, NftError> {
    spawn_one_of(&PROGRAMS, set_up)
}

fn spawn_one_of(
    programs: &[&str],
    set_up: impl Fn(&mut Command) -> io::Result<()>,
) -> Result<Child, NftError> {
    for program in programs {
        let mut command = Command::new(program);
        command.env_clear().env("LC_ALL", "C").env("HOME", "/nonexistent").kill_on_drop(true);
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        set_up(&mut command)?;
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            child => return Ok(child?),
        }
    }
    Err(NftError::Missing)
}

/// The text behind the first `Error: ` in nft's answer.
fn reason(answer: &str) -> Option<String> {
    answer.lines().find_map(|line| line.split_once("Error: ")).map(|(_, reason)| reason.trim().to_owned())
}

const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];
/// The time limit of any nft run.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_counted_as_written_and_as_printed() {
        let written =
            "chain a {\n\ttype filter hook input priority 0;\n\tip daddr { 1.1.1.1, 2.2.2.2 } drop\n}\n";
        let printed = "table inet x { # progname nft\n\tflags owner\n\n\tchain a {\n\t\ttype filter hook input priority \
                       filter; policy accept;\n\t\tip daddr { 1.1.1.1,\n\t\t\t 2.2.2.2 } drop\n\t}\n}\n";

        assert_eq!(count_statements(written), (1, 1));
        assert_eq!(count_statements(printed), (1, 1));
        let filled = "set flows {\n\ttype ipv4_addr\n\telements = { 10.0.0.1 ct count over 9,\n\t\t10.0.0.2 ct count over 9 }\n}\n";
        assert_eq!(count_statements(&format!("{filled}{written}")), (1, 1));
    }

    #[test]
    fn reason_is_what_nft_says_first() {
        let answer = "/dev/stdin:1:1-5: Error: syntax error, unexpected string\nnope\n^^^^\nError: another\n";

        assert_eq!(reason(answer).unwrap(), "syntax error, unexpected string");
        assert_eq!(reason("table inet x\n"), None);
    }
}
