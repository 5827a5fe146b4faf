//! What is exposed and what is hidden, over a link that is slow on purpose.

#![expect(clippy::disallowed_methods, reason = "a sleep stands for the computation")]

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::{
    BudgetRule, Communicator, Granularity, LinkRate, ModelKind, OspConfig, Pacing, RunStats,
    Session, SessionConfig, TensorSpec,
};

const LEN: usize = 40_000;
const COMPUTE: Duration = Duration::from_millis(120);

fn osp(budget: BudgetRule) -> ModelKind {
    let granularity = Granularity::Slices { max_bytes: 4000 };
    ModelKind::Osp(OspConfig { budget, granularity, ..OspConfig::default() })
}

/// Trains for some epochs of 6 steps; the last epoch's statistics.
fn train(world: &Communicator, model: ModelKind, epochs: u64, compute: Duration) -> RunStats {
    let mut parameters = vec![0.5; LEN];
    let specs = [TensorSpec::new("all", LEN)];
    let config = SessionConfig { model, check_every: 0, ..SessionConfig::default() };
    let mut session =
        Session::new(world, &specs, &mut [&mut parameters], &config).expect("started");
    let mut random = fastrand::Rng::with_seed(u64::from(world.rank()));
    for epoch in 0..epochs {
        session.take_stats();
        for _ in 0..6 {
            let gradient: Vec<f32> = (0..LEN).map(|_| random.f32() - 0.5).collect();
            std::thread::sleep(compute);
            session.step(&mut [&mut parameters], &[&gradient], 0.001, 1.0).expect("a step");
        }
        // Half of the first loss is gone after each epoch.
        session.end_epoch(1.0 / (1 << epoch) as f32).expect("an epoch");
    }
    let stats = session.take_stats();
    session.finish(&mut [&mut parameters]).expect("finished");
    stats
}

/// Two ranks, 160 kB of gradients, 2 MB/s each way: 80 ms for all of them.
fn slow<T: Send>(body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let rate = LinkRate { bytes_per_s: 2e6 };
    let pacing = Some(Pacing { rate, latency: Duration::ZERO });
    threads(2, |config| config.pacing = pacing, body)
}

#[test]
fn deferred_bytes_are_hidden_and_important_ones_exposed() {
    let found = slow(|world| {
        let shares =
            [0.0, 0.75].map(|share| train(&world, osp(BudgetRule::fixed(share)), 1, COMPUTE));
        (train(&world, ModelKind::Bsp, 1, COMPUTE), shares)
    });
    for (bsp, [nothing, most]) in found {
        // What travels cannot be faster than the link.
        assert!(bsp.bst().p50 > Duration::from_millis(70), "{:?}", bsp.bst());
        assert!(nothing.bst().p50 > Duration::from_millis(70), "{:?}", nothing.bst());
        assert!(bsp.exposed_percent() > 30.0, "{}", bsp.exposed_percent());
        let ratio = most.bst().p50.as_secs_f64() / bsp.bst().p50.as_secs_f64();
        assert!((0.2..0.6).contains(&ratio), "{:?} of {:?}", most.bst(), bsp.bst());
    }
}

#[test]
fn deferred_bytes_that_do_not_hide_are_exposed_one_step_later() {
    let found = slow(|world| train(&world, osp(BudgetRule::fixed(1.0)), 1, Duration::ZERO));
    for stats in found {
        assert!(stats.deferred_share() > 0.8, "{}", stats.deferred_share());
        assert!(stats.bst().p50 > Duration::from_millis(70), "{:?}", stats.bst());
    }
}

/// 20 ms of computation would hide 40 kB; here 120 ms hide all, up to the cap.
#[test]
fn the_budget_is_what_the_measured_link_hides() {
    let rule = BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 };
    let found = slow(|world| train(&world, osp(rule), 4, COMPUTE));
    for stats in found {
        // The last epoch had the budget of the third's end: 3/4 of what may be deferred.
        let share = stats.deferred_share();
        assert!((0.55..0.61).contains(&share), "{share}");
    }
}
