//! The invariants of OSP on servers, in lockstep and under random arrival.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::settings::{MomentSource, Placement};
use super::*;
use crate::config::{GibLag, ModelKind, OspConfig, SessionConfig};
use crate::layout::{Granularity, TensorSpec};
use crate::lockstep::{Lockstep, TensorList};
use crate::model::osp::budget::{BudgetRule, UmaxModel};
use crate::model::osp::correction::Lgp;
use crate::model::osp::importance::Importance;
use crate::model::{Bsp, Osp};
use crate::optimiser::{Adam, Optimiser, Sgd};
use crate::server::osp::{Expected, OspShard};

const LENS: [usize; 3] = [37, 3, 22];
const LEN: usize = 62;
const RATE: f32 = 0.05;
const SHARDED: Placement = Placement::Sharded;

fn osp(share: f64) -> OspConfig {
    OspConfig {
        budget: BudgetRule::fixed(share),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 16 },
        gib_lag: GibLag::Two,
        rs_parts: 0,
        ..OspConfig::default()
    }
}

fn server(share: f64, placement: Placement) -> OspServerConfig {
    OspServerConfig { osp: osp(share), placement, moments: MomentSource::Shipped }
}

fn sgd() -> Optimiser {
    Sgd { weight_decay: 0.001, ..Sgd::default() }.into()
}

fn session(model: ModelKind, optimiser: Optimiser) -> SessionConfig {
    let config =
        SessionConfig { model, optimiser, seed: 5, check_every: 1, ..SessionConfig::default() };
    config.validate().unwrap();
    config
}

fn layout() -> Layout {
    Layout::new(&LENS.map(|len| TensorSpec::new("t", len)), osp(0.0).granularity)
}

fn lockstep(
    config: OspServerConfig,
    optimiser: Optimiser,
    ranks: u32,
    start: &TensorList,
) -> Lockstep<OspServer> {
    let session = session(ModelKind::OspServer(config), optimiser);
    Lockstep::with_models(&session, ranks, start, |job, tensors| {
        OspServer::new(job, config, layout(), tensors, Memory::new(&optimiser, LEN))
    })
}

