//! Fuzzing: any bytes as a WireGuard server's file.

use std::path::Path;
use std::sync::LazyLock;

use warren_session::exit::check_clients;

use super::{ClientRegistry, ExitSettings, ProfileName, enrol, plan, read};
use warren_config as config;

const FILE: &str = "wg0.conf";

/// An exit with pools of both IP versions.
static EXIT: LazyLock<ExitSettings> = LazyLock::new(|| {
    let text =
        "[exit]\nprivate_key_file = \"exit.key\"\n[addresses]\nipv4 = \"10.0.0.0/8\"\nipv6 = \"fd00::/32\"\n";
    config::fuzzing::read_exit(text.as_bytes()).expect("it is a configuration")
});

/// Plans an import of these bytes into an exit without clients.
///
/// # Panics
/// When an error is not one line with file and line number, or when planned clients cannot be enrolled.
pub(crate) fn run(data: &[u8]) {
    let path = Path::new(FILE);
    let planned =
        read(path, data).and_then(|server| plan(&server, &EXIT, &[]).map_err(|refused| refused.of(path)));
    match planned {
        Ok(planned) => {
            let mut registry = ClientRegistry::new();
            for client in planned.clients {
                enrol(&mut registry, &client).expect("planned clients do not clash");
                client.name.parse::<ProfileName>().expect("a profile can have the name");
            }
            check_clients(EXIT.ipv4, EXIT.ipv6, &registry).expect("an exit starts with them");
        }
        Err(error) => config::fuzzing::assert_is_one_line(path, data, &error),
    }
}
