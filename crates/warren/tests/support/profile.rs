//! A client's profile as the exit prints it, with a test's changes.

use toml::{Table, Value};

/// The text of a profile, which can be changed key by key.
#[derive(Clone, Debug)]
pub struct Profile(Table);

impl Profile {
    pub fn parse(text: &str) -> Self {
        Self(text.parse().unwrap_or_else(|error| panic!("{error}\n{text}")))
    }

    /// Sets `section.key`.
    #[must_use]
    pub fn with(mut self, section: &str, key: &str, value: impl Into<Value>) -> Self {
        let section = self.0.entry(section).or_insert_with(|| Table::new().into());
        section.as_table_mut().unwrap().insert(key.into(), value.into());
        self
    }

    /// Removes `section.key`.
    #[must_use]
    pub fn without(mut self, section: &str, key: &str) -> Self {
        self.0[section].as_table_mut().unwrap().remove(key).unwrap();
        self
    }

    /// Sets a key of the first exit.
    #[must_use]
    pub fn with_exit(mut self, key: &str, value: impl Into<Value>) -> Self {
        let exit = &mut self.0["exit"].as_array_mut().unwrap()[0];
        exit.as_table_mut().unwrap().insert(key.into(), value.into());
        self
    }

    /// Appends the first exit of another profile to the exits of this one.
    #[must_use]
    pub fn with_failover_to(mut self, other: &Self) -> Self {
        let exit = other.0["exit"].as_array().unwrap()[0].clone();
        self.0["exit"].as_array_mut().unwrap().push(exit);
        self
    }

    /// A string value of a section.
    pub fn value(&self, section: &str, key: &str) -> &str {
        self.0[section][key].as_str().unwrap()
    }

    pub fn text(&self) -> String {
        self.0.to_string()
    }
}
