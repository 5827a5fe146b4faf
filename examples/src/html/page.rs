//! The report as one HTML file, which needs nothing else: no script, no font, no image from
//! elsewhere.
//!
//! Owns the order of the page and its words. Called by `syncline report`.

use std::collections::BTreeMap;
use std::fmt::Write;

use syncline::record::DecisionKind;

use super::figure;
use super::measured::{Decided, Measured, list};
use super::plane::escape;
use super::summary::{Study, number, short};

const STYLE: &str = include_str!("style.css");
const KINDS: [DecisionKind; 4] =
    [DecisionKind::Switch, DecisionKind::Evict, DecisionKind::Readmit, DecisionKind::Rollback];

/// The page.
pub fn page(study: &Study) -> String {
    let runs = count(study.runs.len(), "run");
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Comparison of {runs}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Comparison of {runs}</h1>\n<p class=\"quiet\">{}</p>\n",
        escape(&setting(study))
    );
    summary(&mut html, study);
    accuracy(&mut html, study);
    let sync = "How long a step waits for communication. Solid: the median (the mean for runs \
                without it); pale: the 99th percentile; line: the mean. Means over runs.";
    section(&mut html, "Batch-synchronisation time", sync, "", figure::sync_time(study));
    let legend = legend(study);
    let deferred = "Part of the gradients' bytes whose reduction was left to the next step; mean \
                    over runs.";
    section(&mut html, "Deferred share over epochs", deferred, &legend, figure::deferred(study));
    let staleness = "How many updates the parameters of a step lack at most; steps of all ranks \
                     and runs.";
    section(&mut html, "Staleness", staleness, &legend, figure::staleness(study));
    decisions(&mut html, study);
    runs_table(&mut html, study);
    html.push_str("</body>\n</html>\n");
    html
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What all runs have in common.
fn setting(study: &Study) -> String {
    let Some(first) = study.runs.first() else { return String::new() };
    let is_common = |key: &str, value: &str| {
        study.runs.iter().all(|run| run.setting.get(key).is_some_and(|other| other == value))
    };
    let ranks = study.runs.iter().all(|run| run.ranks == first.ranks);
    let ranks = ranks.then(|| count(first.ranks as usize, "rank"));
    let common = first.setting.iter().filter(|(key, value)| is_common(key, value));
    let words = ranks.into_iter().chain(common.map(|(key, value)| format!("{key} {value}")));
    words.collect::<Vec<_>>().join(", ")
}

