//! Completes words on the command line, including the names of profiles and clients and the settings of `warren set`.
//!
//! To complete a word, the shell runs `warren` with [`VARIABLE`] set. Nothing is changed, and errors are not reported: a user who
//! may not read the names just gets fewer words.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::CompleteEnv;

use super::args::{COMPLETION_VARIABLE as VARIABLE, Cli, GlobalArgs};
use super::exit_client;
use super::fleet;
use warren_client as client;
use warren_config::{find_profile, load_exit, load_profile, profile_names};
use warren_control::{Change, PageQuery};
use warren_daemon::daemon_directory::{self, EXIT};
use warren_daemon::directories::Directories;

/// Maximum number of clients that are offered.
const MOST_CLIENTS: usize = 200;

/// Answers a shell that asks for completions, and ends the process. Returns if no shell asks.
pub(crate) fn answer_shell() {
    fleet::answer_shell(VARIABLE);
    CompleteEnv::with_factory(command).var(VARIABLE).bin("warren").complete();
}

/// Warren's arguments, with completions for names.
fn command() -> Command {
    with_names(Cli::command(), "warren")
}

fn with_names(command: Command, path: &str) -> Command {
    let command = command.mut_args(|argument| match names_for(path, &argument) {
        Some(names) => argument.add(ArgValueCompleter::new(names)),
        None => argument,
    });
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        with_names(below, &path)
    })
}

/// What an argument refers to, which decides the words that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// A profile, or the file of one.
    ProfileOrFile,
    /// A profile that is up.
    Up,
    /// A profile, or the exit.
    Daemon,
    /// A client of this machine's exit.
    Client,
    /// An exit of the profile that the command line names.
    ExitOfProfile,
    /// A setting of `warren set`.
    Setting,
    /// A value for the setting that the command line names.
    SettingValue,
}

fn names_for(path: &str, argument: &Arg) -> Option<Names> {
    match (path, argument.get_id().as_str()) {
        (
            "warren up"
            | "warren exec"
            | "warren portal"
            | "warren exits"
            | "warren client run"
            | "warren client close",
            "profile",
        ) => Some(Names::ProfileOrFile),
        ("warren up", "exit") => Some(Names::ExitOfProfile),
        ("warren down", "profile") => Some(Names::Up),
        ("warren set", "key") => Some(Names::Setting),
        ("warren set", "value") => Some(Names::SettingValue),
        (_, "profile") | ("warren doctor", "path") | ("warren cleanup", "daemon") => Some(Names::Daemon),
        ("warren exit client add", _) => None,
        (path, "name") if path.starts_with("warren exit client ") => Some(Names::Client),
        ("warren exit audit", "client") => Some(Names::Client),
        _ => None,
    }
}

impl ValueCompleter for Names {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let typed = Typed::read(std::env::args_os());
        let beginning = current.to_string_lossy();
        let mut words = self.words(&typed, &beginning).unwrap_or_default();
        words.retain(|word| word.starts_with(beginning.as_ref()));
        words.sort_unstable();
        words.dedup();
        let mut candidates: Vec<_> = words.into_iter().map(CompletionCandidate::new).collect();
        // Files are offered only once the user has typed a slash or a dot. Otherwise all files of the current directory would be
        // listed among the profiles.
        if *self == Self::ProfileOrFile && beginning.contains(['/', '.']) {
            candidates.extend(PathCompleter::file().complete(current));
        }
        candidates
    }
}

impl Names {
    /// Returns the possible words for the argument, including some that may not start with `beginning`. `None` if they cannot be
    /// read.
    fn words(self, typed: &Typed, beginning: &str) -> Option<Vec<String>> {
        let Typed { directories, matches } = typed;
        match self {
            Self::ProfileOrFile => Some(profiles(directories)),
            Self::Up => client::candidates(directories).ok(),
            Self::Daemon => {
                let running = daemon_directory::all(&directories.runtime).unwrap_or_default();
                let running = running.into_iter().map(|(name, _)| name);
                let exit = directories.config.join("exit.toml").exists().then(|| EXIT.to_owned());
                Some(profiles(directories).into_iter().chain(running).chain(exit).collect())
            }
            Self::Client => clients(directories, beginning),
            Self::ExitOfProfile => {
                let profile = matches.subcommand_matches("up")?.get_one::<OsString>("profile");
                let file = find_profile(&directories.config, profile.map(OsString::as_os_str)).ok()?;
                Some(load_profile(&file).ok()?.exits().map(|exit| exit.endpoint.to_string()).collect())
            }
            Self::Setting => Some(Change::keys().map(str::to_owned).to_vec()),
            Self::SettingValue => {
                let key = matches.subcommand_matches("set")?.get_one::<String>("key")?;
                Some(Change::words(key).iter().map(|word| (*word).to_owned()).collect())
            }
        }
    }
}

fn profiles(directories: &Directories) -> Vec<String> {
    let names = profile_names(&directories.config).unwrap_or_default();
    names.iter().map(|name| name.as_str().to_owned()).filter(|name| name != EXIT).collect()
}

/// Returns the first clients of the exit, whether it runs or not, whose names start with `beginning`.
fn clients(directories: &Directories, beginning: &str) -> Option<Vec<String>> {
    let config = load_exit(&directories.config.join("exit.toml")).ok()?;
    let mut store = exit_client::open(directories, &config).ok()?;
    let query = PageQuery { name: Some(beginning.to_owned()), after: None, limit: Some(MOST_CLIENTS) };
    let rows = exit_client::all(&query, |page| store.clients(page)).ok()?.rows;
    Some(rows.into_iter().map(|client| client.name).collect())
}

