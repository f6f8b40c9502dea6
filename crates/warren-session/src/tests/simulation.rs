//! Runs one exit against several clients over a network that reorders packets, loses them and cuts connections. Both sides restart,
//! clients change their keys, the operator changes the registry, and the wall clock steps. The store of the registry answers late,
//! refuses requests, and loses requests that it has not acknowledged. Other exits write to the store. Every action is checked
//! against a model (`exit_model`, `clients_model`, `host`, `store`). Once the trouble is over, every client must be connected
//! again.

mod clients_model;
mod exit_model;
mod host;
mod input;
mod network;
mod operator;
mod rosters;
mod store;
#[cfg(test)]
mod tests;
mod trouble;
mod world;

pub use self::input::run_bytes;
