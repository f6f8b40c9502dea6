//! The `[exec]` section of a profile: the users who may put programs inside or outside of the tunnel.

use warren_host::dns::Servers;

use super::ConfigError;
use super::document::Document;
use super::value::{Problem, Value, list};
use super::wording::quoted;

/// A profile's settings for `warren exec`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecSettings {
    /// The users besides root who may run programs inside or outside, by name or by number.
    pub users: Vec<String>,
    /// The resolvers that programs inside use, if they differ from those of `[dns]`. The file cannot set them.
    pub servers: Option<Servers>,
}

impl ExecSettings {
    pub(super) fn read(document: &mut Document<'_>) -> Result<Self, ConfigError> {
        const USERS: &str = "a list of users such as [\"alice\"]";
        let mut section = document.section("exec")?;
        let users = section.or("users", Vec::new(), list(USERS, user))?;
        section.finish()?;
        Ok(Self { users, servers: None })
    }
}

/// A user's name or number.
fn user(value: Value<'_>) -> Result<String, Problem> {
    let text = value.text("the name of a user such as \"alice\"")?;
    // Allows the characters that useradd(8) accepts, and those of directory services.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-$@\\".contains(&byte);
    if text.is_empty() || text.len() > LONGEST || !text.bytes().all(is_plain) {
        return Err(
            value.problem(format!("is {}, but must be the name or the number of a user", quoted(text)))
        );
    }
    Ok(text.to_owned())
}

/// The longest name of a user (LOGIN_NAME_MAX of limits.h).
const LONGEST: usize = 256;
