//! A plane with axes, as SVG.
//!
//! Owns scales, ticks, grid and escaping. Knows no run. Called by `figure` and `page`.

use std::fmt::Write;

use super::summary::short;

/// Width and height of a figure, in the units of its view box.
pub(super) const WIDTH: f64 = 760.0;
pub(super) const HEIGHT: f64 = 360.0;
/// The plane's edges in it.
pub(super) const LEFT: f64 = 62.0;
pub(super) const RIGHT: f64 = WIDTH - 18.0;
pub(super) const TOP: f64 = 14.0;
pub(super) const BOTTOM: f64 = HEIGHT - 48.0;

/// Text as it may stand in HTML and in its attributes.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            _ if letter.is_control() => safe.push('\u{fffd}'),
            _ => safe.push(letter),
        }
    }
    safe
}

/// From 0 or another low end to a high end, both finite, the latter larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    /// Screen coordinates of both.
    from: f64,
    to: f64,
}

impl Axis {
    pub(super) fn across(low: f64, high: f64) -> Self {
        Self { low, high: above(low, high), from: LEFT, to: RIGHT }
    }

    pub(super) fn up(low: f64, high: f64) -> Self {
        Self { low, high: above(low, high), from: BOTTOM, to: TOP }
    }

    /// Where a value lies; values beyond the ends lie on them.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// About `count` round values between the ends.
    pub(super) fn ticks(&self, count: u32) -> Vec<f64> {
        let step = round_step((self.high - self.low) / f64::from(count));
        let first = (self.low / step - 1e-9).ceil();
        let all = (0..=4 * count).map(|i| (first + f64::from(i)) * step);
        all.take_while(|tick| *tick <= self.high + step * 1e-9).collect()
    }
}

fn above(low: f64, high: f64) -> f64 {
    if high > low { high } else { low + 1.0 }
}

/// The smallest of 1, 2, 5 times a power of ten that is not below.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// Opens a figure: what it is called for those who cannot see it.
pub(super) fn open(svg: &mut String, label: &str, height: f64) {
    let label = escape(label);
    let _ =
        write!(svg, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">");
}

/// Lines across at each tick of `y`, with their values and what they are.
pub(super) fn y_axis(svg: &mut String, y: &Axis, name: &str) {
    for tick in y.ticks(5) {
        let (at, text) = (y.at(tick), short(tick));
        let _ = write!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>");
        let (x, base) = (LEFT - 8.0, at + 4.0);
        let _ = write!(svg, "<text x=\"{x}\" y=\"{base:.1}\" class=\"end\">{text}</text>");
    }
    let (middle, name) = (TOP.midpoint(BOTTOM), escape(name));
    let _ = write!(
        svg,
        "<text class=\"mid name\" transform=\"translate(15 {middle}) rotate(-90)\">{name}</text>"
    );
}

/// A line at the bottom, with these values under it and what they are.
pub(super) fn x_axis(svg: &mut String, labels: &[(f64, String)], name: &str) {
    let _ = write!(svg, "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>");
    let base = BOTTOM + 18.0;
    for (at, text) in labels {
        let text = escape(text);
        let _ = write!(svg, "<text x=\"{at:.1}\" y=\"{base}\" class=\"mid\">{text}</text>");
    }
    let (middle, base, name) = (LEFT.midpoint(RIGHT), BOTTOM + 39.0, escape(name));
    let _ = write!(svg, "<text x=\"{middle}\" y=\"{base}\" class=\"mid name\">{name}</text>");
}

/// The ticks of an axis as labels.
pub(super) fn labels(x: &Axis) -> Vec<(f64, String)> {
    x.ticks(8).into_iter().map(|tick| (x.at(tick), short(tick))).collect()
}

/// A line through these points of the screen.
pub(super) fn line(svg: &mut String, class: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    if !points.is_empty() {
        let _ = write!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }
}
