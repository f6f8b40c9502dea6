//! What the client's and the exit's daemon are both made of, and the commands around them share.
#![forbid(unsafe_code)]

pub mod breakdown;
pub mod daemon_dir;
pub mod deadline;
pub mod device_watch;
pub mod directories;
pub mod entropy;
pub mod exit_code;
pub mod helper;
pub mod itself;
pub mod logging;
pub mod notify;
pub mod output;
pub mod resolvers;
pub mod sandbox;
pub mod spare_memory;