fn random_list(random: &mut fastrand::Rng) -> TensorList {
    LENS.map(|len| (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()).to_vec()
}

fn bits(list: &TensorList) -> Vec<u32> {
    flat_bits(&list.concat())
}

fn flat_bits(list: &[f32]) -> Vec<u32> {
    list.iter().map(|x| x.to_bits()).collect()
}

fn placements() -> [Placement; 2] {
    [SHARDED, Placement::Colocated { rank: 0 }]
}

#[test]
fn a_budget_of_nothing_is_bsp_to_the_bit() {
    for placement in [SHARDED, Placement::Colocated { rank: 2 }] {
        let mut random = fastrand::Rng::with_seed(1);
        let start = random_list(&mut random);
        let config = session(ModelKind::Bsp, sgd());
        let mut bsp = Lockstep::with_models(&config, 4, &start, |job, _| {
            Bsp::new(job, Memory::new(&job.optimiser, LEN))
        });
        let mut ps = lockstep(server(0.0, placement), sgd(), 4, &start);
        for _ in 0..12 {
            let gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
            bsp.step(&gradients, RATE).unwrap();
            ps.step(&gradients, RATE).unwrap();
            for rank in 0..4 {
                assert_eq!(bits(ps.parameters(rank)), bits(bsp.parameters(rank)));
            }
            assert_eq!(ps.model(0).traffic(), bsp.model(0).traffic());
        }
    }
}

#[test]
fn one_rank_alone_is_the_optimiser_to_the_bit() {
    for optimiser in [sgd(), Adam::default().into()] {
        for share in [0.0, 0.5, 1.0] {
            let mut random = fastrand::Rng::with_seed(2);
            let start = random_list(&mut random);
            let mut ps = lockstep(server(share, SHARDED), optimiser, 1, &start);
            let (mut w, mut memory) = (start.concat(), Memory::new(&optimiser, LEN));
            for step in 0..12 {
                let gradients = random_list(&mut random);
                ps.step(std::slice::from_ref(&gradients), RATE).unwrap();
                let size = StepSize::new(RATE, step);
                optimiser.step(&mut w, memory.moments.all_mut(), &gradients.concat(), size);
                assert_eq!(bits(ps.parameters(0)), flat_bits(&w), "{share} {step}");
            }
            assert_eq!(ps.model(0).traffic().deferred_bytes > 0, share > 0.0);
        }
    }
}

/// One server makes the same bitmaps as the all-reduce form, of the same sums in the same order.
#[test]
fn one_server_is_the_all_reduce_form_to_the_bit() {
    let mut variants = vec![osp(0.6), osp(1.0), OspConfig { gib_every: 3, ..osp(0.6) }];
    for importance in [Importance::Random, Importance::Signed, Importance::Sum] {
        variants.push(OspConfig { importance, ..osp(0.4) });
    }
    variants.extend([Lgp::None, Lgp::LocalPlain].map(|lgp| OspConfig { lgp, ..osp(0.6) }));
    for osp in variants {
        let mut random = fastrand::Rng::with_seed(3);
        let start = random_list(&mut random);
        let config = session(ModelKind::Osp(osp), sgd());
        let mut reduced = Lockstep::with_models(&config, 3, &start, |job, tensors| {
            Osp::new(job, osp, layout(), tensors, Memory::new(&job.optimiser, LEN))
        });
        let config = OspServerConfig { osp, ..server(0.0, Placement::Colocated { rank: 1 }) };
        let mut ps = lockstep(config, sgd(), 3, &start);
        let mut deferred = 0;
        for step in 0..15 {
            let gradients: Vec<_> = (0..3).map(|_| random_list(&mut random)).collect();
            reduced.step(&gradients, RATE).unwrap();
            ps.step(&gradients, RATE).unwrap();
            assert_eq!(ps.model(0).gib(), reduced.model(0).gib().flags(), "{osp:?} {step}");
            for rank in 0..3 {
                assert_eq!(bits(ps.parameters(rank)), bits(reduced.parameters(rank)));
            }
            deferred += ps.model(2).traffic().deferred_bytes;
        }
        assert!(deferred > 0);
        reduced.drain().unwrap();
        ps.drain().unwrap();
        assert_eq!(bits(ps.parameters(2)), bits(reduced.parameters(2)));
    }
}

#[test]
fn after_a_drain_all_hold_what_the_servers_hold() {
    for placement in placements() {
        for (source, optimiser) in [
            (MomentSource::Cheapest, sgd()),
            (MomentSource::Shipped, sgd()),
            (MomentSource::Cheapest, Adam::default().into()),
        ] {
            let config = OspServerConfig { moments: source, ..server(0.6, placement) };
            let mut random = fastrand::Rng::with_seed(4);
            let start = random_list(&mut random);
            let mut ps = lockstep(config, optimiser, 3, &start);
            // The second drain has no step before it.
            for steps in [5, 0, 4] {
                for _ in 0..steps {
                    let gradients: Vec<_> = (0..3).map(|_| random_list(&mut random)).collect();
                    ps.step(&gradients, RATE).unwrap();
                }
                let open = ps.parameters(0).clone();
                ps.drain().unwrap();
                assert_eq!(bits(&open) == bits(ps.parameters(0)), steps == 0);
                let held: Vec<f32> =
                    ps.servers().iter().flat_map(OspShard::parameters).copied().collect();
                for rank in 0..3 {
                    assert_eq!(bits(ps.parameters(rank)), flat_bits(&held));
                    assert_eq!(flat_bits(ps.model(rank).known_parameters()), flat_bits(&held));
                    assert_eq!(ps.model(rank).staleness(), 0);
                }
            }
            assert!(ps.servers().iter().all(|server| server.version() == 9));
        }
    }
}

/// The lists of the workers, with an empty one where rank `server` has none.
fn around(server: usize, lists: &[TensorList]) -> Vec<TensorList> {
    let mut all = lists.to_vec();
    all.insert(server, TensorList::new());
    all
}

/// The workers see the same as if the server were on one of them, to the bit.
#[test]
fn a_dedicated_server_serves_the_workers_alone() {
    for server_rank in [0, 1, 3] {
        for share in [0.0, 0.6, 1.0] {
            let mut random = fastrand::Rng::with_seed(8);
            let start = random_list(&mut random);
            let placement = Placement::Dedicated { rank: server_rank as u32 };
            let mut ps = lockstep(server(share, placement), sgd(), 4, &start);
            let among = server(share, Placement::Colocated { rank: 0 });
            let mut expected = lockstep(among, sgd(), 3, &start);
            for _ in 0..3 {
                for _ in 0..4 {
                    let lists: Vec<_> = (0..3).map(|_| random_list(&mut random)).collect();
                    ps.step(&around(server_rank, &lists), RATE).unwrap();
                    expected.step(&lists, RATE).unwrap();
                    for worker in 0..3 {
                        let rank = worker + usize::from(worker >= server_rank);
                        let found = bits(ps.parameters(rank));
                        assert_eq!(found, bits(expected.parameters(worker)), "{share}");
                    }
                }
                ps.drain().unwrap();
                expected.drain().unwrap();
                let held = bits(expected.parameters(0));
                (0..4).for_each(|rank| assert_eq!(bits(ps.parameters(rank)), held));
            }
        }
    }
}

/// Whole numbers, a rate of 1, no momentum: the end is the start less the sum of the averages.
#[test]
fn every_gradient_is_applied_exactly_once() {
    for placement in placements() {
        let mut random = fastrand::Rng::with_seed(6);
        let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let plain = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        let mut ps = lockstep(server(0.7, placement), plain, 2, &start);
        let mut sum = vec![0.0; LEN];
        let mut deferred = 0;
        for _ in 0..20 {
            let mut list = || LENS.map(|len| (0..len).map(|_| random.i32(-8..8) as f32).collect());
            let gradients: Vec<TensorList> = (0..2).map(|_| list().to_vec()).collect();
            ps.step(&gradients, 1.0).unwrap();
            for gradients in &gradients {
                sum.iter_mut().zip(gradients.concat()).for_each(|(sum, g)| *sum -= g / 2.0);
            }
            deferred += ps.model(0).traffic().deferred_bytes;
        }
        ps.drain().unwrap();
        assert_eq!(ps.parameters(1).concat(), sum);
        assert!(deferred > 1000);
    }
}

/// Equal gradients everywhere: what a worker computes with is what the server will say. With a
/// reconstructed velocity, up to rounding.
#[test]
fn equal_gradients_make_the_provisional_step_final() {
    for (source, tolerance) in [(MomentSource::Shipped, 0.0), (MomentSource::Cheapest, 1e-5)] {
        let mut random = fastrand::Rng::with_seed(7);
        let start = random_list(&mut random);
        let config = OspServerConfig { moments: source, ..server(0.8, SHARDED) };
        let mut ps = lockstep(config, sgd(), 4, &start);
        for _ in 0..10 {
            let gradients = random_list(&mut random);
            ps.step(&vec![gradients; 4], RATE).unwrap();
        }
        assert!(ps.model(0).traffic().deferred_bytes > 0);
        let provisional = ps.parameters(0).concat();
        ps.drain().unwrap();
        for (found, exact) in provisional.iter().zip(ps.parameters(0).concat()) {
            assert!((found - exact).abs() <= tolerance, "{source:?}: {found} for {exact}");
        }
    }
}

/// Each worker's gradient is clipped before it is pushed, and so is its provisional step.
#[test]
fn each_worker_clips_its_own_gradient() {
    let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
    let plain: Optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
    let config = server(1.0, SHARDED);
    let model = ModelKind::OspServer(config);
    let session = SessionConfig { clip_norm: Some(1.0), ..session(model, plain) };
    let mut ps = Lockstep::with_models(&session, 1, &start, |job, tensors| {
        OspServer::new(job, config, layout(), tensors, Memory::new(&plain, LEN))
    });
    for step in 1..=4 {
        ps.step(&[LENS.map(|len| vec![100.0; len]).to_vec()], 1.0).unwrap();
        let norm: f32 = ps.parameters(0).iter().flatten().map(|w| w * w).sum::<f32>().sqrt();
        assert!((norm - step as f32).abs() < 1e-4, "{norm}");
    }
}

/// What was measured sets the budget, by the formula of the placement.
#[test]
fn the_budget_is_what_hides_behind_the_measured_computation() {
    for placement in placements() {
        let mut config = OspServerConfig::new(placement);
        config.osp.budget = BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 };
        config.osp.ceiling.cap = 1.0;
        let is_single = config.osp.ceiling.umax == UmaxModel::ServerPushThenPull;
        assert_eq!(is_single, placement != SHARDED);
        let session = session(ModelKind::OspServer(config), sgd());
        let job = Job::new(0, 4, &session);
        let mut parameters = vec![0.0; 1000];
        let layout = Layout::new(&[TensorSpec::new("t", 1000)], config.osp.granularity);
        let mut views = [parameters.as_mut_slice()];
        let memory = Memory::new(&sgd(), 1000);
        let mut model = OspServer::new(job, config, layout, &views, memory);
        model.measurements.step(&StepEnded {
            learning_rate: 0.1,
            loss: 1.0,
            compute: Duration::from_millis(10),
        });
        // All 4000 bytes took 40 ms: in 10 ms it is 1000.
        let elapsed = Duration::from_millis(40);
        model.timing = Timing { elapsed, blocked: elapsed };
        model.measure(Stage::Rs, false);
        let tensors = &mut Tensors { parameters: &mut views, gradients: &[] };
        for mean_loss in [1.0, 1e-9] {
            model.handle_event(Event::EpochEnded { mean_loss }, tensors);
            let Some(Action::Gather { words }) = model.poll_action() else { panic!("a gather") };
            let words: Vec<u64> = (0..4).flat_map(|_| words.clone()).collect();
            if mean_loss == 1.0 {
                // The same samples again: the agreement takes them away.
                model.measurements.step(&model.ended);
                model.measurements.step(&StepEnded {
                    learning_rate: 0.1,
                    loss: 1.0,
                    compute: Duration::from_millis(10),
                });
                model.measure(Stage::Rs, false);
            }
            model.handle_event(Event::Gathered { words }, tensors);
        }
        let bytes = model.decision().bytes;
        assert!((998..=1001).contains(&bytes), "{placement:?}: {:?}", model.decision());
    }
}

