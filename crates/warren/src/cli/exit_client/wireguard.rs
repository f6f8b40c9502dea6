//! `warren exit client add --wireguard`: enrols a client that uses WireGuard's own programs, and prints its configuration.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use qrcodegen::{QrCode, QrCodeEcc};
use warren_session::PublicKey;
use warren_wireguard::parse_public_key;

use super::add::{check, to_file, to_stdout};
use super::invite::EARLIER_IS_VOID;
use super::store::{ClientStore, all};
use crate::cli::args::ClientAddArgs;
use warren_config::ExitSettings;
use warren_control::{ClientView, NewClient, PageQuery};
use warren_daemon::output;
use warren_exit::wireguard::{self, NewKey};

/// Bright white on black, whatever the terminal's colours are.
const COLOURS: &str = "\x1b[40;97m";
const NO_COLOURS: &str = "\x1b[0m";
/// Light modules around a code, which its readers need (ISO 18004 section 6.3.8).
const MARGIN: i32 = 4;

/// Enrols the client with fixed addresses, because they are written into its configuration.
pub(super) fn add(
    config: &ExitSettings,
    clients: &Path,
    args: &ClientAddArgs,
    store: &mut dyn ClientStore,
) -> anyhow::Result<()> {
    // This is checked first, so that an exit that does not serve WireGuard gets no WireGuard key.
    wireguard::endpoint(config)?;
    check(config, args, false)?;
    let enrolled = all(&PageQuery::default(), |page| store.clients(page))?.rows;
    let users = enrolled.iter().filter(|client| client.wireguard).count();
    let exit_key = wireguard::key(clients, users)?.public();
    let key = key_of(args, exit_key)?;
    let addresses = wireguard::free_addresses(config, &taken_addresses(&enrolled), (args.ipv4, args.ipv6))?;
    let (client, text) = wireguard::new_client(config, exit_key, (&args.name, &key), addresses)?;
    let client = NewClient {
        prefixes: args.prefixes.clone(),
        rate_limit: args.rate_limit,
        allow_removed: args.allow_removed,
        ..client
    };
    let is_invited = store.is_invited(&args.name)?;
    let is_terminal = io::stdout().is_terminal();
    match &args.output {
        Some(path) => to_file(path, &text, &client, store)?,
        None => {
            output::refuse_to_lose("the only copy of the client's keys")?;
            to_stdout(&text, &client, store)?;
        }
    }
    // A QR code is drawn only if the configuration contains the private key, because apps accept no other configuration.
    match key {
        NewKey::Ours(_) if is_terminal => show(&text)?,
        NewKey::Ours(_) => {}
        NewKey::Theirs(_) => {
            output::note("Write the client's own PrivateKey into the configuration, on the client.")
        }
    }
    if is_invited {
        output::note(EARLIER_IS_VOID);
    }
    if !store.serves_wireguard(exit_key)? {
        output::note(RESTART);
    }
    Ok(())
}

/// Printed when the configuration cannot work yet.
const RESTART: &str = "The running exit does not serve WireGuard with this key yet, so restart it: systemctl restart warren-exit";

/// The client's key: a new one, or that of `--public-key`.
fn key_of(args: &ClientAddArgs, exit_key: PublicKey) -> anyhow::Result<NewKey> {
    let Some(given) = args.public_key else { return NewKey::generate() };
    if given == exit_key {
        bail!(
            "--public-key is the exit's own; give the key that `wg pubkey` or the app prints on the client"
        );
    }
    let key = parse_public_key(&given.to_string());
    Ok(NewKey::Theirs(key.map_err(|error| anyhow!("--public-key {error}"))?))
}

fn taken_addresses(enrolled: &[ClientView]) -> HashSet<IpAddr> {
    enrolled
        .iter()
        .flat_map(|client| [client.ipv4.map(IpAddr::V4), client.ipv6.map(IpAddr::V6)])
        .flatten()
        .collect()
}

/// Draws the QR code of a configuration, for the apps of phones to read.
fn show(text: &str) -> anyhow::Result<()> {
    // This cannot fail, because a configuration is far shorter than the longest text of a QR code.
    let Ok(code) = QrCode::encode_text(text, QrCodeEcc::Low) else { return Ok(()) };
    let mut out = io::stdout().lock();
    // The code is not printed by `output`, which would escape the control characters for the colours.
    out.write_all(drawn(&code).as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write the QR code; the client is enrolled and its configuration is above")
}

/// Draws the code with two rows of modules in each line. The light modules are drawn, because the background is dark.
fn drawn(code: &QrCode) -> String {
    let is_light = |x: i32, y: i32| !code.get_module(x, y);
    let side = -MARGIN..code.size() + MARGIN;
    let mut text = String::new();
    for y in side.clone().step_by(2) {
        text.push_str(COLOURS);
        for x in side.clone() {
            text.push(match (is_light(x, y), is_light(x, y + 1)) {
                (true, true) => '\u{2588}',
                (true, false) => '\u{2580}',
                (false, true) => '\u{2584}',
                (false, false) => ' ',
            });
        }
        text.push_str(NO_COLOURS);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_code_has_its_finders_inside_a_light_margin() {
        let code = QrCode::encode_text("[Interface]", QrCodeEcc::Low).unwrap();
        let text = drawn(&code).replace(COLOURS, "").replace(NO_COLOURS, "");
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        let width = usize::try_from(code.size() + 2 * MARGIN).unwrap();
        assert!(lines.iter().all(|line| line.len() == width));
        assert!(lines[..2].iter().flatten().all(|module| *module == '\u{2588}'));
        // The first line shows the upper edge of a finder pattern's dark frame, the second the frame's left edge next to a light
        // ring.
        assert_eq!(lines[2][4..11].iter().collect::<String>(), " \u{2584}\u{2584}\u{2584}\u{2584}\u{2584} ");
    }
}
