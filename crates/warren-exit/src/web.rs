//! The page for operators: sessions, rates and drops, invitations and revocation, served where `[web]` says.
//!
//! The page's files are embedded in the binary and load nothing from elsewhere. Every answer with figures, and every change, needs the
//! token, which only root and the exit's own user can read.

mod history;
mod page;
mod page_request;
mod qr;
mod reply;
mod server;
mod table_query;
mod token;

pub(super) use qr::code as qr_code;
pub(super) use server::{
    ApiCall, ForwardedPorts, NewForward, NewInvitation, Question, WebServer, unix_socket,
};
pub(super) use table_query::{Sort, TableQuery};
