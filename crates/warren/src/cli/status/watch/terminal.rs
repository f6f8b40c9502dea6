//! Takes over the terminal while a status is watched, and always restores it afterwards.

use std::io::{self, Read as _, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::Context as _;
use rustix::process::{Signal as ProcessSignal, getpid, kill_process};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::screen::Look;
use super::sparkline::Bars;

/// Switches to the alternate screen, hides the cursor, and turns off line wrapping.
const TAKE: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Undoes [`TAKE`].
const GIVE_BACK: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// An event from the user or the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The size of the terminal has changed.
    Redraw,
    /// Ctrl-Z.
    Suspend,
    /// `q`, Ctrl-C, or a signal that ends programs.
    End,
}

/// The terminal while it is taken over. Dropping it restores the terminal.
pub(super) struct Terminal {
    colour: bool,
    bars: Bars,
    keys: mpsc::Receiver<u8>,
    resized: Signal,
    suspended: Signal,
    endings: [Signal; 4],
}

impl Terminal {
    pub(super) fn open() -> anyhow::Result<Self> {
        let watched = |kind: SignalKind| signal(kind).context("cannot watch signals");
        let suspend = SignalKind::from_raw(ProcessSignal::TSTP.as_raw());
        let terminal = Self {
            // A non-empty value turns colours off (no-color.org).
            colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            bars: if is_utf8() { Bars::Blocks } else { Bars::Ascii },
            keys: keys(),
            resized: watched(SignalKind::window_change())?,
            suspended: watched(suspend)?,
            endings: [
                watched(SignalKind::interrupt())?,
                watched(SignalKind::terminate())?,
                watched(SignalKind::hangup())?,
                watched(SignalKind::quit())?,
            ],
        };
        // Signals are already handled, so neither a signal nor a panic ends the process without restoring the terminal.
        give_back_on_panic();
        take().context("cannot draw on this terminal; leave out --watch")?;
        Ok(terminal)
    }

    /// Returns the terminal's current size and capabilities.
    pub(super) fn look(&self) -> Look {
        // Some terminals, such as serial lines, report a size of zero.
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()));
        Look { columns, rows, bars: self.bars, colour: self.colour }
    }

    /// Replaces the lines on the screen without flicker.
    pub(super) fn draw(&self, lines: &[String]) -> io::Result<()> {
        // The rest of each line and of the screen is cleared after the new text, because clearing the whole screen first would
        // flicker.
        let text = lines.iter().map(|line| format!("{line}\x1b[K")).collect::<Vec<_>>().join("\r\n");
        write(&format!("\x1b[H{text}\x1b[J"))
    }

    /// Waits for the next event. Cancelling the wait loses nothing.
    pub(super) async fn input(&mut self) -> Input {
        let Self { keys, resized, suspended, endings: [interrupt, terminate, hangup, quit], .. } = self;
        tokio::select! {
            () = end_key(keys) => Input::End,
            _ = interrupt.recv() => Input::End,
            _ = terminate.recv() => Input::End,
            _ = hangup.recv() => Input::End,
            _ = quit.recv() => Input::End,
            _ = suspended.recv() => Input::Suspend,
            _ = resized.recv() => Input::Redraw,
        }
    }

    /// Restores the terminal and stops this process until it is continued.
    pub(super) fn suspend(&self) -> anyhow::Result<()> {
        give_back();
        // SIGSTOP is used, because this process handles SIGTSTP itself.
        kill_process(getpid(), ProcessSignal::STOP).context("cannot stop")?;
        take().context("cannot draw on this terminal; leave out --watch")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whether standard output is a terminal that can be redrawn. The error says what to do instead.
pub(super) fn is_capable() -> Result<(), String> {
    let instead = "use `warren status`, or `warren status --json` for programs";
    if !isatty(stdout()) {
        return Err(format!("--watch needs a terminal, and standard output is not one; {instead}"));
    }
    match std::env::var("TERM") {
        Ok(kind) if kind == "dumb" => Err(format!("--watch cannot draw on a \"dumb\" terminal; {instead}")),
        _ => Ok(()),
    }
}

/// Returns a channel of pressed keys. The thread that reads them blocks in read, so it ends only with the process.
fn keys() -> mpsc::Receiver<u8> {
    let (sender, keys) = mpsc::channel(16);
    if isatty(stdin()) {
        std::thread::spawn(move || {
            for key in io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        });
    }
    keys
}

/// Waits until the user presses a key that ends the watch. Without a keyboard, waits for ever.
async fn end_key(keys: &mut mpsc::Receiver<u8>) {
    loop {
        match keys.recv().await {
            Some(b'q' | b'Q' | CTRL_C | CTRL_D) => return,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

const CTRL_C: u8 = 0x03;
const CTRL_D: u8 = 0x04;

/// The terminal's settings before it was taken over.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

fn take() -> io::Result<()> {
    if isatty(stdin()) {
        let before = tcgetattr(stdin())?;
        let mut settings = before.clone();
        // Keys are delivered without waiting for a line break and are not echoed. Ctrl-C and Ctrl-Z still send signals.
        settings.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // With VMIN = 1, a read returns as soon as there is one byte (termios(3)).
        settings.special_codes[SpecialCodeIndex::VMIN] = 1;
        settings.special_codes[SpecialCodeIndex::VTIME] = 0;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        tcsetattr(stdin(), OptionalActions::Now, &settings)?;
    }
    write(TAKE)
}

/// Restores the terminal. Errors are ignored, because they mean that the terminal no longer exists.
fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // `Flush` discards keys that were pressed during the watch, which would otherwise reach the shell.
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &before);
    }
    let _ = write(GIVE_BACK);
}

/// Restores the terminal on a panic, because in a release build a panic ends the process without dropping values.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            usual(panic);
        }));
    });
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether the locale can show more than ASCII. The variables are checked in the order of their precedence (locale(7)).
fn is_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}