/// The words that have been typed so far.
struct Typed {
    directories: Directories,
    matches: ArgMatches,
}

impl Typed {
    /// Reads the words after `--`, where the shell puts the command line. It need not be complete.
    fn read(words: impl Iterator<Item = OsString>) -> Self {
        let words = words.skip_while(|word| word != "--").skip(1);
        let command = || Cli::command().ignore_errors(true);
        let matches = command().try_get_matches_from(words);
        // Parsing fails only if the command line asks for help. In that case the defaults are used.
        let matches = matches.unwrap_or_else(|_| command().get_matches_from(["warren"]));
        let global = GlobalArgs::from_arg_matches(&matches).and_then(|global| {
            global.directories().map_err(|_| clap::Error::new(clap::error::ErrorKind::Io))
        });
        let directories = global.unwrap_or_else(|_| Directories {
            config: "/etc/warren".into(),
            runtime: "/run/warren".into(),
            state: "/var/lib/warren".into(),
        });
        Self { directories, matches }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::args::ExitInitArgs;
    use crate::cli::exit_client::StoppedExit;
    use crate::cli::exit_init;
    use warren_control::NewClient;
    use warren_quic::key::PrivateKey;

    use crate::cli::exit_client::ClientStore as _;

    /// The words that are offered for the last word of a command line.
    fn offered(names: Names, directories: &Directories, beginning: &str) -> Vec<String> {
        let matches = Cli::command().ignore_errors(true).try_get_matches_from(["warren"]);
        let typed = Typed { directories: directories.clone(), matches: matches.unwrap() };
        let mut words = names.words(&typed, beginning).unwrap_or_default();
        words.retain(|word| word.starts_with(beginning));
        words
    }

    #[test]
    fn profiles_clients_and_settings_are_offered() {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::below(directory.path());
        let init = ExitInitArgs {
            endpoint: Some("192.0.2.1".parse().unwrap()),
            ipv4: None,
            ipv6: None,
            fleet: None,
        };
        exit_init::run(&directories, &init).unwrap();
        for name in ["home", "work"] {
            fs::write(directories.config.join(format!("{name}.toml")), "").unwrap();
        }
        let config = load_exit(&directories.config.join("exit.toml")).unwrap();
        let mut store = StoppedExit::new(&config, &directories.state);
        for name in ["laptop", "phone", "phablet"] {
            let key = PrivateKey::generate().unwrap().public();
            store.add(&NewClient::new(name.to_owned(), key, None, None)).unwrap();
        }

        assert_eq!(offered(Names::ProfileOrFile, &directories, ""), ["home", "work"]);
        assert_eq!(offered(Names::Daemon, &directories, "e"), ["exit"]);
        assert_eq!(offered(Names::Client, &directories, "ph"), ["phablet", "phone"]);
        assert_eq!(offered(Names::Setting, &directories, "max_transmit_s"), ["max_transmit_segments"]);
        let nowhere = Directories::below(&directory.path().join("nowhere"));
        assert!(offered(Names::Client, &nowhere, "").is_empty());
    }

    #[test]
    fn values_are_those_of_the_setting_and_directories_those_of_the_line() {
        let words = |line: &str| {
            let typed = ["warren", "--"].into_iter().chain(line.split(' ')).map(OsString::from);
            Typed::read(typed)
        };
        let typed = words("warren --config-dir /tmp/c set congestion c");
        assert_eq!(typed.directories.config.to_str(), Some("/tmp/c"));
        assert!(Names::SettingValue.words(&typed, "c").unwrap().contains(&"cubic".to_owned()));
        assert!(Names::SettingValue.words(&words("warren set tun_batches 1"), "").unwrap().is_empty());
    }

    #[test]
    fn every_argument_that_is_a_name_has_words() {
        let found = |line: &[&str], argument: &str| {
            let mut command = Cli::command();
            for word in line {
                command = command.find_subcommand(word).unwrap().clone();
            }
            let argument = command.get_arguments().find(|known| known.get_id() == argument).unwrap();
            names_for(&format!("warren {}", line.join(" ")), argument)
        };
        for (line, argument, names) in [
            (&["up"][..], "profile", Some(Names::ProfileOrFile)),
            (&["up"], "exit", Some(Names::ExitOfProfile)),
            (&["down"], "profile", Some(Names::Up)),
            (&["status"], "profile", Some(Names::Daemon)),
            (&["reload"], "profile", Some(Names::Daemon)),
            (&["doctor"], "path", Some(Names::Daemon)),
            (&["cleanup"], "daemon", Some(Names::Daemon)),
            (&["client", "run"], "profile", Some(Names::ProfileOrFile)),
            (&["set"], "key", Some(Names::Setting)),
            (&["set"], "profile", Some(Names::Daemon)),
            (&["exit", "client", "show"], "name", Some(Names::Client)),
            (&["exit", "client", "rename"], "name", Some(Names::Client)),
            (&["exit", "client", "forward", "add"], "name", Some(Names::Client)),
            (&["exit", "client", "forward", "list"], "name", Some(Names::Client)),
            (&["exit", "client", "forward", "remove"], "name", Some(Names::Client)),
            (&["exit", "client", "forward", "add"], "ports", None),
            (&["exit", "client", "rename"], "new_name", None),
            (&["exit", "client", "add"], "name", None),
            (&["exit", "invite"], "name", None),
            (&["exit", "audit"], "client", Some(Names::Client)),
        ] {
            assert_eq!(found(line, argument), names, "{line:?} {argument}");
        }
    }
}