fn summary(html: &mut String, study: &Study) {
    html.push_str("<div class=\"scroll\"><table class=\"numbers\">\n<thead><tr>");
    for heading in study.headings() {
        // A line break stays one: the style sheet keeps it.
        let lines: Vec<String> = heading.split('\n').map(escape).collect();
        let _ = write!(html, "<th scope=\"col\">{}</th>", lines.join("\n"));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in study.rows() {
        html.push_str("<tr>");
        row.iter().for_each(|cell| cell_of(html, cell));
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    let notes = study.notes();
    if !notes.is_empty() {
        html.push_str("<ul class=\"notes\">\n");
        for note in notes {
            let _ = writeln!(html, "<li>{}</li>", escape(&note));
        }
        html.push_str("</ul>\n");
    }
}

fn cell_of(html: &mut String, text: &str) {
    let _ = write!(html, "<td>{}</td>", escape(text));
}

fn accuracy(html: &mut String, study: &Study) {
    let several = study.models.iter().any(|model| model.runs > 1);
    let thin = if several { " Bold: mean over runs; thin: single runs." } else { "" };
    let target = short(study.target * 100.0);
    let words = format!("Time counts training alone. Dashed: the target of {target} %.{thin}");
    let mut legend = legend(study);
    let kinds = |kind: &DecisionKind| {
        study.runs.iter().flat_map(|run| &run.decisions).any(|made| made.decision.kind == *kind)
    };
    let marks: Vec<DecisionKind> = KINDS.into_iter().filter(kinds).collect();
    if !marks.is_empty() {
        legend.push_str("<ul class=\"legend\">");
        for kind in marks {
            let glyph = figure::glyph(kind);
            let _ = write!(
                legend,
                "<li><svg viewBox=\"-11 -8 22 16\" aria-hidden=\"true\">\
                 <g class=\"mark ink\">{glyph}</g></svg>{kind}</li>"
            );
        }
        legend.push_str("</ul>\n");
    }
    section(html, "Test accuracy against training time", &words, &legend, figure::accuracy(study));
}

fn legend(study: &Study) -> String {
    let mut legend = String::from("<ul class=\"legend\">");
    for model in &study.models {
        let class = figure::colour(study, &model.model);
        let _ = write!(
            legend,
            "<li><svg viewBox=\"0 0 22 16\" aria-hidden=\"true\">\
             <path class=\"line {class}\" d=\"M0 8H22\"/></svg>{}</li>",
            escape(&model.model)
        );
    }
    legend.push_str("</ul>\n");
    legend
}

fn section(html: &mut String, title: &str, words: &str, legend: &str, figure: Option<String>) {
    let _ = writeln!(html, "<h2>{title}</h2>");
    match figure {
        Some(svg) => {
            let _ =
                writeln!(html, "<p class=\"quiet\">{words}</p>\n{legend}<figure>{svg}</figure>");
        }
        None => html.push_str("<p class=\"quiet\">These runs hold no data on it.</p>\n"),
    }
}

fn decisions(html: &mut String, study: &Study) {
    html.push_str("<h2>Decisions</h2>\n");
    if study.runs.iter().all(|run| run.decisions.is_empty()) {
        html.push_str("<p class=\"quiet\">None was written down.</p>\n");
        return;
    }
    html.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
    for heading in
        ["run", "time s", "step", "what", "from → to", "why", "evidence", "cost ms", "ranks"]
    {
        let _ = write!(html, "<th scope=\"col\">{heading}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for run in &study.runs {
        run.decisions.iter().for_each(|made| decision_row(html, run, made));
    }
    html.push_str("</tbody></table></div>\n");
}

fn decision_row(html: &mut String, run: &Measured, made: &Decided) {
    let decision = &made.decision;
    html.push_str("<tr>");
    cell_of(html, &name(run));
    cell_of(html, &number(decision.t_s, 2));
    cell_of(html, &decision.step.to_string());
    cell_of(html, decision.kind.name());
    cell_of(html, &format!("{} → {}", decision.from, decision.to));
    let _ = write!(html, "<td class=\"wide\">{}</td>", escape(&decision.reason));
    let _ = write!(html, "<td class=\"wide\">{}</td>", escape(&evidence(&decision.evidence)));
    cell_of(html, &decision.cost_ms.map_or_else(|| "–".to_owned(), |ms| number(ms, 1)));
    cell_of(html, &list(&made.ranks));
    html.push_str("</tr>\n");
}

fn evidence(evidence: &BTreeMap<String, f64>) -> String {
    let word = |(name, value): (&String, &f64)| match value.is_finite() {
        true => format!("{name} {}", short(*value)),
        // An infinite loss is evidence, unlike a figure that is missing.
        false => format!("{name} {value}"),
    };
    evidence.iter().map(word).collect::<Vec<_>>().join(", ")
}

fn name(run: &Measured) -> String {
    match &run.seed {
        Some(seed) => format!("{}, seed {seed}", run.model),
        None => run.model.clone(),
    }
}

fn runs_table(html: &mut String, study: &Study) {
    html.push_str("<h2>Runs</h2>\n<div class=\"scroll\"><table>\n<thead><tr>");
    for heading in ["run", "samples/s", "training s", "accuracy %", "outcome", "read from"] {
        let _ = write!(html, "<th scope=\"col\">{heading}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for run in &study.runs {
        html.push_str("<tr>");
        cell_of(html, &name(run));
        cell_of(html, &number(run.samples_per_s, 0));
        cell_of(html, &number(run.wall_s, 2));
        let accuracy = run.final_accuracy.unwrap_or(f64::NAN);
        cell_of(html, &number(accuracy * 100.0, 2));
        cell_of(html, &run.outcome);
        let _ = writeln!(html, "<td class=\"wide\">{}</td></tr>", escape(&run.source));
    }
    html.push_str("</tbody></table></div>\n");
}
