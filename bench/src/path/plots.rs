//! SVG plots of a run: throughput by loss, and cumulative distributions of round-trip times.

use std::path::Path as FilePath;

use plotters::prelude::{BLACK, ChartBuilder, Circle, Color as _, SeriesLabelPosition, Text};

use super::{named::Path, outcome::Figure, results::Results, test::Test};
use crate::{
    plot::{self, Area, Axis, FONT, colour, position},
    report::number,
};

const SIZE: (u32, u32) = (960, 480);

/// Writes all plots that the run has figures for.
pub(super) fn write(results: &Results, paths: &[Path], directory: &FilePath) -> anyhow::Result<()> {
    let mut by_loss: Vec<_> =
        paths.iter().filter_map(|path| Some((path.pure_loss_percent()?, path.name.as_str()))).collect();
    by_loss.sort_by(|one, other| one.0.total_cmp(&other.0));
    for test in Test::all() {
        if let Test::Tcp { .. } = test {
            let lines: Vec<_> = results
                .tunnels
                .iter()
                .map(|tunnel| (tunnel.name.clone(), points(results, &by_loss, &tunnel.name, test)))
                .collect();
            // A line needs at least two paths.
            if by_loss.len() > 1 && lines.iter().any(|(_, points)| !points.is_empty()) {
                let file = directory.join(format!("loss-{test}.svg"));
                plot::write(&file, SIZE, |area| draw(area, &test.title(), &by_loss, &lines))?;
            }
        }
        if let Test::Ping { .. } = test {
            for path in paths {
                let times = results.tunnels.iter().map(|tunnel| {
                    let times = results.round_trip_times(&path.name, &tunnel.name, &test.name());
                    (tunnel.name.clone(), times)
                });
                let name = path.name.replace('%', "-percent");
                let title = format!("Round-trip time, {}, path {}", test.title(), path.name);
                let file = directory.join(format!("rtt-{name}-{test}.svg"));
                plot::write_distributions(&file, &title, Axis::Linear, times.collect())?;
            }
        }
    }
    Ok(())
}

/// Returns a point for each path: its index, and the tunnel's throughput on it.
fn points(results: &Results, by_loss: &[(f64, &str)], tunnel: &str, test: Test) -> Vec<(f64, f64)> {
    let paths = by_loss.iter().enumerate();
    paths
        .filter_map(|(place, (_, path))| {
            let sample = results.sample(path, tunnel, &test.name(), Figure::MbitPerS)?;
            Some((position(place), sample.median()))
        })
        .collect()
}

/// Draws a line for each tunnel. The losses are drawn at equal distances, because they differ by orders of
/// magnitude.
fn draw(
    area: &Area<'_>,
    title: &str,
    by_loss: &[(f64, &str)],
    lines: &[(String, Vec<(f64, f64)>)],
) -> anyhow::Result<()> {
    let heights = lines.iter().flat_map(|(_, points)| points.iter().map(|(_, rate)| *rate));
    let top = heights.fold(1.0, f64::max) * 1.1;
    let last = position(by_loss.len().saturating_sub(1));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title}, Mbit/s by loss"), (FONT, 20))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.15..last + 0.85, 0.0..top)?;
    // The axis has no labels of its own. The losses are drawn below it at the end of this function.
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .label_style((FONT, 13))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    plot::draw_lines(&mut chart, lines)?;
    for (place, (_, points)) in lines.iter().enumerate() {
        let colour = colour(place);
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
    }
    for (place, (loss, _)) in by_loss.iter().enumerate() {
        let (x, _) = chart.backend_coord(&(position(place), 0.0));
        let label = if *loss == 0.0 { "no loss".to_owned() } else { format!("{} %", short(*loss)) };
        area.draw(&Text::new(label, (x - 16, i32::try_from(SIZE.1)? - 34), (FONT, 14)))?;
    }
    plot::draw_legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// Formats a number without trailing zeros.
fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches(['0']).trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::{super::results::tests::results, *};

    #[test]
    fn plots_are_written_for_what_was_measured_and_name_the_tunnels() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<Path> = ["1%", "clean"].iter().map(|name| name.parse().unwrap()).collect();
        write(&results(), &paths, directory.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name));
        let plot = read("loss-tcp1-down.svg").unwrap();
        for expected in ["wireguard-go", "no loss", "1 %"] {
            assert!(plot.contains(expected), "{expected}");
        }
        assert!(read("rtt-1-percent-ping-beside-down.svg").unwrap().contains("warren"));
        assert!(read("loss-tcp8-down.svg").is_err());
    }

    #[test]
    fn losses_are_written_without_needless_zeros() {
        for (value, text) in [(0.1, "0.1"), (1.0, "1"), (0.05, "0.05"), (10.0, "10"), (100.0, "100")] {
            assert_eq!(short(value), text);
        }
    }
}