#[test]
fn a_reply_to_another_push_is_refused() {
    let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
    for (stage, server, step, words) in [
        (Stage::Ics, 0, 0, 63),
        (Stage::Rs, 0, 1, 63),
        (Stage::Rs, 0, 0, 62),
        (Stage::Rs, 0, 0, 64),
    ] {
        let config = OspServerConfig { moments: MomentSource::Cheapest, ..server_of_one() };
        let mut model = lockstep(config, sgd(), 1, &start).into_model(0);
        let mut parameters = start.clone();
        let mut parameters: Vec<_> = parameters.iter_mut().map(Vec::as_mut_slice).collect();
        let gradients: Vec<_> = start.iter().map(Vec::as_slice).collect();
        let tensors = &mut Tensors { parameters: &mut parameters, gradients: &gradients };
        let ended = StepEnded { learning_rate: 1.0, loss: 0.0, compute: Duration::ZERO };
        model.handle_event(Event::StepEnded(ended), tensors);
        while model.poll_action().is_some() {}
        let mut message = wire::encode_reply(stage, server, step).to_vec();
        message.extend(std::iter::repeat_n(1, words));
        let timing = Timing::default();
        model.handle_event(Event::StageReplied { server: 0, message, timing }, tensors);
        let failed = matches!(model.poll_action(), Some(Action::Fail(Error::Protocol { .. })));
        assert!(failed, "{stage:?} {step} {words}");
    }
}

