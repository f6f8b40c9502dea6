//! SVG plots of a run: bars by peer, and cumulative distributions of round-trip times.

use std::path::Path;

use plotters::prelude::{ChartBuilder, Color as _, Rectangle, SeriesLabelPosition, Text};

use super::{
    load::{Rate, Sizes},
    plan::{RTT_UNDER_FLOWS, Test},
    report::Report,
    results::{Figure, Metric, round_trip_times},
};
use crate::{
    plot::{self, Area, Axis, FONT, colour, position},
    way::Ways,
};

const SIZE: (u32, u32) = (960, 480);
/// The share of a bar chart's width that is left free for the legend, on the right.
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
        let lines: Vec<_> = report
            .peers
            .iter()
            .enumerate()
            .map(|(peer, of)| (of.name.clone(), round_trip_times(test, peer, &report.visits)))
            .collect();
        plot::write_distributions(&directory.join(format!("{name}.svg")), title, Axis::Logarithmic, lines)?;
    }
    Ok(())
}

/// Draws a group of bars for each figure, with a bar for each peer.
fn draw_bars(area: &Area<'_>, report: &Report, title: &str, metrics: &[Metric]) -> anyhow::Result<()> {
    let figure = |metric: Metric, peer| Figure::of(metric, peer, &report.visits);
    let peers = report.peers.len();
    let all = metrics.iter().flat_map(|&metric| (0..peers).filter_map(move |peer| figure(metric, peer)));
    // The axis is longer than the highest bar, so that its value can be written above it.
    let top = all.map(|figure| figure.median).fold(0.0, f64::max).max(1e-9) * 1.12;
    let groups = position(metrics.len());
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..groups / (1.0 - LEGEND), 0.0..top)?;
    // The axis has no labels of its own. The names of the groups are drawn below it at the end of this function.
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
    // On the left of the plot are a margin of 12 pixels and labels of 56 pixels. On the right is another margin of 12 pixels. So
    // the plot is 80 pixels narrower than the picture.
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
    fn plots_are_written_for_what_was_measured_and_name_the_peers() {
        let directory = tempfile::tempdir().unwrap();
        write(&Report::for_test(), directory.path()).unwrap();
        let plot = std::fs::read_to_string(directory.path().join("throughput.svg")).unwrap();
        assert!(plot.contains("tun-copy") && plot.contains("TCP x1 up"), "{plot}");
        assert!(!directory.path().join("packets.svg").exists());
    }
}
