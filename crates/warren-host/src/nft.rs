//! Firewall tables through nft(8), either in a process that owns its table or once and for all.

use std::{fs::File, io, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::unix::pipe,
    process::{Child, ChildStdin, Command},
    time::{sleep, timeout},
};

/// Why nft did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// There is no nft on this machine.
    #[error("nft is missing; install it with: apt install nftables")]
    Missing,
    /// nft or the kernel refused.
    #[error("nft refused it: {0}")]
    Refused(String),
    /// nft said nothing more.
    #[error("nft ended or hung before it had answered; see whether `nft list ruleset` works")]
    Gone,
    /// Talking to nft failed.
    #[error("nft could not be run: {0}; see whether `nft list ruleset` works")]
    Io(#[from] io::Error),
}

/// An interactive nft whose netlink socket owns the tables that it makes.
///
/// The kernel removes them when that socket is closed, and lets nobody else change them. The process reads commands from
/// a pipe, so it ends when this process does, however that happens.
#[derive(Debug)]
pub(crate) struct Owner {
    child: Child,
    input: ChildStdin,
    output: BufReader<pipe::Receiver>,
}

impl Owner {
    pub(crate) fn start() -> Result<Self, NftError> {
        let (reader, writer) = io::pipe()?;
        let mut child = spawn(|command| {
            command
                .arg("-i")
                .stdin(Stdio::piped())
                .stdout(writer.try_clone()?)
                .stderr(writer.try_clone()?)
                // A Ctrl-C in the terminal is for the daemon, which still needs the table while it stops.
                .process_group(0);
            Ok(())
        })?;
        let input = child.stdin.take().ok_or(NftError::Gone)?;
        let output = BufReader::new(pipe::Receiver::from_owned_fd(reader.into())?);
        Ok(Self { child, input, output })
    }

    /// Waits until the process has ended, which takes its tables along.
    pub(crate) async fn ended(&mut self) {
        // An error means that there is no such process to wait for.
        drop(self.child.wait().await);
    }

    /// Gives nft a ruleset, all of which takes effect or nothing.
    pub(crate) async fn load(&mut self, ruleset: &str) -> Result<(), NftError> {
        self.command(&one_line(ruleset)).await.map(drop)
    }

    async fn command(&mut self, command: &str) -> Result<String, NftError> {
        let answer = timeout(PATIENCE, async {
            self.input.write_all(format!("{command}\n{SENTINEL}\n").as_bytes()).await?;
            let mut answer = String::new();
            loop {
                let start = answer.len();
                if self.output.read_line(&mut answer).await? == 0 {
                    return Err(NftError::Gone);
                }
                let is_last = answer.get(start..).is_some_and(|line| line.starts_with(SENTINEL_ANSWER));
                if is_last {
                    answer.truncate(start);
                    return Ok(answer);
                }
            }
        });
        let answer = answer.await.map_err(|_| NftError::Gone)??;
        match reason(&answer) {
            Some(reason) => Err(NftError::Refused(reason)),
            None => Ok(answer),
        }
    }

    /// Ends the process, and so its tables.
    pub(crate) async fn end(self) {
        let Self { mut child, input, output } = self;
        drop((input, output));
        if timeout(PATIENCE, child.wait()).await.is_err() {
            // An error means that it has ended by itself meanwhile.
            let _ = child.kill().await;
        }
    }
}

/// Whether this machine has nft.
pub fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A program that is named with its directory is taken from there, whatever it is joined to.
    let directories = || std::env::split_paths(&path).chain([PathBuf::from("/")]);
    PROGRAMS.iter().any(|program| directories().any(|directory| directory.join(program).is_file()))
}

/// Loads a ruleset that belongs to no process.
///
/// nft keeps `lock` open, so that whoever undoes what a killed process has begun waits until nft has ended too.
pub(crate) async fn load(ruleset: &str, lock: File) -> Result<(), NftError> {
    // It would print nothing there.
    run_with(&["-f", "-"], ruleset, Some(lock)).await.map(drop)
}

/// Puts `ruleset`, the text of `table` alone, in the place of the table if it exists, with no moment between the two.
pub(crate) async fn replace(table: &str, ruleset: &str, lock: File) -> Result<(), NftError> {
    // Adding first makes the deletion work whether the table exists or not.
    load(&format!("add table inet {table}\ndelete table inet {table}\n{ruleset}"), lock).await
}

/// The table as nft prints it, without counters; none if it does not exist.
pub(crate) async fn listing(table: &str) -> Result<Option<String>, NftError> {
    match run(&["-s", "list", "table", "inet", table], "").await {
        Ok(listing) => Ok(Some(listing)),
        Err(NftError::Refused(_)) if !has_table(table).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the table exists.
pub(crate) async fn has_table(table: &str) -> Result<bool, NftError> {
    let wanted = format!("table inet {table}");
    Ok(run(&["list", "tables", "inet"], "").await?.lines().any(|line| line == wanted))
}

/// The number of chains and of rules in the table; none if it does not exist.
pub(crate) async fn count(table: &str) -> Result<Option<(usize, usize)>, NftError> {
    if !has_table(table).await? {
        return Ok(None);
    }
    let listing = run(&["list", "table", "inet", table], "").await?;
    Ok(Some(count_statements(&listing)))
}

/// The number of chains and of rules in a table's text as nft prints it, or as a plan writes it.
pub(crate) fn count_statements(text: &str) -> (usize, usize) {
    let mut chains = 0;
    let mut rules = 0;
    let mut is_continued = false;
    let mut in_set = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // What a set of the packet path holds is the kernel's to change.
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

/// Deletes the table if it exists. An owner that has just been killed is given the time to end.
pub(crate) async fn delete(table: &str) -> Result<(), NftError> {
    let mut waited = Duration::ZERO;
    while has_table(table).await? {
        let refused = match run(&["delete", "table", "inet", table], "").await {
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

/// Runs nft with its standard output at `output`, or with what it prints there in the answer.
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
        // nft may end without having read everything; what it says then is the better error.
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

/// Starts nft without anything of this process's environment. It would otherwise answer in the user's language and, when
/// interactive, add to the history file in the user's home.
fn spawn(set_up: impl Fn(&mut Command) -> io::Result<()>) -> Result<Child, NftError> {
    for program in PROGRAMS {
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

/// The ruleset as one line, because an interactive nft takes each line for a command of its own.
fn one_line(ruleset: &str) -> String {
    let mut line = String::with_capacity(ruleset.len());
    for statement in ruleset.lines().map(str::trim).filter(|statement| !statement.is_empty()) {
        line.push_str(statement);
        line.push_str(if statement.ends_with(['{', ';']) { " " } else { "; " });
    }
    line
}

/// What follows the first `Error: ` in nft's answer.
fn reason(answer: &str) -> Option<String> {
    answer.lines().find_map(|line| line.split_once("Error: ")).map(|(_, reason)| reason.trim().to_owned())
}

const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];
/// A command that only prints, by which the end of the answer before it is known.
const SENTINEL: &str = "describe meta mark";
const SENTINEL_ANSWER: &str = "meta expression, datatype mark";
/// How long nft may take for anything.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ruleset_on_one_line_keeps_its_statements_apart() {
        let text = "table inet x {\n\tflags owner;\n\tchain a {\n\t\tcounter drop\n\t}\n}\n";

        assert_eq!(one_line(text), "table inet x { flags owner; chain a { counter drop; }; }; ");
    }

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
