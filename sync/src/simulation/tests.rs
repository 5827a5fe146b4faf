//! Times by hand, sums against the lockstep harness, and what must end in an error.

use std::time::Duration;

use super::*;
use crate::config::{AspConfig, ModelKind, OspConfig, OspServerConfig, Pull, SessionConfig};
use crate::layout::Granularity;
use crate::lockstep::{Lockstep, TensorList};
use crate::model::osp::budget::{BudgetRule, Decision};
use crate::model::osp_server::settings::Placement;
use crate::model::{Action, Event, Job, ReduceId, SyncModel, Tensors, Traffic};

/// All cut into slices of four.
const LENS: [usize; 3] = [100, 8, 40];
const BYTES: f64 = 148.0 * 4.0;
const RATE: f32 = 0.1;

/// Gradients that depend on rank, step and parameters; remembers what it was told.
#[derive(Debug, Default)]
struct Probe {
    steps: Vec<StepDone>,
    epochs: Vec<(u32, u64)>,
}

fn gradients_of(rank: u32, step: u64, parameters: &TensorList) -> TensorList {
    let seed = u64::from(rank) * 1_000 + step;
    let mut random = fastrand::Rng::with_seed(seed);
    let tensor = |tensor: &Vec<f32>| tensor.iter().map(|w| w * 0.1 + random.f32() - 0.5).collect();
    parameters.iter().map(tensor).collect()
}

impl Trainer for Probe {
    fn gradients(
        &mut self,
        rank: u32,
        step: u64,
        parameters: &TensorList,
        gradients: &mut TensorList,
    ) -> f32 {
        *gradients = gradients_of(rank, step, parameters);
        1.0 / (step + 1) as f32
    }

    fn learning_rate(&self, _step: u64) -> f32 {
        RATE
    }

    fn step_ended(&mut self, step: &StepDone) {
        self.steps.push(*step);
    }

    fn epoch_ended(&mut self, rank: u32, epoch: u64, _now_s: f64, _parameters: &TensorList) {
        self.epochs.push((rank, epoch));
    }
}

fn start() -> TensorList {
    let mut random = fastrand::Rng::with_seed(9);
    LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect()).to_vec()
}

fn config(model: ModelKind) -> SessionConfig {
    SessionConfig { model, check_every: 0, ..SessionConfig::default() }
}

/// OSP that defers this share from the second step on.
fn osp(share: f64) -> ModelKind {
    ModelKind::Osp(OspConfig {
        budget: BudgetRule::fixed(share),
        granularity: Granularity::Slices { max_bytes: 16 },
        min_deferred_len: 1,
        rs_parts: 0,
        ..OspConfig::default()
    })
}

/// The same on servers, from the third step on.
fn osp_ps(share: f64, placement: Placement) -> ModelKind {
    let ModelKind::Osp(osp) = osp(share) else { unreachable!("as above") };
    let settings = OspServerConfig::new(placement);
    let osp = OspConfig { gib_lag: settings.osp.gib_lag, ceiling: settings.osp.ceiling, ..osp };
    ModelKind::OspServer(OspServerConfig { osp, ..settings })
}

fn asp(pull: Pull) -> ModelKind {
    ModelKind::Asp(AspConfig { pull, ..AspConfig::default() })
}

/// A link that takes 10 ms for all bytes, with this latency, and a computation of 30 ms.
fn settings(latency: Duration, steps: u64) -> Settings {
    Settings {
        network: Network { bytes_per_s: BYTES * 100.0, latency, element_bytes: 4.0 },
        compute: Compute::fixed(Duration::from_millis(30)),
        epochs: 1,
        steps_per_epoch: steps,
        warmup_epochs: 0,
        is_drained: true,
    }
}

fn play(
    model: ModelKind,
    ranks: u32,
    settings: &Settings,
) -> (Outcome, Simulation<Box<dyn SyncModel>>, Probe) {
    let mut probe = Probe::default();
    let simulation = Simulation::new(&config(model), ranks, &start(), settings.clone()).unwrap();
    let (outcome, simulation) = simulation.run(&mut probe).unwrap();
    (outcome, simulation, probe)
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9, "{a} is not {b}");
}

