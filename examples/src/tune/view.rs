//! The progress bar of a search, over its jobs. Called by the binary, through `tune`.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use syncline::policy::timing::{TimingSearch, Trial};

use super::{Watch, plan};

/// A bar on standard error; without a terminal, a line before each job. Nothing if quiet.
#[derive(Debug)]
pub struct View {
    bar: ProgressBar,
    has_lines: bool,
}

impl View {
    /// Not drawn before the first job.
    pub fn new(is_quiet: bool) -> Self {
        let target =
            if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        let template = "{bar:30.cyan/dim} {pos:>3}/{len}  {elapsed}  {msg}";
        let style = ProgressStyle::with_template(template).expect("a template that is tested");
        bar.set_style(style.progress_chars("━╸─"));
        Self { bar, has_lines: !is_quiet && !io::stderr().is_terminal() }
    }
}

impl Watch for View {
    fn next(&mut self, search: &TimingSearch, trial: Trial) {
        let most = (search.config.settings + 1) * search.config.runs;
        let text = describe(search, trial);
        if self.has_lines {
            eprintln!("job {} of at most {most}: {text}", search.records.len() + 1);
        }
        self.bar.set_length(u64::from(most));
        self.bar.set_position(search.records.len() as u64);
        self.bar.set_message(text);
        self.bar.enable_steady_tick(Duration::from_millis(500));
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What runs, and how the job before it went.
fn describe(search: &TimingSearch, trial: Trial) -> String {
    let run = trial.run + 1;
    let now = format!("{}, run {run} of {}", plan(trial.fraction), search.config.runs);
    match search.records.last().map(|record| record.outcome) {
        None => now,
        Some(last) => match last.accuracy {
            Some(accuracy) => {
                format!("{now}; the last: {:.2} % in {:.1} s", accuracy * 100.0, last.seconds)
            }
            None => format!("{now}; the last diverged after {:.1} s", last.seconds),
        },
    }
}

#[cfg(test)]
mod tests {
    use syncline::policy::timing::{Outcome, SearchConfig};

    use super::*;

    #[test]
    fn a_job_is_described_with_the_one_before() {
        let mut search = TimingSearch::new(SearchConfig::default()).unwrap();
        let first = Trial { fraction: 1.0, run: 0 };
        assert_eq!(describe(&search, first), "bsp, run 1 of 5");
        search.record(first, Outcome { accuracy: Some(0.5), seconds: 2.0 }).unwrap();
        let second = Trial { fraction: 0.125, run: 1 };
        assert_eq!(
            describe(&search, second),
            "bsp:12.5%+asp, run 2 of 5; the last: 50.00 % in 2.0 s"
        );
        search.record(second, Outcome { accuracy: None, seconds: 2.0 }).unwrap();
        assert!(describe(&search, second).ends_with("the last diverged after 2.0 s"));
        let mut view = View::new(true);
        view.next(&search, second);
    }
}
