//! What all SVG plots share: the font, the colours, how a file is written and where the legend stands.

use std::path::Path;

use anyhow::anyhow;
use plotters::{
    chart::ChartContext,
    coord::{CoordTranslate, Shift},
    prelude::{
        BLACK, Color as _, DrawingArea, IntoDrawingArea as _, RGBColor, SVGBackend, SeriesLabelPosition,
        WHITE,
    },
};

pub(crate) const FONT: &str = "sans-serif";

// The colours of Okabe and Ito, which people with any colour vision can tell apart.
pub(crate) const GREY: RGBColor = RGBColor(153, 153, 153);
pub(crate) const SKY: RGBColor = RGBColor(86, 180, 233);
pub(crate) const VERMILION: RGBColor = RGBColor(213, 94, 0);
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
pub(crate) const PURPLE: RGBColor = RGBColor(204, 121, 167);
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes an SVG file of so many pixels.
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
