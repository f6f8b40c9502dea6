//! SVG plots of a run: bars by peer, and cumulative distributions of round-trip times.

use std::path::Path;

use plotters::prelude::{
    BLACK, ChartBuilder, Color as _, IntoLogRange as _, LineSeries, PathElement, RGBColor, Rectangle,
    SeriesLabelPosition, Text,
};

use super::{
    load::{Rate, Sizes},
    plan::{RTT_UNDER_FLOWS, Test},
    report::Report,
    results::{Figure, Metric, round_trip_times},
};
use crate::{
    plot::{self, Area, FONT},
    way::Ways,
};

/// The colours of peers, which repeat if there are more peers.
const COLOURS: [RGBColor; 8] =
    [plot::GREY, plot::SKY, plot::VERMILION, plot::BLUE, plot::GREEN, plot::PURPLE, plot::ORANGE, BLACK];
const SIZE: (u32, u32) = (960, 480);
/// The share of a bar chart's width, at its right, that is left free for the legend.
const LEGEND: f64 = 0.16;

const fn tcp(flows: u32, ways: Ways) -> Metric {
    Metric::Gbit(Test::Tcp { flows, ways })
}

const fn udp(sizes: Sizes) -> Metric {
    Metric::Kpps(Test::Udp { sizes, rate: Rate::Saturation })
}

/// Writes all plots that the run has figures for.
pub(super) fn write(report: &Report, directory: &Path) -> anyhow::Result<()> {
    let up = Test::Tcp { flows: 1, ways: Ways::Up };
    let down = Test::Tcp { flows: 1, ways: Ways::Down };
    let loaded = Test::Tcp { flows: RTT_UNDER_FLOWS, ways: Ways::Up };
    let throughput = [
        tcp(1, Ways::Up),
        tcp(1, Ways::Down),
        tcp(1, Ways::Both),
        tcp(8, Ways::Up),
        tcp(8, Ways::Down),
        tcp(32, Ways::Up),
        tcp(32, Ways::Down),
    ];
    let bars = [
        ("throughput", "TCP, Gbit/s received", throughput.to_vec()),
        ("cpu-per-gb", "CPU seconds per GB, both ends", vec![Metric::CpuPerGb(up), Metric::CpuPerGb(down)]),
        (
            "packets",
            "UDP, thousand packets per second delivered",
            vec![udp(Sizes::Fixed(120)), udp(Sizes::Imix), udp(Sizes::Fixed(1_200))],
        ),
    ];
    for (name, title, metrics) in bars {
        let metrics: Vec<_> = metrics.into_iter().filter(|metric| report.has(*metric)).collect();
        if !metrics.is_empty() {
            let path = directory.join(format!("{name}.svg"));
            plot::write(&path, SIZE, |area| draw_bars(area, report, title, &metrics))?;
        }
    }
    for (name, title, test) in [
        ("rtt-loaded", "Round-trip time under TCP x8 up", loaded),
        ("rtt-idle", "Round-trip time, idle", Test::IdleRtt),
    ] {
        let lines: Vec<_> = (0..report.peers.len())
            .map(|peer| (peer, distribution(round_trip_times(test, peer, &report.visits))))
            .filter(|(_, points)| !points.is_empty())
            .collect();
        if !lines.is_empty() {
            let path = directory.join(format!("{name}.svg"));
            plot::write(&path, SIZE, |area| draw_distributions(area, report, title, &lines))?;
        }
    }
    Ok(())
}