#[test]
fn a_bsp_step_is_the_slowest_computation_and_the_formula() {
    for ranks in [2, 3, 8] {
        let mut settings = settings(Duration::from_micros(50), 20);
        settings.compute.jitter = 0.3;
        settings.compute.times.push(Duration::from_millis(45));
        let delay = Duration::from_millis(20);
        settings.compute.stragglers = vec![Straggler { rank: 1, delay, from: 3, to: 5 }];
        let (outcome, _, probe) = play(ModelKind::Bsp, ranks, &settings);
        let formula = settings.network.all_reduce_s(BYTES, ranks);
        let mut now = 0.0;
        for step in 0..20 {
            let times = (0..ranks).map(|rank| settings.compute.seconds(rank, step));
            let slowest = times.fold(0.0, f64::max);
            now += slowest + formula;
            for done in probe.steps.iter().filter(|done| done.step == step) {
                near(done.now_s, now);
                near(done.exposed_s, slowest - done.compute_s + formula);
            }
        }
        near(outcome.ranks[0].span_s, now);
        near(outcome.steps_per_s(), f64::from(ranks) * 20.0 / now);
        near(outcome.exposed_share() + outcome.compute_share(), 1.0);
    }
}

#[test]
fn what_osp_defers_hides_exactly_if_it_fits() {
    // Half of 10 ms, twice 3/4 of it on the wire: 7.5 ms behind a computation of 30 ms.
    let (outcome, _, probe) = play(osp(0.5), 4, &settings(Duration::ZERO, 10));
    let rest = |bytes: f64| 1.5 * bytes / (BYTES * 100.0);
    let deferred = outcome.ranks[0].deferred_bytes as f64 / 9.0;
    assert!(deferred > 0.45 * BYTES && deferred <= 0.5 * BYTES, "{deferred}");
    for done in &probe.steps {
        let deferred = if done.step == 0 { 0.0 } else { deferred };
        near(done.exposed_s, rest(BYTES - deferred));
    }
}

#[test]
fn what_osp_defers_is_exposed_by_what_does_not_fit() {
    let mut slow = settings(Duration::ZERO, 10);
    slow.network.bytes_per_s /= 10.0;
    // Everything is deferred: 150 ms behind a computation of 30 ms.
    let (_, _, probe) = play(osp(1.0), 4, &slow);
    probe.steps.iter().filter(|done| done.step >= 2).for_each(|done| near(done.exposed_s, 0.12));
    // Half: each stage 75 ms, of which the overlapped one is waited for 45 ms.
    let (outcome, _, probe) = play(osp(0.5), 4, &slow);
    let deferred = outcome.ranks[0].deferred_bytes as f64 / 9.0 / BYTES;
    assert!((0.45..=0.5).contains(&deferred), "{deferred}");
    probe.steps.iter().filter(|done| done.step >= 2).for_each(|done| near(done.exposed_s, 0.12));
}

#[test]
fn a_rank_that_comes_late_gives_the_background_time() {
    let mut slow = settings(Duration::ZERO, 6);
    slow.network.bytes_per_s /= 10.0;
    let delay = Duration::from_millis(500);
    slow.compute.stragglers = vec![Straggler { rank: 2, delay, from: 0, to: 99 }];
    let (_, _, probe) = play(osp(1.0), 4, &slow);
    // With nothing important, the others are a step ahead: they wait for the straggler's part of
    // the step before, and for its reduction. The straggler finds that over.
    for done in probe.steps.iter().filter(|done| done.step >= 3) {
        near(done.exposed_s, if done.rank == 2 { 0.0 } else { 0.5 });
    }
}

