//! The figures: accuracy, sync time, deferred share, staleness.
//!
//! Owns what is drawn of a study. Each returns SVG, or none if there is nothing to draw. Called by
//! `page`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use syncline::record::{Decision, DecisionKind};

use super::measured::{Measured, Point, mean};
use super::plane::{self, Axis, BOTTOM, LEFT, RIGHT, WIDTH, escape};
use super::summary::{ModelSummary, Study, number, short};

/// How many colours the style sheet has.
const COLOURS: usize = 8;
/// Up to here, each staleness has a bar of its own.
const SINGLE_STALENESS: u64 = 8;

/// The class of a model's colour: the same in every figure, and in every report for the three that
/// are always compared.
pub(super) fn colour(study: &Study, model: &str) -> String {
    const FIXED: [&str; 3] = ["BSP", "OSP", "ASP"];
    let place = FIXED.iter().position(|name| *name == model).unwrap_or_else(|| {
        let others = study.models.iter().filter(|other| !FIXED.contains(&other.model.as_str()));
        let before = others.take_while(|other| other.model != model).count();
        FIXED.len() + before % (COLOURS - FIXED.len())
    });
    format!("c{place}")
}

/// Decisions that have a mark in the figure of accuracy.
pub(super) fn is_marked(kind: DecisionKind) -> bool {
    use DecisionKind::{Evict, Readmit, Rollback, Switch};
    matches!(kind, Switch | Evict | Readmit | Rollback)
}

/// Accuracy against time: the mean of each model, and single runs where there are several.
pub(super) fn accuracy(study: &Study) -> Option<String> {
    let points = || study.runs.iter().flat_map(|run| run.accuracy.iter()).filter(is_drawn);
    let lowest = points().map(|point| point.accuracy * 100.0).reduce(f64::min)?;
    let made = study.runs.iter().flat_map(marked).map(|decision| decision.t_s);
    let end = points().map(|point| point.t_s).chain(made).reduce(f64::max)?;
    let x = Axis::across(0.0, end * 1.02);
    let y = Axis::up(((lowest / 5.0).floor() * 5.0).clamp(0.0, 95.0), 100.0);
    let mut svg = String::new();
    plane::open(&mut svg, "Test accuracy in per cent against training time in seconds", 360.0);
    plane::y_axis(&mut svg, &y, "test accuracy (%)");
    plane::x_axis(&mut svg, &plane::labels(&x), "training time (s)");
    let target = y.at(study.target * 100.0);
    let _ = write!(svg, "<path class=\"target\" d=\"M{LEFT} {target:.1}H{RIGHT}\"/>");
    for ModelSummary { model, runs, .. } in &study.models {
        let class = colour(study, model);
        let at = |point: &Point| (x.at(point.t_s), y.at(point.accuracy * 100.0));
        if *runs > 1 {
            for run in study.of(model) {
                let points = run.accuracy.iter().filter(is_drawn).map(at);
                plane::line(&mut svg, &format!("thin {class}"), points);
            }
        }
        let points = mean_points(study, model);
        plane::line(&mut svg, &format!("line {class}"), points.iter().map(at));
        for (cx, cy) in points.iter().map(at) {
            let _ = write!(
                svg,
                "<circle class=\"dot {class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"/>"
            );
        }
    }
    for run in &study.runs {
        marks(&mut svg, run, &colour(study, &run.model), &x, &y);
    }
    svg.push_str("</svg>");
    Some(svg)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "a filter of references")]
fn is_drawn(point: &&Point) -> bool {
    point.t_s.is_finite() && point.accuracy.is_finite()
}

/// Time and accuracy, mean over a model's runs, at the end of each epoch that all have.
pub(super) fn mean_points(study: &Study, model: &str) -> Vec<Point> {
    let mut epochs: BTreeMap<u64, Vec<Point>> = BTreeMap::new();
    for run in study.of(model) {
        // Of an epoch that was trained twice, the last counts.
        let last: BTreeMap<u64, Point> =
            run.accuracy.iter().filter(is_drawn).map(|point| (point.epoch, *point)).collect();
        last.into_iter().for_each(|(epoch, point)| epochs.entry(epoch).or_default().push(point));
    }
    let runs = study.of(model).filter(|run| !run.accuracy.is_empty()).count();
    let whole = epochs.into_iter().filter(|(_, points)| points.len() == runs);
    whole
        .map(|(epoch, points)| Point {
            epoch,
            t_s: mean(points.iter().map(|point| point.t_s)),
            accuracy: mean(points.iter().map(|point| point.accuracy)),
        })
        .collect()
}

fn marked(run: &Measured) -> impl Iterator<Item = &Decision> {
    let all = run.decisions.iter().map(|made| &made.decision);
    all.filter(|decision| is_marked(decision.kind) && decision.t_s.is_finite())
}

