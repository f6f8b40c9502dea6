//! SVG plots of a sweep: the heat map of goodput, and the lesson about queue size.

use std::path::Path;

use anyhow::Context as _;
use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color as _, IntoFont as _, IntoLogRange as _, LineSeries, PathElement,
    Rectangle, SeriesLabelPosition, Text, WHITE,
};

use super::{
    grid::{Caps, Cell, Net},
    measured::{Median, cells},
    results::Results,
};
use crate::plot::{self, Area, BLUE, FONT, SKY, VERMILION};

const SIZE: (i32, i32) = (1_100, 760);

/// Writes the plots that the run has figures for.
pub(super) fn write(results: &Results, directory: &Path) -> anyhow::Result<()> {
    let size = (SIZE.0.unsigned_abs(), SIZE.1.unsigned_abs());
    if !results.cells.is_empty() {
        plot::write(&directory.join("heat-map.svg"), size, |area| heat_map(area, results))?;
    }
    if results.lesson.len() > 1 {
        plot::write(&directory.join("queue.svg"), size, |area| lesson(area, results))?;
    }
    Ok(())
}

/// Draws the heat map. A cell is darker if its goodput is closer to the best goodput on the same network.
fn heat_map(area: &Area<'_>, results: &Results) -> anyhow::Result<()> {
    let all = cells(&results.cells);
    let map = HeatMap::new(&all)?;
    map.draw_names(area)?;
    for cell in &all {
        let Some(median) = Median::of(cell, &results.cells) else { continue };
        // The fold starts above 0 to avoid a division by zero below.
        let best = all
            .iter()
            .filter(|other| other.net == cell.net)
            .filter_map(|other| Some(Median::of(other, &results.cells)?.goodput_mbit_per_s))
            .fold(f64::MIN_POSITIVE, f64::max);
        map.draw_cell(area, cell, median.goodput_mbit_per_s, median.goodput_mbit_per_s / best)?;
    }
    Ok(())
}

/// The layout of the heat map in pixels.
struct HeatMap {
    /// One column for each combination of network and caps.
    columns: Vec<(Net, Caps)>,
    /// One row for each combination of connections, MTU and queue, by its name.
    rows: Vec<String>,
    width: i32,
    height: i32,
}

impl HeatMap {
    const LEFT: i32 = 250;
    const TOP: i32 = 90;
    const BOTTOM: i32 = 60;

    fn new(cells: &[&Cell]) -> anyhow::Result<Self> {
        let (mut columns, mut rows) = (Vec::new(), Vec::new());
        let has_queues = cells.iter().any(|cell| cell.setting.queue.is_some());
        for cell in cells {
            let column = (cell.net, cell.setting.caps);
            if !columns.contains(&column) {
                columns.push(column);
            }
            let row = row_name(cell);
            // A cell without a queue is drawn in the rows of all queues, so it needs no row of its own if there are queues.
            if (cell.setting.queue.is_some() || !has_queues) && !rows.contains(&row) {
                rows.push(row);
            }
        }
        let width = (SIZE.0 - Self::LEFT - 20) / i32::try_from(columns.len().max(1))?;
        let height = (SIZE.1 - Self::TOP - Self::BOTTOM) / i32::try_from(rows.len().max(1))?;
        Ok(Self { columns, rows, width, height })
    }

    /// Draws the title and the names of columns and rows.
    fn draw_names(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let title =
            "TCP x8 up through Warren, Mbit/s received; the darker, the nearer to the best of its network";
        area.draw(&Text::new(title, (20, 16), (FONT, 18)))?;
        let mut last = None;
        for (index, (net, caps)) in self.columns.iter().enumerate() {
            let x = self.x(index)?;
            if last.replace(*net) != Some(*net) {
                area.draw(&Text::new(net.title(), (x + 4, 44), (FONT, 14)))?;
            }
            area.draw(&Text::new(format!("caps {caps}"), (x + 4, 66), (FONT, 13)))?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            area.draw(&Text::new(row.clone(), (20, self.y(index)? + self.height / 2 - 7), (FONT, 13)))?;
        }
        Ok(())
    }

    /// Draws a cell in each of its rows. `part` is its goodput divided by the best goodput of its network.
    fn draw_cell(
        &self,
        area: &Area<'_>,
        cell: &Cell,
        goodput_mbit_per_s: f64,
        part: f64,
    ) -> anyhow::Result<()> {
        let column = self.columns.iter().position(|column| *column == (cell.net, cell.setting.caps));
        let x = self.x(column.context("every cell has a column")?)?;
        let name = row_name(cell);
        // The name of a row ends with the queue. So the name of a cell without a queue is a prefix of the names of all its rows.
        let is_here = |row: &str| {
            if cell.setting.queue.is_some() { row == name } else { row.starts_with(&name) }
        };
        for (index, _) in self.rows.iter().enumerate().filter(|(_, row)| is_here(row)) {
            let y = self.y(index)?;
            let colour = BLUE.mix(shade(part));
            let corners = [(x, y), (x + self.width - 3, y + self.height - 3)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
            let text = format!("{goodput_mbit_per_s:.0} ({:.0} %)", part * 100.0);
            let ink = if shade(part) > 0.5 { WHITE } else { BLACK };
            let style = (FONT, 13).into_font().color(&ink);
            area.draw(&Text::new(text, (x + 6, y + self.height / 2 - 8), style))?;
        }
        Ok(())
    }

    fn x(&self, column: usize) -> anyhow::Result<i32> {
        Ok(Self::LEFT + self.width * i32::try_from(column)?)
    }

    fn y(&self, row: usize) -> anyhow::Result<i32> {
        Ok(Self::TOP + self.height * i32::try_from(row)?)
    }
}

/// Returns the darkness of a cell, from 0 to 1. Half of the best value or less has darkness 0, so that small differences are
/// visible.
fn shade(part: f64) -> f64 {
    0.08 + 0.92 * ((part - 0.5) / 0.5).clamp(0.0, 1.0)
}

fn row_name(cell: &Cell) -> String {
    let of = &cell.setting;
    let queue = of.queue.as_ref().map(|queue| format!(", queue {queue}")).unwrap_or_default();
    let plural = if of.connections == 1 { "" } else { "s" };
    format!("{} connection{plural}, MTU {}{queue}", of.connections, of.mtu)
}

/// Draws the queue's drops (left axis) and the round-trip time (right axis) by the length of the queue.
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
    // The start of a logarithmic axis must be finite and above 0.
    let shortest = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min).clamp(1e-3, 1e6);
    // The axis must have a length even with a single point.
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
        .draw_series(LineSeries::new(dropped.iter().copied(), VERMILION.stroke_width(3)))?
        .label("dropped (left)")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], VERMILION.stroke_width(3)));
    chart.draw_series(dropped.iter().map(|&point| Circle::new(point, 4, VERMILION.filled())))?;
    for (name, points, colour) in [("RTT median (right)", &middle, BLUE), ("RTT p99 (right)", &late, SKY)] {
        chart
            .draw_secondary_series(LineSeries::new(points.iter().copied(), colour.stroke_width(3)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
        chart.draw_secondary_series(points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
    }
    plot::draw_legend(&mut chart, SeriesLabelPosition::UpperMiddle)
}

/// Returns the length of a cell's queue. None if it is not a time.
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