#[test]
fn an_asp_round_trip_by_hand() {
    // Half of the parameters are on the other rank: 36 bytes of header and 74 values.
    let (outcome, _, probe) =
        play(asp(Pull::AfterPush), 2, &settings(Duration::from_micros(100), 5));
    let way = (36.0 + 74.0 * 4.0) / (BYTES * 100.0) + 1e-4;
    probe.steps.iter().for_each(|done| near(done.exposed_s, 2.0 * way));
    near(outcome.step_s(), 0.03 + 2.0 * way);
    let (_, _, probe) = play(asp(Pull::NextStep), 2, &settings(Duration::ZERO, 5));
    probe.steps.iter().for_each(|done| near(done.exposed_s, 0.0));
}

#[test]
fn pushes_to_one_shard_wait_for_one_another() {
    // Three workers, one third each; headers do not count: values stand for 1000 times as much.
    let mut settings = settings(Duration::ZERO, 1);
    settings.network.element_bytes = 4e6;
    settings.network.bytes_per_s = 4e6 * 148.0 * 100.0;
    let (_, _, probe) = play(asp(Pull::AfterPush), 3, &settings);
    let longest = probe.steps.iter().map(|done| done.exposed_s).fold(0.0, f64::max);
    // Two messages of 10/3 ms out and two in, and as many back: 4 units if nothing collides.
    assert!(longest >= 4.0 * 0.00331, "{longest}");
    assert!(longest <= 7.0 * 0.00335, "{longest}");
}

/// Bytes of the heads of a push and of a reply, without the bitmap.
const HEAD: f64 = 32.0;

/// What each rank waits for its first RS, in which all is important.
fn first_rs(placement: Placement, ranks: u32) -> Vec<(u32, f64)> {
    let model = osp_ps(0.0, placement);
    let (outcome, simulation, probe) = play(model, ranks, &settings(Duration::ZERO, 4));
    let first = probe.steps.iter().filter(|done| done.step == 0);
    let mut found: Vec<(u32, f64)> = first.map(|done| (done.rank, done.exposed_s)).collect();
    found.sort_by_key(|(rank, _)| *rank);
    assert_eq!(outcome.ranks.len(), found.len(), "those who train");
    // A rank that only serves has the parameters after the drain, too.
    (0..ranks as usize)
        .for_each(|rank| assert_eq!(simulation.parameters(rank), simulation.parameters(0)));
    found
}

/// All push to one rank, one after the other, and get their replies so: 37 slices have two words of
/// bitmap.
#[test]
fn one_server_s_link_carries_the_pushes_of_all_others() {
    let (push, reply) = (HEAD + BYTES, HEAD + 8.0 + BYTES);
    let after = |replies: u32| (3.0 * push + f64::from(replies) * reply) / (BYTES * 100.0);
    let found = first_rs(Placement::Colocated { rank: 0 }, 4);
    assert_eq!(found.len(), 4);
    found.iter().for_each(|(rank, exposed_s)| near(*exposed_s, after(*rank)));
    let found = first_rs(Placement::Dedicated { rank: 0 }, 4);
    assert_eq!(found.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1, 2, 3]);
    found.iter().for_each(|(rank, exposed_s)| near(*exposed_s, after(*rank)));
}

/// Of two servers the first has 18 slices and the second 19, of 16 bytes each; each link carries a
/// push and then a reply, and the replies wait for the longer push.
#[test]
fn two_servers_share_the_bytes() {
    let [short, long] = [18.0 * 16.0, 19.0 * 16.0];
    let found = first_rs(Placement::Sharded, 2);
    let after = |reply: f64| (HEAD + long + HEAD + 4.0 + reply) / (BYTES * 100.0);
    near(found[0].1, after(long));
    near(found[1].1, after(short));
}

