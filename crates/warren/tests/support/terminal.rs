//! A terminal for programs that draw on one: a pseudo-terminal and the content of its screen.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::namespace::signal;
use super::{Namespace, eventually, seconds};

/// A program on its own terminal. Dropping it kills the program.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    master: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
    columns: usize,
    rows: usize,
}

impl Terminal {
    /// Starts a program on a host, on a new terminal of this size.
    pub fn start(host: &Namespace, arguments: &[&str], columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let path = std::ffi::OsStr::from_bytes(path.as_bytes());
        let own = File::options().read(true).write(true).open(path).unwrap();
        let mut terminal = Self {
            // The program gets its own session, so that the terminal can send it signals.
            child: attach(host.command(&[&["setsid", "--ctty", "--wait"], arguments].concat()), &own),
            master,
            written: Arc::default(),
            columns: 0,
            rows: 0,
        };
        terminal.resize(columns, rows);
        let (mut reader, written) =
            (File::from(terminal.master.try_clone().unwrap()), terminal.written.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails once no process has the other end open.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                written.lock().unwrap().extend(&buffer[..count]);
            }
        });
        terminal
    }

    /// Changes the terminal's size. The program is notified.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
        (self.columns, self.rows) = (columns.into(), rows.into());
    }

    /// Presses keys.
    pub fn press(&self, keys: &str) {
        File::from(self.master.try_clone().unwrap()).write_all(keys.as_bytes()).unwrap();
    }

    /// Sends a signal to the program, as another process would.
    pub fn signal(&self, which: Signal) {
        let own = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        // `setsid` replaces itself by the program. But if `setsid` was the leader of a process group, it stays as the program's
        // parent.
        let program = children.split_whitespace().next().map_or(own, |child| child.parse().unwrap());
        signal(i32::try_from(program).unwrap(), which);
    }

    /// The lines that the screen shows.
    pub fn screen(&self) -> Vec<String> {
        Screen::of(&self.written(), self.columns, self.rows).lines()
    }

    #[track_caller]
    pub fn wait_for(&self, what: &str, shown: impl Fn(&[String]) -> bool) {
        let start = std::time::Instant::now();
        while !shown(&self.screen()) {
            assert!(start.elapsed() < seconds(40), "not shown: {what}\n{}", self.screen().join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the program's end. Returns its exit code and everything written after the program left the screen.
    #[track_caller]
    pub fn end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        eventually(seconds(10), "the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let modes = tcgetattr(self.master.as_fd()).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ICANON | LocalModes::ECHO),
            "the terminal's settings are restored: {modes:?}"
        );
        let mut after = None;
        eventually(seconds(5), "the program has left the alternate screen", || {
            let text = String::from_utf8_lossy(&self.written()).into_owned();
            after = text.rsplit_once("\x1b[?7h\x1b[?25h\x1b[?1049l").map(|(_, after)| after.to_owned());
            after.is_some()
        });
        (status.and_then(|status| status.code()), after.unwrap_or_default())
    }

    /// Waits for the end of a program that leaves the screen alone. Returns its exit code.
    #[track_caller]
    pub fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(seconds(10), "the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    fn written(&self) -> Vec<u8> {
        self.written.lock().unwrap().clone()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attach(mut command: Command, terminal: &File) -> Child {
    let end = || terminal.try_clone().unwrap();
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
}

/// The content of a screen. Only the few control sequences that Warren uses are interpreted.
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    fn of(written: &[u8], columns: usize, rows: usize) -> Self {
        let mut screen = Self { cells: vec![vec![' '; columns]; rows], row: 0, column: 0 };
        let text = String::from_utf8_lossy(written);
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\r' => screen.column = 0,
                '\n' => screen.row += 1,
                '\x1b' => screen.obey(&code(&mut letters)),
                letter => screen.put(letter),
            }
        }
        screen
    }

    fn obey(&mut self, code: &str) {
        match code {
            "H" => (self.row, self.column) = (0, 0),
            "K" => self.clear(self.row, self.column),
            "J" => {
                self.clear(self.row, self.column);
                (self.row + 1..self.cells.len()).for_each(|row| self.clear(row, 0));
            }
            "?1049h" | "?1049l" => (0..self.cells.len()).for_each(|row| self.clear(row, 0)),
            _ => {}
        }
    }

    fn clear(&mut self, row: usize, from: usize) {
        if let Some(cells) = self.cells.get_mut(row) {
            cells.iter_mut().skip(from).for_each(|cell| *cell = ' ');
        }
    }

    fn put(&mut self, letter: char) {
        if let Some(cell) = self.cells.get_mut(self.row).and_then(|cells| cells.get_mut(self.column)) {
            *cell = letter;
        }
        self.column += 1;
    }

    fn lines(&self) -> Vec<String> {
        self.cells.iter().map(|cells| cells.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}

/// The rest of a control sequence, including its final letter.
fn code(letters: &mut impl Iterator<Item = char>) -> String {
    let mut code = String::new();
    // Skips the opening bracket.
    for letter in letters.skip(1) {
        code.push(letter);
        if letter.is_ascii_alphabetic() {
            break;
        }
    }
    code
}
