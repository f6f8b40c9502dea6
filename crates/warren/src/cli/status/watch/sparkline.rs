//! Draws values over time as a line of small bars.

/// The characters of the bars, from empty to full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bars {
    /// Eighths of a block.
    Blocks,
    /// ASCII characters, for terminals that cannot show blocks.
    Ascii,
}

impl Bars {
    fn levels(self) -> [char; 8] {
        match self {
            Self::Blocks => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Self::Ascii => ['_', '.', ':', '-', '=', '+', '*', '#'],
        }
    }
}

/// Draws the latest `width` values, with the newest at the right end. The top of the scale is the highest value, or `full` if
/// that is higher.
pub(super) fn sparkline(
    values: impl DoubleEndedIterator<Item = f64>,
    width: usize,
    full: f64,
    bars: Bars,
) -> String {
    let mut latest: Vec<f64> = values.rev().take(width).collect();
    latest.reverse();
    let highest = latest.iter().copied().fold(full, f64::max);
    let levels = bars.levels();
    let bar = |value: &f64| {
        let height = if highest > 0.0 { value / highest } else { 0.0 };
        // The level is rounded up, so that a low value does not look like zero.
        let level =
            levels.iter().zip(0_u8..8).rev().find(|(_, level)| height * 7.0 > f64::from(*level) - 1.0);
        level.map_or(levels[0], |(bar, _)| *bar)
    };
    let line: String = latest.iter().map(bar).collect();
    format!("{}{line}", " ".repeat(width - latest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_rise_with_values_and_the_newest_is_at_the_right() {
        let line = sparkline([0.0, 1.0, 50.0, 100.0].into_iter(), 6, 0.0, Bars::Blocks);
        assert_eq!(line, "  ▁▂▅█");
        assert_eq!(sparkline([0.0, 100.0].into_iter(), 3, 0.0, Bars::Ascii), " _#");
    }

    #[test]
    fn only_the_latest_values_that_fit_are_shown_and_scale_the_line() {
        let line = sparkline([1000.0, 1.0, 1.0].into_iter(), 2, 0.0, Bars::Blocks);
        assert_eq!(line, "██");
        assert_eq!(sparkline([7.0].into_iter(), 0, 0.0, Bars::Blocks), "");
    }

    #[test]
    fn nothing_is_low_and_less_than_full_is_not_full() {
        assert_eq!(sparkline([0.0, 0.0].into_iter(), 2, 0.0, Bars::Blocks), "▁▁");
        assert_eq!(sparkline([10.0].into_iter(), 1, 100.0, Bars::Blocks), "▂");
    }
}