/// Draws a group of bars for each figure, with a bar for each peer.
fn draw_bars(area: &Area<'_>, report: &Report, title: &str, metrics: &[Metric]) -> anyhow::Result<()> {
    let figure = |metric: Metric, peer| Figure::of(metric, peer, &report.visits);
    let peers = report.peers.len();
    let all = metrics.iter().flat_map(|&metric| (0..peers).filter_map(move |peer| figure(metric, peer)));
    let top = all.map(|figure| figure.median).fold(0.0, f64::max).max(1e-9) * 1.12;
    let groups = position(metrics.len());
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..groups / (1.0 - LEGEND), 0.0..top)?;
    // The axis has no numbers. The names of the groups are drawn below it at the end.
    chart.configure_mesh().disable_x_mesh().x_labels(0).max_light_lines(1).label_style((FONT, 13)).draw()?;
    let width = 0.8 / position(peers.max(1));
    for (peer, of) in report.peers.iter().enumerate() {
        let colour = colour(peer);
        let bars = metrics.iter().enumerate().filter_map(|(group, &metric)| {
            let left = position(group) + 0.1 + width * position(peer);
            Some((left, figure(metric, peer)?.median))
        });
        let bars: Vec<_> = bars.collect();
        let rectangles = bars.iter().map(|&(left, height)| {
            Rectangle::new([(left, 0.0), (left + width * 0.92, height)], colour.filled())
        });
        chart
            .draw_series(rectangles)?
            .label(of.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        let values = bars
            .iter()
            .map(|&(left, height)| Text::new(short(height), (left, height + top * 0.03), (FONT, 11)));
        chart.draw_series(values)?;
    }
    let (left, bottom) = (68, i32::try_from(SIZE.1)? - 34);
    let step = (f64::from(SIZE.0) - 80.0) * (1.0 - LEGEND) / groups;
    for (group, metric) in metrics.iter().enumerate() {
        let title = metric.title();
        let name = title.split(',').next().unwrap_or_default().to_owned();
        let middle = (position(group) + 0.1) * step;
        area.draw(&Text::new(name, (left + round(middle), bottom), (FONT, 14)))?;
    }
    plot::draw_legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// Draws a line for each peer: the share of round-trip times up to each time.
fn draw_distributions(
    area: &Area<'_>,
    report: &Report,
    title: &str,
    lines: &[(usize, Vec<(f64, f64)>)],
) -> anyhow::Result<()> {
    let times = || lines.iter().flat_map(|(_, points)| points.iter().map(|(time, _)| *time));
    let shortest = times().fold(f64::INFINITY, f64::min).max(1e-3);
    let longest = times().fold(shortest * 2.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d((shortest..longest).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds, logarithmic")
        .y_desc("part of echo requests")
        .label_style((FONT, 13))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    for (peer, points) in lines {
        let (peer, colour) = (*peer, colour(*peer));
        let name = report.peers.get(peer).map(|peer| peer.name.clone()).unwrap_or_default();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
    }
    plot::draw_legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// Returns the cumulative distribution in about 500 points at most.
fn distribution(mut times: Vec<f64>) -> Vec<(f64, f64)> {
    const POINTS: usize = 500;
    times.sort_by(f64::total_cmp);
    let count = times.len();
    let step = count.div_ceil(POINTS).max(1);
    let chosen = times.iter().enumerate().filter(|(index, _)| index % step == 0 || index + 1 == count);
    chosen.map(|(index, &time)| (time, position(index + 1) / position(count))).collect()
}

fn colour(peer: usize) -> RGBColor {
    COLOURS.iter().cycle().nth(peer).copied().unwrap_or(BLACK)
}

/// Converts a count to a coordinate.
fn position(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[expect(clippy::cast_possible_truncation, reason = "a picture has fewer than 1,000 pixels")]
fn round(pixel: f64) -> i32 {
    pixel.round() as i32
}

fn short(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_rises_from_the_shortest_time_to_one() {
        let points = distribution(vec![3.0, 1.0, 2.0, 4.0]);
        assert_eq!(points, [(1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)]);
        let many = distribution((0..10_000).map(f64::from).collect());
        assert!(many.len() <= 501 && many.last() == Some(&(9_999.0, 1.0)), "{}", many.len());
        assert!(distribution(Vec::new()).is_empty());
    }

    #[test]
    fn plots_are_written_for_what_was_measured_and_name_the_peers() {
        let directory = tempfile::tempdir().unwrap();
        write(&Report::for_test(), directory.path()).unwrap();
        let plot = std::fs::read_to_string(directory.path().join("throughput.svg")).unwrap();
        assert!(plot.contains("tun-copy") && plot.contains("TCP x1 up"), "{plot}");
        assert!(!directory.path().join("packets.svg").exists());
    }
}
