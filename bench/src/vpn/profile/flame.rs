//! A flame graph as SVG. The width of a frame is its share of the samples. Callers are below the functions that they call, and
//! kernel functions have another colour.

use std::fmt::Write as _;

use super::stacks::{Frame, Stacks};
use crate::stats::share;

const WIDTH: f64 = 1_200.0;
const ROW: f64 = 16.0;
const TITLE: f64 = 28.0;
/// Frames that are narrower than this number of pixels are left out.
const NARROWEST: f64 = 0.4;
/// The approximate width of a letter in pixels.
const LETTER: f64 = 6.4;

/// Draws the stacks. A browser shows the full name and the share of the frame under the pointer.
pub(super) fn svg(title: &str, stacks: &Stacks) -> String {
    let rows = u32::try_from(stacks.root.depth()).unwrap_or(u32::MAX);
    let height = TITLE + ROW * f64::from(rows) + 8.0;
    let mut drawing = Drawing { text: String::new(), height, all: stacks.count() };
    // Writing to a String cannot fail.
    let _ = writeln!(
        drawing.text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{}\" y=\"18\" font-size=\"14\" text-anchor=\"middle\">{}: {} samples</text>",
        WIDTH / 2.0,
        escaped(title),
        drawing.all,
    );
    drawing.frame("all", &stacks.root, 0.0, 0);
    drawing.text + "</svg>\n"
}

struct Drawing {
    text: String,
    height: f64,
    all: u64,
}

impl Drawing {
    fn frame(&mut self, name: &str, frame: &Frame, left: f64, depth: u32) {
        let part = share(frame.total, self.all);
        let width = part * WIDTH;
        if width < NARROWEST {
            return;
        }
        let top = self.height - ROW * f64::from(depth + 1) - 4.0;
        let colour = match (depth, frame.kernel) {
            // The root and the processes are not functions, so they are grey.
            (0 | 1, _) => "#dddddd",
            (_, true) => "#f0b070",
            (_, false) => "#80b8e0",
        };
        let full = escaped(name);
        let _ = writeln!(
            self.text,
            "<g><title>{full}: {} samples, {:.2} %</title><rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\" fill=\"{colour}\" rx=\"1\"/>{}</g>",
            frame.total,
            part * 100.0,
            (width - 0.3).max(0.1),
            ROW - 1.0,
            label(name, left, top, width),
        );
        let mut next = left;
        for (name, called) in &frame.called {
            self.frame(name, called, next, depth + 1);
            next += share(called.total, self.all) * WIDTH;
        }
    }
}

/// Draws as much of the name as fits.
fn label(name: &str, left: f64, top: f64, width: f64) -> String {
    let mut shown = String::new();
    let mut taken = LETTER;
    for letter in name.chars() {
        taken += LETTER;
        if taken > width {
            break;
        }
        shown.push(letter);
    }
    if shown.chars().count() < 3 {
        return String::new();
    }
    format!("<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", left + 3.0, top + 11.5, escaped(&shown))
}

fn escaped(text: &str) -> String {
    // `&` must be replaced first, because the other replacements contain `&`.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_names_frames_and_escapes_them() {
        let script = "warren 1\n\t55d0c1 <Vec<T> as Drop>::drop\n\t55d0c0 main\n\n";
        let graph = svg("warren & co", &Stacks::parse(script, |_| "client"));
        assert!(graph.starts_with("<svg") && graph.ends_with("</svg>\n"));
        assert!(graph.contains("&lt;Vec&lt;T&gt; as Drop&gt;::drop: 1 samples, 100.00 %"), "{graph}");
        assert!(graph.contains("warren &amp; co: 1 samples"));
        assert_eq!(graph.matches("<g>").count(), graph.matches("</g>").count());
    }

    #[test]
    fn name_is_cut_to_its_frame() {
        assert_eq!(label("abcdef", 0.0, 0.0, 10.0), "");
        assert!(label("abcdef", 0.0, 0.0, 30.0).contains(">abc<"));
    }
}