/// Marks on a run's own line, at the foot of the plane if it has none.
fn marks(svg: &mut String, run: &Measured, class: &str, x: &Axis, y: &Axis) {
    for decision in marked(run) {
        let height = accuracy_at(&run.accuracy, decision.t_s).map(|share| share * 100.0);
        let (cx, cy) = (x.at(decision.t_s), height.map_or(BOTTOM, |value| y.at(value)));
        let (kind, from, to) = (decision.kind, escape(&decision.from), escape(&decision.to));
        let (model, t_s) = (escape(&run.model), number(decision.t_s, 2));
        let (step, reason) = (decision.step, escape(&decision.reason));
        let _ = write!(
            svg,
            "<g class=\"mark {class}\" transform=\"translate({cx:.1} {cy:.1})\">\
             <title>{model}, {t_s} s, step {step}: {kind} {from} → {to}. {reason}</title>{}</g>",
            glyph(kind)
        );
    }
}

/// The sign of a kind of decision, around the origin.
pub(super) fn glyph(kind: DecisionKind) -> &'static str {
    match kind {
        DecisionKind::Switch => "<path d=\"M0-7L7 0L0 7L-7 0Z\"/>",
        DecisionKind::Evict => "<path d=\"M-5-5L5 5M-5 5L5-5\"/>",
        DecisionKind::Readmit => "<path d=\"M-6 0H6M0-6V6\"/>",
        _ => "<path d=\"M5-6V6L-6 0Z\"/>",
    }
}

/// Between the points around it; the nearest beyond the ends.
pub(super) fn accuracy_at(points: &[Point], t_s: f64) -> Option<f64> {
    let points: Vec<&Point> = points.iter().filter(is_drawn).collect();
    let after = points.iter().position(|point| point.t_s >= t_s);
    let (first, last) = (points.first()?, points.last()?);
    match after {
        None => Some(last.accuracy),
        Some(0) => Some(first.accuracy),
        Some(i) => {
            let (a, b) = (points[i - 1], points[i]);
            let share = (t_s - a.t_s) / (b.t_s - a.t_s);
            Some(a.accuracy + share * (b.accuracy - a.accuracy))
        }
    }
}

