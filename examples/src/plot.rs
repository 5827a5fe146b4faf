//! The plot of test accuracy against training time, as SVG.
//!
//! One line a model: the mean over its seeds, and each seed's own line, thinner and paler, where
//! there are several. Owns its looks; measures nothing. Called by `driver`.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::report::{Report, Run};
use crate::spec::SyncModel;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "DejaVu Sans, Helvetica, Arial, sans-serif";
const INK: RGBColor = RGBColor(38, 38, 38);
const GRID: RGBColor = RGBColor(226, 226, 226);

/// Why there is no plot.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlotError {
    /// The drawing library refused.
    Draw(String),
    /// There is no run with a point to draw.
    Empty,
    /// The file could not be written.
    Io {
        /// The file, or its folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl fmt::Display for PlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Draw(reason) => write!(f, "cannot draw the plot: {reason}"),
            Self::Empty => write!(f, "no run to plot"),
            Self::Io { path, source } => write!(f, "cannot write {}: {source}", path.display()),
        }
    }
}

impl Error for PlotError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Draws `report` under a title that ends in `setting`, and writes it to `path`, whose folder it
/// makes if need be.
///
/// # Errors
///
/// There is nothing to draw, or the file cannot be written.
pub fn write(report: &Report, setting: &str, path: &Path) -> Result<(), PlotError> {
    let text = draw(report, setting)?;
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |source| PlotError::Io { path, source }
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(refused(folder))?;
    }
    fs::write(path, text).map_err(refused(path))
}

/// The plot as SVG text.
///
/// # Errors
///
/// There is nothing to draw.
pub fn draw(report: &Report, setting: &str) -> Result<String, PlotError> {
    let (seconds, percents) = ranges(report).ok_or(PlotError::Empty)?;
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    let result = draw_on(&area, report, setting, seconds, percents).and_then(|()| area.present());
    drop(area);
    result.map_err(|error| PlotError::Draw(error.to_string()))?;
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

fn draw_on(
    area: &Area<'_>,
    report: &Report,
    setting: &str,
    seconds: std::ops::Range<f64>,
    percents: std::ops::Range<f64>,
) -> Drawn {
    area.fill(&WHITE)?;
    let title = TextStyle::from((FONT, 21).into_font()).color(&INK);
    let pale = INK.mix(0.75);
    let subtitle = TextStyle::from((FONT, 14).into_font()).color(&pale);
    area.draw_text("Test accuracy against training time", &title, (76, 18))?;
    let several = report.models().iter().any(|model| report.of(model).count() > 1);
    let note = if several { "; thin lines: single seeds" } else { "" };
    area.draw_text(&format!("{setting}{note}"), &subtitle, (76, 46))?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(76)
        .margin_right(28)
        .margin_bottom(10)
        .margin_left(10)
        .x_label_area_size(50)
        .y_label_area_size(66)
        .build_cartesian_2d(seconds, percents)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK.mix(0.6))
        .x_desc("training time (s)")
        .y_desc("test accuracy (%)")
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .axis_desc_style(TextStyle::from((FONT, 15).into_font()).color(&INK))
        .label_style(TextStyle::from((FONT, 13).into_font()).color(&INK))
        .draw()?;
    for (index, model) in report.models().iter().enumerate() {
        draw_model(&mut chart, report, model, color(model, index))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .margin(16)
        .legend_area_size(34)
        .background_style(WHITE.mix(0.92))
        .border_style(INK.mix(0.25))
        .label_font(TextStyle::from((FONT, 14).into_font()).color(&INK))
        .draw()
}

fn draw_model(
    chart: &mut Chart<'_, '_>,
    report: &Report,
    model: &SyncModel,
    color: RGBColor,
) -> Drawn {
    if report.of(model).count() > 1 {
        for run in report.of(model) {
            chart.draw_series(LineSeries::new(percent_points(run), color.mix(0.4)))?;
        }
    }
    let mean = mean_points(report, model);
    let speed = report.spread(model, |run| run.samples_per_s).mean;
    let accuracy = report.spread(model, |run| run.final_accuracy * 100.0).mean;
    let label = format!("{}: {speed:.0} samples/s, {accuracy:.1} %", model.title());
    chart
        .draw_series(LineSeries::new(mean.iter().copied(), color.stroke_width(3)))?
        .label(label)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 26, y)], color.stroke_width(3)));
    chart.draw_series(mean.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
    Ok(())
}