#[test]
fn what_servers_get_later_hides_behind_the_computation() {
    for placement in
        [Placement::Sharded, Placement::Colocated { rank: 1 }, Placement::Dedicated { rank: 2 }]
    {
        let exposed = |share, bytes_per_s| {
            let mut settings = settings(Duration::ZERO, 12);
            // Values are so long that heads do not count.
            settings.network.element_bytes *= 1e6;
            settings.network.bytes_per_s = bytes_per_s * 1e6;
            let (outcome, _, probe) = play(osp_ps(share, placement), 3, &settings);
            let late = probe.steps.iter().filter(|done| done.step >= 3);
            let longest = late.map(|done| done.exposed_s).fold(0.0, f64::max);
            (longest, outcome.deferred_share(), outcome.staleness())
        };
        // All of it in 3 ms, of 30.
        let (bsp, ..) = exposed(0.0, BYTES * 300.0);
        let (osp, deferred, staleness) = exposed(1.0, BYTES * 300.0);
        assert!(osp < 1e-3 * bsp, "{placement:?}: {osp} {bsp}");
        assert!(deferred > 0.75 && staleness > 0.75, "{placement:?}: {deferred} {staleness}");
        // A hundred times slower: a server gets two pushes of 333 ms and then replies as often, of
        // which the computation hides 30 ms. Three servers need a third of that for each of the
        // others' shares, or a little more.
        let (osp, ..) = exposed(1.0, BYTES * 3.0);
        let (least, most) = match placement {
            Placement::Sharded => (4.0 / 9.0 - 0.03, 6.0 / 9.0),
            _ => (4.0 / 3.0 - 0.0301, 4.0 / 3.0 - 0.0299),
        };
        assert!(osp > least && osp < most, "{placement:?}: {osp}");
    }
}

#[test]
fn a_straggler_slows_everybody_down_but_under_asp() {
    let mut settings = settings(Duration::ZERO, 20);
    let delay = Duration::from_millis(300);
    settings.compute.stragglers = vec![Straggler { rank: 0, delay, from: 0, to: u64::MAX }];
    let span = |model, rank: usize| play(model, 4, &settings).0.ranks[rank].span_s;
    near(span(ModelKind::Bsp, 0), span(ModelKind::Bsp, 3));
    let asp = asp(Pull::AfterPush);
    assert!(span(asp, 3) < 0.2 * span(asp, 0), "{} {}", span(asp, 3), span(asp, 0));
}

#[test]
fn alone_nothing_is_exposed() {
    for model in [ModelKind::Bsp, osp(0.5), asp(Pull::AfterPush), asp(Pull::NextStep)] {
        let (outcome, ..) = play(model, 1, &settings(Duration::from_millis(7), 5));
        assert_eq!(outcome.ranks[0].exposed_s, 0.0, "{}", model.name());
        near(outcome.end_s, 5.0 * 0.03);
    }
}

#[test]
fn the_seed_fixes_every_bit() {
    for model in [ModelKind::Bsp, osp(0.5), asp(Pull::AfterPush), osp_ps(0.5, Placement::Sharded)] {
        let run = |seed| {
            let mut settings = settings(Duration::from_micros(10), 12);
            settings.compute = Compute { jitter: 0.5, seed, ..settings.compute };
            let (outcome, simulation, probe) = play(model, 5, &settings);
            (outcome, simulation.parameters(0).clone(), probe.steps)
        };
        assert_eq!(run(1), run(1), "{}", model.name());
        assert_ne!(run(1).0, run(2).0, "{}", model.name());
    }
}

