//! The parts that the daemons of client and exit share. The commands that start and query the daemons use them too.
//!
//! A daemon's files:
//! - [`directories`]: the directories of configuration, run-time files and state
//! - [`daemon_directory`]: one daemon's directory, its locks, and cleaning up after it
//!
//! A daemon's rights:
//! - [`sandbox`]: capabilities, files and system calls
//! - [`helper`]: the process that does what the sandbox forbids
//! - [`own_program`]: starting this program again
//!
//! Output and messages:
//! - [`logging`], [`output`]: logs, and the output of commands
//! - [`notify`]: notifications to the service manager
//! - [`exit_code`]: exit codes, and errors that carry one
//!
//! Upkeep of a running daemon:
//! - [`panics`]: makes a panic end the whole process
//! - [`spare_memory`]: returns unused memory to the host
//! - [`device_watch`]: notices that the TUN device was deleted
//! - [`resolvers`]: the resolvers of this host
//! - [`deadline`], [`entropy`]: time and random bytes for state machines
#![forbid(unsafe_code)]

pub mod daemon_directory;
pub mod deadline;
pub mod device_watch;
pub mod directories;
pub mod entropy;
pub mod exit_code;
pub mod helper;
pub mod logging;
pub mod members;
pub mod notify;
pub mod output;
pub mod own_program;
pub mod panics;
pub mod resolvers;
pub mod sandbox;
pub mod spare_memory;