/// Colours that readers with any kind of colour vision tell apart (Okabe and Ito). The three best
/// known models keep theirs in every plot; the others take the rest in the order they ran.
fn color(model: &SyncModel, index: usize) -> RGBColor {
    const OTHERS: [RGBColor; 4] = [
        RGBColor(204, 121, 167),
        RGBColor(230, 159, 0),
        RGBColor(86, 180, 233),
        RGBColor(90, 90, 90),
    ];
    match model.name() {
        "asp" => RGBColor(0, 158, 115),
        "bsp" => RGBColor(0, 114, 178),
        "osp" => RGBColor(213, 94, 0),
        _ => OTHERS[index % OTHERS.len()],
    }
}

fn percent_points(run: &Run) -> impl Iterator<Item = (f64, f64)> {
    run.accuracy_over_time.iter().map(|(t_s, accuracy)| (*t_s, accuracy * 100.0))
}

/// The mean time and accuracy of a model's seeds at the end of each epoch that all have.
fn mean_points(report: &Report, model: &SyncModel) -> Vec<(f64, f64)> {
    let runs: Vec<Vec<(f64, f64)>> =
        report.of(model).map(|run| percent_points(run).collect()).collect();
    let epochs = runs.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |epoch: usize, part: fn(&(f64, f64)) -> f64| {
        runs.iter().map(|run| part(&run[epoch])).sum::<f64>() / runs.len() as f64
    };
    (0..epochs).map(|epoch| (mean(epoch, |p| p.0), mean(epoch, |p| p.1))).collect()
}

/// From 0 to just after the last point, and from a multiple of 5 below the lowest to 100 percent;
/// none without a point.
fn ranges(report: &Report) -> Option<(std::ops::Range<f64>, std::ops::Range<f64>)> {
    let points = || report.runs.iter().flat_map(percent_points);
    let end = points().map(|point| point.0).reduce(f64::max)?;
    let lowest = points().map(|point| point.1).reduce(f64::min)?;
    let low = ((lowest / 5.0).floor() * 5.0).min(95.0);
    Some((0.0..(end * 1.03).max(1e-3), low..100.5))
}

/// Without needless zeros.
fn short(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    // Adding zero turns -0 into 0.
    format!("{}", rounded + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;
    use crate::spec::model;

    fn report() -> Report {
        let models = [("bsp", 2100.0), ("osp", 3300.0), ("asp", 3600.0)];
        let mut runs = Vec::new();
        for seed in 1..=3 {
            for (model, speed) in models {
                let accuracy = 0.98 + 0.002 * (seed as f64 - 2.0);
                runs.push(run(model, seed, speed * (1.0 + 0.01 * seed as f64), accuracy));
            }
        }
        Report { runs }
    }

    #[test]
    fn the_plot_has_a_line_a_model_axes_with_units_and_the_setting() {
        let text = draw(&report(), "digits <&> 4 ranks").unwrap();
        for part in ["training time (s)", "test accuracy (%)", "digits &lt;&amp;&gt; 4 ranks"] {
            assert!(text.contains(part), "{part}");
        }
        for label in ["BSP: 2142 samples/s, 98.0 %", "OSP: 3366 samples/s", "ASP: 3672 samples/s"] {
            assert!(text.contains(label), "{label}");
        }
        assert!(text.contains("thin lines: single seeds"));
        // For each model three seeds, their mean, and its sample in the legend.
        for color in ["#0072B2", "#D55E00", "#009E73"] {
            let lines = text.split("<polyline").skip(1).filter(|line| line.contains(color)).count();
            assert_eq!(lines, 5, "{color}");
        }
    }

    #[test]
    fn means_are_over_seeds_at_each_epoch() {
        let mut report = Report { runs: vec![run("bsp", 1, 1.0, 0.9); 2] };
        report.runs[0].accuracy_over_time = vec![(1.0, 0.5), (2.0, 0.7)];
        report.runs[1].accuracy_over_time = vec![(3.0, 0.6), (4.0, 0.8), (9.0, 1.0)];
        let mean = mean_points(&report, &model("bsp"));
        let expected = [(2.0, 55.0), (3.0, 75.0)];
        let near = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).hypot(a.1 - b.1) < 1e-9;
        assert!(mean.len() == 2 && mean.iter().zip(&expected).all(near), "{mean:?}");
        let (seconds, percents) = ranges(&report).unwrap();
        assert!(seconds.start == 0.0 && seconds.end > 9.0);
        assert_eq!(percents.start, 50.0);
    }

    #[test]
    fn the_file_s_folder_is_made_and_no_run_is_an_error() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("a/b/plot.svg");
        write(&report(), "setting", &path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("<svg "));
        assert!(matches!(draw(&Report::default(), ""), Err(PlotError::Empty)));
        let error = write(&report(), "setting", &path.join("under/a-file.svg")).unwrap_err();
        assert!(matches!(error, PlotError::Io { .. }), "{error}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([short(0.30000000000000004), short(-0.0), short(100.0)], ["0.3", "0", "100"]);
    }
}
