//! What is exposed and what is hidden, over a link that is slow on purpose.
//!
//! Other work on the machine makes any step slower, never faster: what must be fast is judged by
//! the best of some steps, what cannot be fast by all of them.

#![expect(clippy::disallowed_methods, reason = "a sleep stands for the computation")]

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::{
    BudgetRule, Communicator, Granularity, LinkRate, ModelKind, OspConfig, Pacing, Session,
    SessionConfig, StepReport, TensorSpec,
};

const LEN: usize = 40_000;
const STEPS: usize = 8;

fn osp(budget: BudgetRule) -> ModelKind {
    let granularity = Granularity::Slices { max_bytes: 4000 };
    ModelKind::Osp(OspConfig { budget, granularity, ..OspConfig::default() })
}

/// Trains for some epochs; the last epoch's steps, without the first two.
fn train(
    world: &Communicator,
    model: ModelKind,
    epochs: u64,
    compute: Duration,
) -> Vec<StepReport> {
    let mut parameters = vec![0.5; LEN];
    let specs = [TensorSpec::new("all", LEN)];
    let config = SessionConfig { model, check_every: 0, ..SessionConfig::default() };
    let mut session =
        Session::new(world, &specs, &mut [&mut parameters], &config).expect("started");
    let mut random = fastrand::Rng::with_seed(u64::from(world.rank()));
    let mut reports = Vec::new();
    for epoch in 0..epochs {
        reports.clear();
        for _ in 0..STEPS {
            let gradient: Vec<f32> = (0..LEN).map(|_| random.f32() - 0.5).collect();
            std::thread::sleep(compute);
            let step = session.step(&mut [&mut parameters], &[&gradient], 0.001, 1.0);
            reports.push(step.expect("a step"));
        }
        // Half of the loss is gone after each epoch.
        session.end_epoch(1.0 / (1 << epoch) as f32).expect("an epoch");
    }
    session.finish(&mut [&mut parameters]).expect("finished");
    reports.split_off(2)
}

/// Two ranks, 160 kB of gradients, 2 MB/s each way: 80 ms for all of them.
fn slow<T: Send>(body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let rate = LinkRate { bytes_per_s: 2e6 };
    let pacing = Some(Pacing { rate, latency: Duration::ZERO });
    threads(2, |config| config.pacing = pacing, body)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn least_exposed(reports: &[StepReport]) -> Duration {
    reports.iter().map(|report| report.exposed).min().expect("steps")
}

#[test]
fn deferred_bytes_are_hidden_and_important_ones_exposed() {
    let found = slow(|world| {
        let osp = |share| train(&world, osp(BudgetRule::fixed(share)), 1, ms(150));
        [train(&world, ModelKind::Bsp, 1, ms(150)), osp(0.0), osp(0.75)]
    });
    for [bsp, nothing, most] in found {
        // What travels cannot be faster than the link: 80 ms, but for what it lets through at once.
        assert!(least_exposed(&bsp) > ms(60), "{bsp:?}");
        assert!(least_exposed(&nothing) > ms(60), "{nothing:?}");
        let ratio = least_exposed(&most).as_secs_f64() / least_exposed(&bsp).as_secs_f64();
        assert!(ratio < 0.6, "{most:?} of {bsp:?}");
        assert!(most.iter().all(|report| report.bytes_deferred == 120_000), "{most:?}");
    }
}

#[test]
fn deferred_bytes_that_do_not_hide_are_exposed_one_step_later() {
    let found = slow(|world| train(&world, osp(BudgetRule::fixed(1.0)), 1, ms(0)));
    for reports in found {
        assert!(reports.iter().all(|report| report.bytes_important == 0), "{reports:?}");
        assert!(least_exposed(&reports) > ms(60), "{reports:?}");
        assert!(reports.iter().all(|report| report.ics_wait > ms(60)), "{reports:?}");
    }
}

/// 80 % may be deferred, and three quarters of that after these losses: 60 %, if it hides. Behind
/// 15 ms hide 30 kB, less than 20 %.
#[test]
fn the_budget_is_what_the_measured_link_hides() {
    let rule = BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 };
    let found = slow(|world| [15, 150].map(|compute| train(&world, osp(rule), 4, ms(compute))));
    for [short, long] in found {
        let [short, long] = [short, long].map(|reports| reports[0].deferred_share);
        assert!((0.02..0.4).contains(&short), "{short}");
        assert!((0.45..0.61).contains(&long), "{long}");
    }
}
