//! The page for operators: sessions, rates and drops, invitations and revocation, served where `[web]` says.
//!
//! What is served is embedded in the binary and loads nothing from elsewhere. Every answer with figures, and every change, asks for
//! the token that only root and the exit's own user can read.

mod history;
mod page;
mod page_request;
mod qr;
mod reply;
mod server;
mod token;

pub(super) use qr::code as qr_code;
pub(super) use server::{ApiCall, NewInvitation, Question, WebServer, unix_socket};
