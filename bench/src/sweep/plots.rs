//! SVG plots of a sweep: goodput as a heat map, and the queue-size lesson.

use std::path::Path;

use anyhow::anyhow;
use plotters::{
    coord::Shift,
    prelude::{
        BLACK, ChartBuilder, Circle, Color as _, DrawingArea, IntoDrawingArea as _, IntoFont as _,
        IntoLogRange as _, LineSeries, PathElement, RGBColor, Rectangle, SVGBackend, SeriesLabelPosition,
        Text, WHITE,
    },
};

use super::{
    grid::{Cell, Net},
    measured::{Median, cells},
    results::Results,
};

const FONT: &str = "sans-serif";
const SIZE: (i32, i32) = (1_100, 760);
/// Of Okabe and Ito's colours, which people with any colour vision can tell apart.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const SKY: RGBColor = RGBColor(86, 180, 233);
const ORANGE: RGBColor = RGBColor(213, 94, 0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes what the run has figures for.
///
/// # Errors
/// A sentence when a file cannot be written.
pub(super) fn write(results: &Results, directory: &Path) -> anyhow::Result<()> {
    if !results.cells.is_empty() {
        draw(&directory.join("heat-map.svg"), |area| heat_map(area, results))?;
    }
    if results.lesson.len() > 1 {
        draw(&directory.join("queue.svg"), |area| lesson(area, results))?;
    }
    Ok(())
}

fn draw(path: &Path, draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let size = (SIZE.0.unsigned_abs(), SIZE.1.unsigned_abs());
    let area = SVGBackend::new(path, size).into_drawing_area();
    let failed = |error: String| anyhow!("cannot write {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| failed(error.to_string()))?;
    draw(&area).map_err(|error| failed(error.to_string()))?;
    area.present().map_err(|error| failed(error.to_string()))
}

/// A row for each combination of connections, MTU and queue, a column for each network and caps: the darker, the
/// nearer to the best of the network.
fn heat_map(area: &Area<'_>, results: &Results) -> anyhow::Result<()> {
    let all = cells(&results.cells);
    let (mut columns, mut rows): (Vec<(Net, String)>, Vec<String>) = (Vec::new(), Vec::new());
    for cell in &all {
        let column = (cell.net, cell.setting.caps.to_string());
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    // Cells without a queue stand in the rows of all queues.
    for cell in all
        .iter()
        .filter(|cell| cell.setting.queue.is_some() || all.iter().all(|cell| cell.setting.queue.is_none()))
    {
        let row = row_name(cell, cell.setting.queue.as_deref());
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let (left, top, bottom) = (250, 90, 60);
    let width = (SIZE.0 - left - 20) / i32::try_from(columns.len().max(1))?;
    let height = (SIZE.1 - top - bottom) / i32::try_from(rows.len().max(1))?;
    let title =
        "TCP x8 up through Warren, Mbit/s received; the darker, the nearer to the best of its network";
    area.draw(&Text::new(title, (20, 16), (FONT, 18)))?;
    for (index, (net, caps)) in columns.iter().enumerate() {
        let x = left + width * i32::try_from(index)?;
        let is_first = columns.iter().position(|(other, _)| other == net) == Some(index);
        if is_first {
            area.draw(&Text::new(net.title(), (x + 4, 44), (FONT, 14)))?;
        }
        area.draw(&Text::new(format!("caps {caps}"), (x + 4, 66), (FONT, 13)))?;
    }
    for (index, row) in rows.iter().enumerate() {
        let y = top + height * i32::try_from(index)?;
        area.draw(&Text::new(row.clone(), (20, y + height / 2 - 7), (FONT, 13)))?;
    }
    for cell in all {
        let Some(median) = Median::of(cell, &results.cells) else { continue };
        let best = cells(&results.cells)
            .into_iter()
            .filter(|other| other.net == cell.net)
            .filter_map(|other| Some(Median::of(other, &results.cells)?.goodput_mbit_per_s))
            .fold(f64::MIN_POSITIVE, f64::max);
        let part = median.goodput_mbit_per_s / best;
        let column = (cell.net, cell.setting.caps.to_string());
        let Some(column) = columns.iter().position(|other| *other == column) else { continue };
        for (index, row) in rows.iter().enumerate() {
            let queue = cell.setting.queue.as_deref();
            let is_here = match queue {
                Some(_) => *row == row_name(cell, queue),
                None => row.starts_with(&row_name(cell, None)),
            };
            if !is_here {
                continue;
            }
            let (x, y) = (left + width * i32::try_from(column)?, top + height * i32::try_from(index)?);
            let colour = BLUE.mix(shade(part));
            area.draw(&Rectangle::new([(x, y), (x + width - 3, y + height - 3)], colour.filled()))?;
            let text = format!("{:.0} ({:.0} %)", median.goodput_mbit_per_s, part * 100.0);
            let ink = if shade(part) > 0.5 { WHITE } else { BLACK };
            area.draw(&Text::new(text, (x + 6, y + height / 2 - 8), (FONT, 13).into_font().color(&ink)))?;
        }
    }
    Ok(())
}

/// How dark a cell is: from half of the best on, so that differences show.
fn shade(part: f64) -> f64 {
    0.08 + 0.92 * ((part - 0.5) / 0.5).clamp(0.0, 1.0)
}

fn row_name(cell: &Cell, queue: Option<&str>) -> String {
    let of = &cell.setting;
    let queue = queue.map(|queue| format!(", queue {queue}")).unwrap_or_default();
    let plural = if of.connections == 1 { "" } else { "s" };
    format!("{} connection{plural}, MTU {}{queue}", of.connections, of.mtu)
}

/// Left what the queue drops, right the round-trip time, by the length of the queue.
fn lesson(area: &Area<'_>, results: &Results) -> anyhow::Result<()> {
    let points: Vec<_> = cells(&results.lesson)
        .into_iter()
        .filter_map(|cell| {
            let median = Median::of(cell, &results.lesson)?;
            Some((milliseconds(cell)?, median))
        })
        .collect();
    let line = |figure: fn(&Median) -> Option<f64>| -> Vec<(f64, f64)> {
        points.iter().filter_map(|(queue, median)| Some((*queue, figure(median)?))).collect()
    };
    let dropped = line(|median| median.dropped_at_queue.map(|share| share * 100.0));
    let (middle, late) = (line(|median| median.rtt_median_ms), line(|median| median.rtt_p99_ms));
    let top = |lines: &[&Vec<(f64, f64)>]| {
        lines.iter().flat_map(|line| line.iter().map(|point| point.1)).fold(0.1, f64::max) * 1.1
    };
    let shortest = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min).clamp(1e-3, 1e6);
    let longest = points.iter().map(|point| point.0).fold(shortest * 2.0, f64::max);
    let net = results.lesson.first().map_or("", |measured| measured.cell.net.title());
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("The bottleneck's queue ({net}): too small drops, too large adds latency"),
            (FONT, 19),
        )
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(60)
        .right_y_label_area_size(60)
        .build_cartesian_2d((shortest..longest).log_scale(), 0.0..top(&[&dropped]))?
        .set_secondary_coord((shortest..longest).log_scale(), 0.0..top(&[&middle, &late]));
    chart
        .configure_mesh()
        .x_desc("queue in milliseconds at the rate, logarithmic")
        .y_desc("dropped at the queue, %")
        .label_style((FONT, 13))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    chart.configure_secondary_axes().y_desc("RTT under load, ms").label_style((FONT, 13)).draw()?;
    chart
        .draw_series(LineSeries::new(dropped.iter().copied(), ORANGE.stroke_width(3)))?
        .label("dropped (left)")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], ORANGE.stroke_width(3)));
    chart.draw_series(dropped.iter().map(|&point| Circle::new(point, 4, ORANGE.filled())))?;
    for (name, points, colour) in [("RTT median (right)", &middle, BLUE), ("RTT p99 (right)", &late, SKY)] {
        chart
            .draw_secondary_series(LineSeries::new(points.iter().copied(), colour.stroke_width(3)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
        chart.draw_secondary_series(points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

/// The length of a cell's queue; none if it is not a time.
fn milliseconds(cell: &Cell) -> Option<f64> {
    cell.setting.queue.as_ref()?.strip_suffix("ms")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{super::measured::Measured, *};
    use crate::report::Machine;

    #[test]
    fn plots_show_every_network_and_both_sides_of_the_queue() {
        let mut lesson = Vec::new();
        for (queue, rtt) in [("1ms", 30.0), ("10ms", 40.0), ("100ms", 130.0)] {
            let mut measured = Measured { rtt_median_ms: Some(rtt), ..Measured::for_test() };
            measured.cell.setting.queue = Some(queue.to_owned());
            lesson.push(measured);
        }
        let mut clean = Measured::for_test();
        clean.cell.net = Net::Clean;
        clean.cell.setting.queue = None;
        let results = Results {
            machine: Machine::here(),
            version: "1".to_owned(),
            seed: 1,
            seconds: 1,
            cells: [vec![clean], lesson.clone()].concat(),
            lesson,
            choices: Vec::new(),
            remarks: Vec::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        write(&results, directory.path()).unwrap();
        let text = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let map = text("heat-map.svg");
        assert!(map.contains("clean (veth)") && map.contains("30 ms, 200 Mbit/s"), "{map}");
        assert!(map.contains("queue 100ms") && map.contains("100 (100 %)"), "{map}");
        let queue = text("queue.svg");
        assert!(queue.contains("dropped (left)") && queue.contains("RTT median (right)"), "{queue}");
        let markdown = results.markdown();
        assert!(markdown.contains("too small drops") && markdown.contains("| 40/80 | 1380 |"), "{markdown}");
    }
}
