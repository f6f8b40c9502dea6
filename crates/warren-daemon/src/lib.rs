//! The parts that the daemons of client and exit share. The commands that start and query the daemons use them too.
//!
//! Where a daemon lives:
//! - [`directories`]: the directories of configuration, run-time files and state
//! - [`daemon_directory`]: one daemon's directory, its locks, and cleaning up after it
//!
//! What a daemon may do:
//! - [`sandbox`]: capabilities, files and system calls
//! - [`helper`]: the process that does what the sandbox forbids
//! - [`own_program`]: starting this program again
//!
//! What a process says:
//! - [`logging`], [`output`]: logs, and the output of commands
//! - [`notify`]: notices to the service manager
//! - [`exit_code`]: exit codes, and errors that carry one
//!
//! What daemons look after:
//! - [`panics`]: a panic ends the whole process
//! - [`spare_memory`]: unused memory goes back to the host
//! - [`device_watch`]: the TUN device may be deleted
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