/// The same gradients at the same parameters, hence the same parameters: bit for bit.
#[test]
fn sums_are_those_of_the_lockstep_harness() {
    let models = |ranks| {
        let mut all = vec![ModelKind::Bsp, osp(0.6), asp(Pull::AfterPush), asp(Pull::NextStep)];
        all.push(osp_ps(0.6, Placement::Sharded));
        all.push(osp_ps(0.6, Placement::Colocated { rank: ranks / 2 }));
        if ranks > 1 {
            all.push(osp_ps(0.6, Placement::Dedicated { rank: ranks - 1 }));
        }
        all
    };
    for ranks in [1, 2, 5] {
        for model in models(ranks) {
            let mut settings = settings(Duration::ZERO, 4);
            settings.epochs = 3;
            // Under ASP, the order of the pushes is that of the ranks if no way takes any time, and
            // each rank is a little later than the one before.
            settings.network.bytes_per_s = f64::INFINITY;
            let slow = |rank| {
                let delay = Duration::from_micros(u64::from(rank));
                Straggler { rank, delay, from: 0, to: u64::MAX }
            };
            settings.compute.stragglers = (0..ranks).map(slow).collect();
            let (_, simulation, probe) = play(model, ranks, &settings);
            let mut lockstep = Lockstep::new(&config(model), ranks, &start()).unwrap();
            for step in 0..12 {
                let gradients: Vec<TensorList> = (0..ranks)
                    .map(|rank| gradients_of(rank, step, lockstep.parameters(rank as usize)))
                    .collect();
                lockstep.step(&gradients, RATE).unwrap();
                if step % 4 == 3 {
                    lockstep.end_epoch(&vec![1.0; ranks as usize]).unwrap();
                }
            }
            lockstep.drain().unwrap();
            for rank in 0..ranks as usize {
                let name = model.name();
                assert_eq!(simulation.parameters(rank), lockstep.parameters(rank), "{name}");
                assert_ne!(*simulation.parameters(rank), start());
            }
            let epochs = probe.epochs.iter().filter(|(rank, _)| *rank == 0);
            assert_eq!(epochs.map(|(_, epoch)| *epoch).collect::<Vec<u64>>(), [0, 1, 2]);
        }
    }
}

#[test]
fn first_epochs_are_left_out_of_the_sums() {
    let mut settings = settings(Duration::ZERO, 5);
    (settings.epochs, settings.warmup_epochs) = (3, 2);
    let (outcome, _, probe) = play(osp(0.5), 2, &settings);
    assert_eq!((outcome.ranks[0].steps, probe.steps.len()), (5, 30));
    let last: f64 = probe
        .steps
        .iter()
        .filter(|done| done.rank == 0 && done.step >= 10)
        .map(|d| d.exposed_s)
        .sum();
    // The ranks agree on what the epoch has shown: three words each.
    let agreement = settings.network.all_gather_s(48.0, 2);
    near(outcome.ranks[0].exposed_s, last + agreement);
    settings.is_drained = false;
    assert!(play(osp(0.5), 2, &settings).0.end_s > 0.0);
}

/// Asks for what it was told to, whatever the others do.
#[derive(Debug)]
struct Stubborn {
    actions: Vec<Action>,
    decision: Decision,
}

impl SyncModel for Stubborn {
    fn handle_event(&mut self, _: Event, _: &mut Tensors<'_, '_>) {}

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop()
    }

    fn staleness(&self) -> u64 {
        0
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }
}

fn fail(actions: impl Fn(u32) -> Vec<Action>) -> String {
    let build = |job: Job, _: &[&mut [f32]]| Stubborn {
        actions: actions(job.rank),
        decision: Decision::never(),
    };
    let config = config(ModelKind::Bsp);
    let settings = settings(Duration::ZERO, 1);
    let simulation = Simulation::with_models(&config, 3, &start(), settings, build).unwrap();
    simulation.run(&mut Probe::default()).unwrap_err().to_string()
}

fn reduce(id: ReduceId, len: usize) -> Action {
    Action::Reduce { id, data: vec![1.0; len] }
}

#[test]
fn ranks_that_wait_for_ever_are_named_with_what_they_wait_for() {
    let text = fail(|rank| if rank == 1 { Vec::new() } else { vec![reduce(4, 2)] });
    assert!(text.starts_with("deadlock at 0.030000 s"), "{text}");
    assert!(text.contains("rank 0 waits for reduction 4, to which rank 1 did not come"), "{text}");
    assert!(text.contains("rank 2 waits") && !text.contains("rank 1 waits"), "{text}");
    let text = fail(|rank| vec![reduce(rank.into(), 2)]);
    assert!(text.contains("rank 2 waits for reduction 2, to which ranks 0, 1 did not"), "{text}");
    let text = fail(|_| vec![Action::AwaitReply { server: 1 }]);
    assert!(text.contains("rank 0 waits for a reply of the shard on rank 1"), "{text}");
    let text = fail(|_| vec![Action::Wait { id: 9 }]);
    assert!(text.contains("reduction 9, which it has not started"), "{text}");
    let text = fail(|_| vec![Action::Collect]);
    assert!(text.contains("brought together; workers still push to that of rank 0"), "{text}");
    let gather =
        |rank| if rank == 0 { Vec::new() } else { vec![Action::Gather { words: vec![1] }] };
    assert!(fail(gather).contains("rank 1 waits for a gather, to which rank 0 did not come"));
}

