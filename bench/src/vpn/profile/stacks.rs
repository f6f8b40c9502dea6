//! Merges call stacks into a tree. The children of the root are the processes, and the parent of a function is its caller.

use std::collections::BTreeMap;

/// All samples of a profile.
#[derive(Clone, Debug, Default)]
pub(super) struct Stacks {
    pub(super) root: Frame,
}

/// A node of the tree: a function with one particular chain of callers.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    /// Number of samples in the function and in the functions that it called.
    pub(super) total: u64,
    /// Number of samples in the function itself.
    own: u64,
    pub(super) kernel: bool,
    pub(super) called: BTreeMap<String, Self>,
}

/// A process, and its symbols with the most samples of their own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Top<'a> {
    pub(super) process: &'a str,
    pub(super) samples: u64,
    pub(super) symbols: Vec<(String, u64)>,
}

impl Stacks {
    /// Parses the output of `perf script -F comm,pid,ip,sym`. `role` names a process.
    pub(super) fn parse(text: &str, role: impl Fn(u32) -> &'static str) -> Self {
        let mut stacks = Self::default();
        let (mut process, mut frames) = (None, Vec::new());
        // An empty line ends a sample. The appended one ends the last sample.
        for line in text.lines().chain([""]) {
            if line.trim().is_empty() {
                if let Some(pid) = process.take() {
                    stacks.add(role(pid), &frames);
                }
                frames.clear();
            } else if line.starts_with([' ', '\t']) && process.is_some() {
                frames.extend(frame(line));
            } else {
                // The process name may contain spaces, so the process ID is taken from the end of the line.
                process =
                    line.split_whitespace().last().and_then(|pid| pid.trim_end_matches(':').parse().ok());
            }
        }
        stacks
    }

    /// Returns the number of samples.
    pub(super) fn count(&self) -> u64 {
        self.root.total
    }

    /// Returns the symbols with most samples for each process.
    pub(super) fn top(&self, count: usize) -> Vec<Top<'_>> {
        let of_process = |(process, frame): (&'_ String, &Frame)| {
            let mut own = BTreeMap::new();
            frame.sum_own(process, &mut own);
            let mut symbols: Vec<_> = own.into_iter().filter(|(_, own)| *own > 0).collect();
            // Symbols with equal counts are sorted by name, to make the order deterministic.
            symbols.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            symbols.truncate(count);
            symbols
        };
        let processes = self.root.called.iter();
        processes
            .map(|entry| Top { process: entry.0, samples: entry.1.total, symbols: of_process(entry) })
            .collect()
    }

    /// Adds a sample. The first of `frames` is the innermost one.
    fn add(&mut self, process: &str, frames: &[(String, bool)]) {
        self.root.total += 1;
        let mut at = self.root.called.entry(process.to_owned()).or_default();
        at.total += 1;
        for (symbol, kernel) in frames.iter().rev() {
            at = at.called.entry(symbol.clone()).or_default();
            at.total += 1;
            at.kernel = *kernel;
        }
        at.own += 1;
    }
}

impl Frame {
    /// Returns the depth of the tree below, including this frame.
    pub(super) fn depth(&self) -> usize {
        1 + self.called.values().map(Self::depth).max().unwrap_or(0)
    }

    fn sum_own(&self, name: &str, symbols: &mut BTreeMap<String, u64>) {
        *symbols.entry(name.to_owned()).or_default() += self.own;
        for (name, frame) in &self.called {
            frame.sum_own(name, symbols);
        }
    }
}

/// Returns the symbol of a line, and whether it belongs to the kernel.
fn frame(line: &str) -> Option<(String, bool)> {
    let (address, symbol) = line.trim().split_once(' ').unwrap_or((line.trim(), "[unknown]"));
    // The kernel has the upper half of the 64-bit address space.
    let kernel = address.len() == 16 && address.starts_with("ffff");
    let symbol = symbol.trim();
    // Removes the hash that Rust appends to symbols.
    let symbol = match symbol.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => symbol,
    };
    (!address.is_empty()).then(|| (symbol.to_owned(), kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
tokio worker 100 \n\
\t    55d0c1 noq_proto::Connection::poll::h0123456789abcdef\n\
\t    55d0c0 main\n\
\n\
warren 200 \n\
\tffffffff8100aaaa copy_user\n\
\t    55d0c0 main\n\
\n\
warren 200 \n\
\t    55d0c0 main\n\
\n";

    fn role(pid: u32) -> &'static str {
        if pid == 100 { "client" } else { "exit" }
    }

    #[test]
    fn samples_are_folded_by_process_and_caller() {
        let stacks = Stacks::parse(SCRIPT, role);
        assert_eq!(stacks.count(), 3);
        assert_eq!(stacks.root.depth(), 4);
        let main = &stacks.root.called["exit"].called["main"];
        assert_eq!((main.total, main.own, main.kernel), (2, 1, false));
        assert!(main.called["copy_user"].kernel);
        assert!(
            stacks.root.called["client"].called["main"].called.contains_key("noq_proto::Connection::poll")
        );
    }

    #[test]
    fn symbols_are_ranked_by_their_own_samples() {
        let stacks = Stacks::parse(SCRIPT, role);
        let [client, exit] = &stacks.top(5)[..] else { panic!("two processes") };
        assert_eq!((client.process, client.samples), ("client", 1));
        assert_eq!(client.symbols, [("noq_proto::Connection::poll".to_owned(), 1)]);
        assert_eq!(exit.symbols, [("copy_user".to_owned(), 1), ("main".to_owned(), 1)]);
        assert_eq!(stacks.top(1)[1].symbols.len(), 1);
        assert_eq!(Stacks::parse("", role).count(), 0);
    }
}
