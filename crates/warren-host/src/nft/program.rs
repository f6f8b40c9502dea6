//! Running the program nft(8).

use std::{fs::File, io, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    process::{Child, Command},
    time::timeout,
};

use super::error::NftError;

/// Whether this machine has nft.
pub fn is_installed() -> bool {
    // This only looks for the file, because running nft takes longer.
    let path = std::env::var_os("PATH").unwrap_or_default();
    // `Path::join` keeps an absolute path as it is, so this also covers a program named with its directory.
    let directories = || std::env::split_paths(&path).chain([PathBuf::from("/")]);
    PROGRAMS.iter().any(|program| directories().any(|directory| directory.join(program).is_file()))
}

/// Runs nft and returns its output.
pub(super) async fn run(arguments: &[&str], input: &str) -> Result<String, NftError> {
    run_with(arguments, input, None).await
}

/// Runs nft with its standard output sent to `output`. Without `output`, returns the standard output.
pub(super) async fn run_with(
    arguments: &[&str],
    input: &str,
    output: Option<File>,
) -> Result<String, NftError> {
    let (reader, writer) = io::pipe()?;
    let mut child = spawn(|command| {
        let stdout = match &output {
            Some(output) => Stdio::from(output.try_clone()?),
            None => Stdio::from(writer.try_clone()?),
        };
        command.args(arguments).stdin(Stdio::piped()).stdout(stdout).stderr(writer.try_clone()?);
        Ok(())
    })?;
    // If a copy stayed open here, the read below would never end.
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
        // nft may end before it has read everything. In that case its own message is the better error.
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

/// Runs nft and returns its output, if that has at most `most` bytes.
pub(crate) async fn said(arguments: &[&str], most: u64) -> Result<String, NftError> {
    said_by(&PROGRAMS, arguments, most).await
}

/// Runs the first of these programs that exists, and returns its output if it has at most `most` bytes.
pub(crate) async fn said_by(programs: &[&str], arguments: &[&str], most: u64) -> Result<String, NftError> {
    let mut child = spawn_one_of(programs, |command| {
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(())
    })?;
    let mut text = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The pipe is closed afterwards, so a program that prints more ends by itself.
        stdout.take(most + 1).read_to_string(&mut text).await?;
    }
    if text.len() as u64 > most {
        return Err(NftError::Refused(format!("more than {most} bytes")));
    }
    match child.wait().await?.success() {
        true => Ok(text),
        false => Err(NftError::Refused("the rules cannot be listed".to_owned())),
    }
}

/// Starts nft with an empty environment. Otherwise it would answer in the user's language and, when interactive, add
/// to the history file in the user's home.
pub(super) fn spawn(set_up: impl Fn(&mut Command) -> io::Result<()>) -> Result<Child, NftError> {
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

/// The text after the first `Error: ` in nft's answer.
pub(super) fn reason(answer: &str) -> Option<String> {
    answer.lines().find_map(|line| line.split_once("Error: ")).map(|(_, reason)| reason.trim().to_owned())
}

// The bare name is looked up in PATH. The other names are needed because PATH may lack the directories of
// administration programs.
const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];
/// The time limit of any nft run.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_what_nft_says_first() {
        let answer = "/dev/stdin:1:1-5: Error: syntax error, unexpected string\nnope\n^^^^\nError: another\n";

        assert_eq!(reason(answer).unwrap(), "syntax error, unexpected string");
        assert_eq!(reason("table inet x\n"), None);
    }
}
