//! The driver's connections in a simulation of whole endpoints.

mod simulation;