fn server_of_one() -> OspServerConfig {
    server(0.5, SHARDED)
}

/// All ranks, and messages that arrive whenever chance wants, in order on each lane of each pair.
/// Head and body.
type Push = (Vec<u32>, Vec<u32>);

struct Chance {
    random: fastrand::Rng,
    models: Vec<OspServer>,
    parameters: Vec<TensorList>,
    gradients: Vec<TensorList>,
    shards: Vec<OspShard>,
    blocked: Vec<Option<Action>>,
    pushes: BTreeMap<(u32, u32, Stage), VecDeque<Push>>,
    replies: BTreeMap<(u32, u32, Stage), VecDeque<Vec<u32>>>,
}

impl Chance {
    fn new(seed: u64, config: OspServerConfig, ranks: u32, start: &TensorList) -> Self {
        let session = session(ModelKind::OspServer(config), sgd());
        let memory = Memory::new(&sgd(), LEN);
        let job = |rank| Job::new(rank, ranks, &session);
        let model = |rank| {
            let mut start = start.clone();
            let views: Vec<&mut [f32]> = start.iter_mut().map(Vec::as_mut_slice).collect();
            OspServer::new(job(rank), config, layout(), &views, memory.clone())
        };
        let shard = |rank| OspShard::new(job(rank), config, &layout(), &start.concat(), &memory);
        Self {
            random: fastrand::Rng::with_seed(seed),
            models: (0..ranks).map(model).collect(),
            parameters: vec![start.clone(); ranks as usize],
            gradients: vec![start.clone(); ranks as usize],
            shards: (0..ranks).filter_map(shard).collect(),
            blocked: (0..ranks).map(|_| None).collect(),
            pushes: BTreeMap::new(),
            replies: BTreeMap::new(),
        }
    }

