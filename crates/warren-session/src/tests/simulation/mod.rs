//! Runs one exit against several clients over a network that delivers in any order, loses, and cuts, while both sides
//! restart, clients change their keys, the operator changes the registry and the calendar steps. Every action is checked
//! against a model as it is carried out (`exit_model`, `clients_model`, `host`), and once the trouble is over everybody must
//! be connected again.

mod clients_model;
mod exit_model;
mod host;
mod input;
mod network;
mod operator;
#[cfg(test)]
mod tests;
mod trouble;
mod world;

pub use self::input::run_bytes;