#[test]
fn ranks_that_differ_and_models_that_give_up_are_errors() {
    let text = fail(|rank| vec![reduce(0, 2 + rank as usize / 2)]);
    assert!(text.contains("rank 2 asks for another exchange"), "{text}");
    let text = fail(|rank| {
        let data = vec![1.0];
        vec![if rank == 0 {
            reduce(0, 1)
        } else {
            Action::StartReduce { id: 0, data, lane: crate::model::Lane::Background }
        }]
    });
    assert!(text.contains("rank 1 asks for another exchange"), "{text}");
    let message = vec![7; 8];
    let push = |server| Action::Push { server, message: message.clone(), replies: true };
    assert!(fail(|_| vec![push(3)]).contains("a message to rank 3 of 3"));
    assert!(fail(|_| vec![push(1)]).starts_with("rank 1: sync protocol broken:"));
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let good = settings(Duration::ZERO, 1);
    let refused = |settings: Settings, ranks| {
        let error = Simulation::new(&config(ModelKind::Bsp), ranks, &start(), settings);
        error.map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(Settings { epochs: 0, ..good.clone() }, 1).contains("0 epochs"));
    assert!(refused(Settings { warmup_epochs: 1, ..good.clone() }, 1).contains("fewer than 1"));
    assert!(refused(Settings { steps_per_epoch: 0, ..good.clone() }, 1).contains("0 steps"));
    let huge = Settings { epochs: 2, steps_per_epoch: u64::MAX, ..good.clone() };
    assert!(refused(huge, 1).contains("too many"));
    assert!(refused(good, 0).contains("at least one rank"));
    let error = Simulation::new(&config(osp(f64::NAN)), 1, &start(), settings(Duration::ZERO, 1));
    assert!(error.map(|_| ()).unwrap_err().to_string().contains("share"));
    let nowhere = osp_ps(0.5, Placement::Dedicated { rank: 2 });
    let error = Simulation::new(&config(nowhere), 2, &start(), settings(Duration::ZERO, 1));
    assert!(error.map(|_| ()).unwrap_err().to_string().contains("below 2, not 2"));
}

/// Numbers that are none, and times beyond any duration, end in numbers or errors: never in a
/// panic, never in a hang.
#[test]
fn strange_numbers_come_to_an_end() {
    struct Strange;
    impl Trainer for Strange {
        fn gradients(
            &mut self,
            rank: u32,
            _: u64,
            _: &TensorList,
            gradients: &mut TensorList,
        ) -> f32 {
            gradients.iter_mut().for_each(|tensor| tensor.fill(f32::NAN));
            if rank == 0 { f32::NAN } else { f32::INFINITY }
        }
        fn learning_rate(&self, _: u64) -> f32 {
            f32::INFINITY
        }
    }
    let mut settings = settings(Duration::ZERO, 3);
    settings.epochs = 2;
    settings.network.bytes_per_s = 1e-300;
    for model in [ModelKind::Bsp, osp(0.5), asp(Pull::AfterPush), osp_ps(0.5, Placement::Sharded)] {
        let simulation = Simulation::new(&config(model), 3, &start(), settings.clone()).unwrap();
        let (outcome, _) = simulation.run(&mut Strange).unwrap();
        assert!(outcome.end_s > 1e300, "{}", model.name());
    }
}