/// Sync time of each model: the median (the mean where that is unknown) and the 99th percentile.
pub(super) fn sync_time(study: &Study) -> Option<String> {
    const ROW: f64 = 52.0;
    let longest = |model: &ModelSummary| {
        let values = [model.sync_p50_ms.unwrap_or(0.0), model.sync_mean_ms, model.sync_p99_ms];
        values.into_iter().filter(|ms| ms.is_finite()).fold(0.0, f64::max)
    };
    let drawn: Vec<&ModelSummary> =
        study.models.iter().filter(|model| model.sync_p99_ms.is_finite()).collect();
    let end = drawn.iter().map(|model| longest(model)).reduce(f64::max)?;
    // Room for the names on the left and the values on the right.
    let (left, right) = (120.0, WIDTH - 130.0);
    let width = |ms: f64| (right - left) * ms / if end > 0.0 { end } else { 1.0 };
    let mut svg = String::new();
    let height = ROW * drawn.len() as f64 + 8.0;
    plane::open(&mut svg, "Batch-synchronisation time of each model in milliseconds", height);
    for (row, model) in (0_u32..).zip(&drawn) {
        let top = ROW * f64::from(row) + 10.0;
        let class = colour(study, &model.model);
        let name = escape(&model.model);
        let (x, base) = (left - 10.0, top + 22.0);
        let _ = write!(svg, "<text x=\"{x}\" y=\"{base}\" class=\"end name\">{name}</text>");
        let (typical, what) = match model.sync_p50_ms {
            Some(ms) => (ms, "p50"),
            None => (model.sync_mean_ms, "mean"),
        };
        let p99 = (model.sync_p99_ms, "p99", "bar pale", top + 18.0);
        for (ms, what, kind, y) in [(typical, what, "bar", top), p99] {
            let w = width(ms).max(1.0);
            let (text, x, base) = (number(ms, 2), left + w + 8.0, y + 12.0);
            let _ = write!(
                svg,
                "<rect class=\"{kind} {class}\" x=\"{left}\" y=\"{y}\" width=\"{w:.1}\" \
                 height=\"15\"/><text x=\"{x:.1}\" y=\"{base}\">{what} {text} ms</text>"
            );
        }
        if model.sync_p50_ms.is_some() && model.sync_mean_ms.is_finite() {
            let at = left + width(model.sync_mean_ms);
            let title = number(model.sync_mean_ms, 2);
            let _ = write!(
                svg,
                "<path class=\"mean\" d=\"M{at:.1} {}v21\"><title>mean {title} ms</title></path>",
                top + 15.0
            );
        }
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// Deferred part of the bytes by epoch, mean over runs.
pub(super) fn deferred(study: &Study) -> Option<String> {
    let epochs = || study.runs.iter().flat_map(|run| run.deferred.keys().copied());
    let (first, last) = (epochs().min()?, epochs().max()?);
    let x = Axis::across(first as f64, last as f64);
    let y = Axis::up(0.0, 100.0);
    let mut svg = String::new();
    plane::open(&mut svg, "Deferred part of the bytes in per cent over epochs", 360.0);
    plane::y_axis(&mut svg, &y, "deferred bytes (%)");
    let whole = |tick: &f64| tick.fract() == 0.0 && *tick <= last as f64;
    let ticks = x.ticks(10).into_iter().filter(whole).map(|tick| (x.at(tick), short(tick)));
    plane::x_axis(&mut svg, &ticks.collect::<Vec<_>>(), "epoch");
    for ModelSummary { model, .. } in &study.models {
        let mut by_epoch: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (epoch, percent) in study.of(model).flat_map(|run| &run.deferred) {
            by_epoch.entry(*epoch).or_default().push(*percent);
        }
        let means = by_epoch.iter().map(|(epoch, all)| (*epoch as f64, mean(all.iter().copied())));
        let points: Vec<_> = means.map(|(epoch, percent)| (x.at(epoch), y.at(percent))).collect();
        let class = colour(study, model);
        plane::line(&mut svg, &format!("line {class}"), points.iter().copied());
        for (cx, cy) in points {
            let _ = write!(
                svg,
                "<circle class=\"dot {class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"/>"
            );
        }
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// How many updates the parameters lacked: share of each model's steps.
pub(super) fn staleness(study: &Study) -> Option<String> {
    let all: BTreeSet<u64> =
        study.runs.iter().flat_map(|run| run.staleness.keys()).map(|s| bin(*s)).collect();
    let bins: Vec<u64> = all.into_iter().collect();
    if bins.is_empty() {
        return None;
    }
    let shares: Vec<(String, BTreeMap<u64, f64>)> = study
        .models
        .iter()
        .map(|model| (colour(study, &model.model), staleness_shares(study, &model.model)))
        .filter(|(_, shares)| !shares.is_empty())
        .collect();
    let highest =
        shares.iter().flat_map(|(_, shares)| shares.values()).copied().fold(0.0, f64::max);
    let y = Axis::up(0.0, highest);
    let mut svg = String::new();
    plane::open(&mut svg, "Share of steps in per cent by staleness in updates", 360.0);
    plane::y_axis(&mut svg, &y, "steps (%)");
    let slot = (RIGHT - LEFT) / bins.len() as f64;
    let width = (slot * 0.8 / shares.len() as f64).min(46.0);
    let middle = |place: usize| LEFT + slot * (place as f64 + 0.5);
    for (place, bin) in bins.iter().enumerate() {
        let left = middle(place) - width * shares.len() as f64 / 2.0;
        for (i, (class, shares)) in shares.iter().enumerate() {
            let Some(percent) = shares.get(bin) else { continue };
            let (x, top) = (left + width * i as f64 + 1.0, y.at(*percent));
            let (w, h, text) = (width - 2.0, BOTTOM - top, number(*percent, 1));
            let _ = write!(
                svg,
                "<rect class=\"bar {class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{w:.1}\" \
                 height=\"{h:.1}\"><title>{text} % of steps</title></rect>"
            );
        }
    }
    let labels = bins.iter().enumerate().map(|(place, bin)| (middle(place), bin_name(*bin)));
    plane::x_axis(&mut svg, &labels.collect::<Vec<_>>(), "updates that the parameters lack");
    svg.push_str("</svg>");
    Some(svg)
}

/// The lowest staleness of a bar: itself, or beyond some the power of two.
pub(super) fn bin(staleness: u64) -> u64 {
    // 9 to 16, 17 to 32, and so on.
    if staleness <= SINGLE_STALENESS { staleness } else { (1 << (staleness - 1).ilog2()) + 1 }
}

fn bin_name(first: u64) -> String {
    if first <= SINGLE_STALENESS {
        first.to_string()
    } else {
        format!("{first}–{}", (first - 1).saturating_mul(2))
    }
}

/// By bar, in per cent of the model's steps.
fn staleness_shares(study: &Study, model: &str) -> BTreeMap<u64, f64> {
    let mut steps: BTreeMap<u64, u64> = BTreeMap::new();
    for (staleness, count) in study.of(model).flat_map(|run| &run.staleness) {
        *steps.entry(bin(*staleness)).or_default() += count;
    }
    let all: u64 = steps.values().sum();
    steps.into_iter().map(|(bin, count)| (bin, 100.0 * count as f64 / all as f64)).collect()
}
