//! Code that all SVG plots share: font, colours, legend, and writing the files.

use std::path::Path;

use anyhow::anyhow;
use plotters::{
    chart::ChartContext,
    coord::{
        CoordTranslate, Shift,
        ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
        types::RangedCoordf64,
    },
    prelude::{
        BLACK, Cartesian2d, ChartBuilder, Color as _, DrawingArea, IntoDrawingArea as _, IntoLogRange as _,
        LineSeries, PathElement, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
    },
};

pub(crate) const FONT: &str = "sans-serif";

// The colours of Okabe and Ito, which people with any kind of colour vision can distinguish.
pub(crate) const GREY: RGBColor = RGBColor(153, 153, 153);
pub(crate) const SKY: RGBColor = RGBColor(86, 180, 233);
pub(crate) const VERMILION: RGBColor = RGBColor(213, 94, 0);
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
pub(crate) const PURPLE: RGBColor = RGBColor(204, 121, 167);
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);

/// The colours of the series. They repeat if there are more than eight series.
const COLOURS: [RGBColor; 8] = [GREY, SKY, VERMILION, BLUE, GREEN, PURPLE, ORANGE, BLACK];
const SIZE: (u32, u32) = (960, 480);

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes an SVG file. `size` is its width and height in pixels.
pub(crate) fn write(
    path: &Path,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let area = SVGBackend::new(path, size).into_drawing_area();
    let failed = |error: String| anyhow!("cannot write {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| failed(error.to_string()))?;
    draw(&area).map_err(|error| failed(error.to_string()))?;
    area.present().map_err(|error| failed(error.to_string()))
}

/// Draws a labelled line for each series that has points. The colour depends on the index of the series.
pub(crate) fn draw_lines<'a, X: Ranged<ValueType = f64>>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, RangedCoordf64>>,
    lines: &[(String, Vec<(f64, f64)>)],
) -> anyhow::Result<()> {
    for (place, (name, points)) in lines.iter().enumerate().filter(|(_, (_, points))| !points.is_empty()) {
        let colour = colour(place);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
    }
    Ok(())
}

/// Draws the legend with the labels of all series.
pub(crate) fn draw_legend<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> anyhow::Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

/// Returns the colour of the series with this index.
pub(crate) fn colour(place: usize) -> RGBColor {
    // `cycle` never ends, so the fallback is never used.
    COLOURS.iter().cycle().nth(place).copied().unwrap_or(BLACK)
}

/// Converts a count to a coordinate.
pub(crate) fn position(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

/// The axis of times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Axis {
    Logarithmic,
    /// A linear axis that starts at 0.
    Linear,
}

/// Writes a plot with a line for each name, which shows the share of round trips that took at most a given time. If there are no
/// times, it writes no file.
pub(crate) fn write_distributions(
    path: &Path,
    title: &str,
    axis: Axis,
    times: Vec<(String, Vec<f64>)>,
) -> anyhow::Result<()> {
    let lines: Vec<_> = times.into_iter().map(|(name, times)| (name, distribution(times))).collect();
    if lines.iter().all(|(_, points)| points.is_empty()) {
        return Ok(());
    }
    let times = || lines.iter().flat_map(|(_, points)| points.iter().map(|(time, _)| *time));
    // A logarithmic axis cannot start at 0.
    let shortest = times().fold(f64::INFINITY, f64::min).max(1e-3);
    // The axis must have a length even if all times are equal.
    let longest = times().fold(shortest * 2.0, f64::max);
    let (log, linear) = ("milliseconds, logarithmic", "milliseconds");
    write(path, SIZE, |area| match axis {
        Axis::Logarithmic => draw_distributions(area, title, ((shortest..longest).log_scale(), log), &lines),
        Axis::Linear => draw_distributions(area, title, (0.0..longest * 1.05, linear), &lines),
    })
}

fn draw_distributions<A, X>(
    area: &Area<'_>,
    title: &str,
    (axis, name): (A, &str),
    lines: &[(String, Vec<(f64, f64)>)],
) -> anyhow::Result<()>
where
    A: AsRangedCoord<CoordDescType = X, Value = f64>,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(axis, 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc(name)
        .y_desc("part of echo requests")
        .label_style((FONT, 13))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    draw_lines(&mut chart, lines)?;
    draw_legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// Returns the cumulative distribution as at most about 500 points.
fn distribution(mut times: Vec<f64>) -> Vec<(f64, f64)> {
    const POINTS: usize = 500;
    times.sort_by(f64::total_cmp);
    let count = times.len();
    let step = count.div_ceil(POINTS).max(1);
    // The last point is always kept, so that the line ends at 1.
    let chosen = times.iter().enumerate().filter(|(index, _)| index % step == 0 || index + 1 == count);
    chosen.map(|(index, &time)| (time, position(index + 1) / position(count))).collect()
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
}