    fn handle(&mut self, rank: usize, event: Event) {
        let mut parameters: Vec<&mut [f32]> =
            self.parameters[rank].iter_mut().map(Vec::as_mut_slice).collect();
        let gradients: Vec<&[f32]> = self.gradients[rank].iter().map(Vec::as_slice).collect();
        let mut tensors = Tensors { parameters: &mut parameters, gradients: &gradients };
        self.models[rank].handle_event(event, &mut tensors);
    }

    /// Whether the rank could do anything.
    fn advance(&mut self, rank: usize) -> bool {
        let action = self.blocked[rank].take().or_else(|| self.models[rank].poll_action());
        let worker = rank as u32;
        match action {
            None => return false,
            Some(Action::PushStage { server, stage, head, body, .. }) => {
                let queue = self.pushes.entry((worker, server, stage)).or_default();
                queue.push_back((head.to_vec(), body));
            }
            Some(Action::EndStages { server, head }) => {
                let queue = self.pushes.entry((worker, server, Stage::Rs)).or_default();
                queue.push_back((head.to_vec(), Vec::new()));
            }
            Some(Action::AwaitStage { server, stage }) => {
                let queue = self.replies.entry((worker, server, stage)).or_default();
                let Some(message) = queue.pop_front() else {
                    self.blocked[rank] = Some(Action::AwaitStage { server, stage });
                    return false;
                };
                let timing = Timing::default();
                self.handle(rank, Event::StageReplied { server, message, timing });
            }
            // Replicas are compared at the end, bit by bit.
            Some(Action::Gather { .. }) => {
                let words = vec![0; self.models.len()];
                self.handle(rank, Event::Gathered { words });
            }
            Some(action) => {
                self.blocked[rank] = Some(action);
                return false;
            }
        }
        true
    }

