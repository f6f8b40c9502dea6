//! The page for operators: clients, rates and drops, invitations, changes of clients, and the audit log, served where `[web]` says.
//!
//! The page's files are embedded in the binary and load nothing from elsewhere. Every answer with figures, and every change, needs the
//! token, which only root and the exit's own user can read.

mod client_history;
mod history;
mod page;
mod page_request;
mod qr;
mod rate_series;
mod reply;
mod server;
mod table_query;
mod token;

pub(super) use qr::code as qr_code;
pub(super) use server::{
    ApiCall, AuditQuery, Change, ForwardedPorts, Named, NewForward, NewInvitation, NewLimit, Question, Typed,
    WebServer, unix_socket,
};
pub(super) use table_query::{Sort, TableQuery, Which};