    /// Whether there was a push to deliver.
    fn deliver(&mut self) -> bool {
        let full = self.pushes.iter().filter(|(_, queue)| !queue.is_empty());
        let keys: Vec<_> = full.map(|(key, _)| *key).collect();
        let Some((worker, server, stage)) = self.random.choice(keys) else { return false };
        let queue = self.pushes.get_mut(&(worker, server, stage)).unwrap();
        let (head, body) = queue.pop_front().unwrap();
        let shard = self.shards.iter_mut().find(|shard| shard.part().server == server).unwrap();
        if let Expected::Body(push) = shard.handle_head(worker, &head).unwrap() {
            for reply in shard.handle_body(&push, body).unwrap() {
                for worker in 0..self.models.len() as u32 {
                    let queue = self.replies.entry((worker, server, reply.stage)).or_default();
                    queue.push_back(reply.message_for(worker));
                }
            }
        }
        true
    }

    /// Until nothing can go on.
    fn settle(&mut self, mut next: impl FnMut(&mut Self, usize) -> bool) {
        loop {
            let rank = self.random.usize(..self.models.len());
            let is_busy = match self.random.u8(..3) {
                0 => self.deliver(),
                1 => self.advance(rank),
                _ => next(self, rank),
            };
            if is_busy {
                continue;
            }
            let ranks = 0..self.models.len();
            let any = ranks.into_iter().any(|rank| self.advance(rank) || next(self, rank));
            if !any && !self.deliver() {
                return;
            }
        }
    }
}

/// Ranks start their next step as soon as their own model lets them, whatever others do.
#[test]
fn random_arrival_gives_the_same_bits_and_no_deadlock() {
    const STEPS: usize = 8;
    for seed in 0..200 {
        let ranks = 2 + (seed / 3 % 3) as u32;
        // The lists of a rank that only serves count for nothing.
        let dedicated = Placement::Dedicated { rank: ranks - 1 };
        let placement = [SHARDED, Placement::Colocated { rank: 0 }, dedicated][seed as usize % 3];
        let config = server([0.3, 0.7, 1.0][seed as usize / 9 % 3], placement);
        let mut random = fastrand::Rng::with_seed(seed);
        let start = random_list(&mut random);
        let all: Vec<Vec<TensorList>> =
            (0..STEPS).map(|_| (0..ranks).map(|_| random_list(&mut random)).collect()).collect();
        let mut expected = lockstep(config, sgd(), ranks, &start);
        all.iter().for_each(|gradients| expected.step(gradients, RATE).unwrap());

        let mut chance = Chance::new(seed, config, ranks, &start);
        let mut steps = vec![0; ranks as usize];
        chance.settle(|chance, rank| {
            let is_free = chance.blocked[rank].is_none() && chance.models[rank].actions.is_empty();
            if steps[rank] == STEPS || !is_free || chance.models[rank].state != State::Idle {
                return false;
            }
            chance.gradients[rank].clone_from(&all[steps[rank]][rank]);
            steps[rank] += 1;
            let ended = StepEnded { learning_rate: RATE, loss: 0.0, compute: Duration::ZERO };
            chance.handle(rank, Event::StepEnded(ended));
            true
        });
        assert!(steps.iter().all(|step| *step == STEPS), "seed {seed}: {steps:?}");
        for rank in 0..ranks as usize {
            assert_eq!(bits(&chance.parameters[rank]), bits(expected.parameters(rank)));
        }
        // A drain ends what is under way; each rank then waits to collect.
        (0..ranks as usize).for_each(|rank| chance.handle(rank, Event::Drain));
        chance.settle(|_, _| false);
        expected.drain().unwrap();
        assert!(chance.blocked.iter().all(|action| matches!(action, Some(Action::Collect))));
        assert!(chance.shards.iter().all(OspShard::all_done));
        let held: Vec<f32> = chance.shards.iter().flat_map(OspShard::parameters).copied().collect();
        assert_eq!(flat_bits(&held), bits(expected.parameters(0)), "seed {seed}");
    }
}
