//! SSP, DSSP, R2SP and GBA: what their rules promise, in lockstep with computed times and over the
//! real communicator, ranks as threads. Leads and orders are counted by the audit of each shard.

use std::num::NonZeroU64;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::lockstep::{Costs, Lockstep, TensorList};
use syncline::policy::gba::Decay;
use syncline::server::config::Gap;
use syncline::{
    AspConfig, Batch, BatchRule, DsspConfig, GbaModelConfig, ModelKind, Pull, R2spConfig, Session,
    SessionConfig, Sgd, SspConfig, TensorSpec,
};

const RANKS: u32 = 4;
const LENS: [usize; 2] = [13, 5];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config(model: ModelKind, momentum: f32) -> SessionConfig {
    let optimiser = Sgd { momentum, ..Sgd::default() }.into();
    SessionConfig { model, optimiser, ..SessionConfig::default() }
}

fn lockstep(model: ModelKind, momentum: f32) -> Lockstep {
    Lockstep::new(&config(model, momentum), RANKS, &list(99)).expect("valid")
}

/// Multiples of 1/16 below 1: their sums and averages over 4 ranks are exact in any order.
fn list(seed: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(seed);
    LENS.map(|len| (0..len).map(|_| random.i32(-16..16) as f32 / 16.0).collect()).to_vec()
}

fn lists(step: u64) -> Vec<TensorList> {
    (0..u64::from(RANKS)).map(|rank| list(100 * step + rank)).collect()
}

/// With no lead allowed each step ends with the gradients of all, as a step of BSP does.
#[test]
fn ssp_without_a_lead_is_bsp() {
    let ssp = ModelKind::Ssp(SspConfig { staleness: 0, ..SspConfig::default() });
    let (mut ssp, mut bsp) = (lockstep(ssp, 0.0), lockstep(ModelKind::Bsp, 0.0));
    for step in 0..9 {
        ssp.step(&lists(step), 0.125).unwrap();
        bsp.step(&lists(step), 0.125).unwrap();
        for rank in 0..RANKS as usize {
            assert_eq!(ssp.parameters(rank), bsp.parameters(0), "step {step}");
        }
        if step == 4 {
            ssp.drain().unwrap();
        }
    }
}

/// Groups of one gradient of each rank are BSP's updates, momentum included, in whatever order
/// they come.
#[test]
fn gba_makes_the_updates_of_bsp() {
    let (mut gba, mut bsp) =
        (lockstep(ModelKind::Gba(GbaModelConfig::default()), 0.5), lockstep(ModelKind::Bsp, 0.5));
    let mut random = fastrand::Rng::with_seed(4);
    for step in 0..9 {
        let lists = lists(step);
        let mut order: Vec<usize> = (0..RANKS as usize).collect();
        random.shuffle(&mut order);
        for rank in &order {
            assert!(gba.start_step(*rank, &lists[*rank], 0.125, ms(1)).unwrap());
        }
        bsp.step(&lists, 0.125).unwrap();
        // Who came last has the update.
        assert_eq!(gba.parameters(order[3]), bsp.parameters(0), "step {step}");
        assert_eq!(gba.audit(0).updates, step + 1);
    }
    gba.drain().unwrap();
    (0..4).for_each(|rank| assert_eq!(gba.parameters(rank), bsp.parameters(0)));
    assert!(gba.audit(0).widest_staleness <= 1);
}

#[test]
fn who_leads_waits_until_the_slowest_has_caught_up_or_is_done() {
    let ssp = ModelKind::Ssp(SspConfig { staleness: 2, ..SspConfig::default() });
    let mut ssp = lockstep(ssp, 0.0);
    let gradients = list(1);
    let step = |ssp: &mut Lockstep, rank| ssp.start_step(rank, &gradients, 0.5, ms(1)).unwrap();
    for rank in 0..3 {
        assert!(step(&mut ssp, rank) && step(&mut ssp, rank));
        assert!(!step(&mut ssp, rank) && ssp.is_waiting(rank));
    }
    assert!(step(&mut ssp, 3));
    assert!((0..4).all(|rank| !ssp.is_waiting(rank)));
    assert!(!step(&mut ssp, 0) && !step(&mut ssp, 1));
    ssp.start_drain(3).unwrap();
    // Rank 2 is the slowest now.
    assert!((0..3).all(|rank| !ssp.is_waiting(rank)));
    ssp.drain().unwrap();
    for rank in 0..4 {
        assert_eq!(ssp.parameters(rank), ssp.parameters(0));
        let report = ssp.audit(rank);
        assert_eq!((report.pushes, report.widest_lead, report.held), (12, 3, 5));
    }
    // After a drain all are level.
    assert!(step(&mut ssp, 0) && step(&mut ssp, 0) && !step(&mut ssp, 0));
}

/// Three fast ranks and one slow one, each going on as soon as it may; the widest lead, and how
/// long the first rank waited.
fn race(model: ModelKind) -> (u64, Duration) {
    let mut world = lockstep(model, 0.0);
    let compute = [ms(10), ms(11), ms(12), ms(70)];
    let mut due = compute;
    let mut waited = Duration::ZERO;
    for _ in 0..160 {
        let ready = (0..4).filter(|rank| !world.is_waiting(*rank));
        let rank = ready.min_by_key(|rank| due[*rank]).expect("somebody may go on");
        let was_waiting: Vec<bool> = (0..4).map(|rank| world.is_waiting(rank)).collect();
        let now = due[rank];
        world.start_step(rank, &list(1), 0.01, compute[rank]).expect("a step");
        for other in 0..4 {
            if (other == rank || was_waiting[other]) && !world.is_waiting(other) {
                due[other] = now + compute[other];
            }
        }
        waited += if rank == 0 { Duration::ZERO } else { world.exposed(0) };
    }
    (world.audit(0).widest_lead, waited)
}

#[test]
fn dssp_lets_the_fastest_go_further_and_never_beyond_its_upper_bound() {
    let ssp = ModelKind::Ssp(SspConfig { staleness: 2, ..SspConfig::default() });
    assert_eq!(race(ssp).0, 3);
    let dssp = |r_max| ModelKind::Dssp(DsspConfig { lower: 2, r_max, ..DsspConfig::default() });
    assert_eq!(race(dssp(0)).0, 3);
    let wide = race(dssp(6)).0;
    assert!(wide > 3 && wide <= 9, "{wide}");
}

/// All push at 10 ms: rank 0 has its turn then, the others 5 ms after one another.
#[test]
fn turns_are_evenly_spaced() {
    let gap = Gap::Fixed(ms(5));
    let r2sp = ModelKind::R2sp(R2spConfig { gap, ..R2spConfig::default() });
    let mut r2sp = lockstep(r2sp, 0.0);
    r2sp.set_costs(Costs { compute: ms(10), ..Costs::default() });
    r2sp.step(&lists(0), 0.5).unwrap();
    let exposed: Vec<Duration> = (0..4).map(|rank| r2sp.exposed(rank)).collect();
    assert_eq!(exposed, [0, 5, 10, 15].map(ms));
    // Then the pushes come at 30, 35, 40 and 45 ms, when nobody has to wait.
    for step in 1..4 {
        for rank in 0..4 {
            let lists = lists(step);
            assert!(r2sp.start_step(rank, &lists[rank], 0.5, ms(20)).unwrap(), "rank {rank}");
            assert_eq!(r2sp.model(rank).staleness(), 3);
        }
    }
    r2sp.drain().unwrap();
}

/// Rank 3 needs three times as long for a sample, so it takes a third of what the others take: the
/// batches of each step add up to the same, and all ranks need the same time in the end. Its
/// gradients, the only ones that are not 0, count in proportion.
#[test]
fn batches_follow_speeds_and_add_up_in_every_step() {
    const BATCH: u32 = 30;
    for pull in [Pull::AfterPush, Pull::NextStep] {
        let worker = AspConfig { pull, ..AspConfig::default() };
        let batches = BatchRule::BySpeed { every: 3, least_gain: 0.05 };
        let gap = Gap::Fixed(Duration::ZERO);
        let model = ModelKind::R2sp(R2spConfig { gap, batches, worker });
        let config = SessionConfig { batch: Some(BATCH), ..config(model, 0.0) };
        let mut r2sp = Lockstep::new(&config, RANKS, &list(99)).expect("valid");
        let mut last = [0; RANKS as usize];
        let mut expected = list(99).concat();
        for step in 0..20 {
            let mut next = 0;
            let mut all = Vec::new();
            for (rank, last) in last.iter_mut().enumerate() {
                let batch = r2sp.model(rank).next_batch().expect("R2SP with a batch");
                assert_eq!(batch.start, next, "step {step}: no gap and no overlap");
                next += batch.samples;
                *last = batch.samples;
                all.push(batch);
            }
            assert_eq!(next, RANKS * BATCH, "step {step}");
            for (rank, batch) in all.into_iter().enumerate() {
                let compute = ms(if rank == 3 { 3 } else { 1 }) * batch.samples;
                let is_slow = rank == 3;
                let gradient = if is_slow { list(0) } else { LENS.map(|n| vec![0.0; n]).to_vec() };
                r2sp.start_step(rank, &gradient, 0.5, compute).unwrap();
                if is_slow {
                    let rate = 0.5 * batch.samples as f32 / (RANKS * BATCH) as f32;
                    let all = expected.iter_mut().zip(list(0).concat());
                    all.for_each(|(w, g)| *w -= rate * g);
                }
            }
            if step % 10 == 9 {
                r2sp.drain().unwrap();
                for (w, expected) in r2sp.parameters(0).concat().iter().zip(&expected) {
                    assert!((w - expected).abs() < 1e-4, "step {step}: {w}, {expected}");
                }
            }
        }
        assert_eq!(last, [36, 36, 36, 12]);
    }
}

#[test]
fn a_session_tells_batches_only_where_it_was_told_one() {
    let equal = R2spConfig { batches: BatchRule::Equal, ..R2spConfig::default() };
    let r2sp = ModelKind::R2sp(R2spConfig::default());
    threads(
        2,
        |_| (),
        |world| {
            let mut w = vec![0.5_f32; 40];
            let specs = [TensorSpec::new("w", 40)];
            let tells = |model, batch| SessionConfig { batch, ..config(model, 0.0) };
            for (config, is_told) in [
                (tells(r2sp, Some(8)), true),
                (tells(r2sp, None), false),
                (tells(ModelKind::R2sp(equal), Some(8)), false),
                (tells(ModelKind::Bsp, Some(8)), false),
            ] {
                let mut session = Session::new(&world, &specs, &mut [&mut w], &config).unwrap();
                let equal = Batch { start: 8 * world.rank(), samples: 8 };
                assert_eq!(session.next_batch(), is_told.then_some(equal));
                session.step(&mut [&mut w], &[&[0.25; 40]], 0.1, 1.0).unwrap();
                assert_eq!(session.next_batch(), is_told.then_some(equal));
                // Another model takes equal parts again.
                session.switch_to(ModelKind::Bsp, &mut [&mut w]).unwrap();
                assert_eq!(session.next_batch(), None);
                session.switch_to(r2sp, &mut [&mut w]).unwrap();
                assert_eq!(session.next_batch(), config.batch.map(|_| equal));
                session.finish(&mut [&mut w]).unwrap();
            }
        },
    );
}

/// The slow rank makes its second step when all others have made as many as they may: by then they
/// are held, or about to be.
#[test]
fn fast_ranks_never_lead_a_slow_one_by_more_than_the_bound() {
    const BOUND: u64 = 2;
    const STEPS: u64 = 12;
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    for pull in [Pull::AfterPush, Pull::NextStep] {
        let worker = AspConfig { pull, ..AspConfig::default() };
        let ssp = ModelKind::Ssp(SspConfig { staleness: BOUND, worker });
        let dssp = ModelKind::Dssp(DsspConfig { lower: BOUND, r_max: 0, worker });
        for model in [ssp, dssp] {
            let set = |config: &mut syncline::Config| config.timeout = Duration::from_secs(30);
            threads(RANKS, set, |world| {
                let mut w = vec![0.5_f32; 40];
                let specs = [TensorSpec::new("w", 40)];
                let config = config(model, 0.0);
                let mut session = Session::new(&world, &specs, &mut [&mut w], &config).unwrap();
                for step in 0..STEPS {
                    if step == 1 && world.rank() == 0 {
                        let receiver = receiver.lock().unwrap();
                        (1..RANKS).for_each(|_| receiver.recv().unwrap());
                    }
                    session.step(&mut [&mut w], &[&[0.25; 40]], 0.1, 1.0).unwrap();
                    if step == BOUND && world.rank() > 0 {
                        sender.send(()).unwrap();
                    }
                }
                session.finish(&mut [&mut w]).unwrap();
                let report = session.audit().unwrap();
                assert_eq!(report.pushes, STEPS * u64::from(RANKS));
                assert!((BOUND..=BOUND + 1).contains(&report.widest_lead), "{report:?}");
            });
        }
    }
}

/// Ranks as threads, of which one is a little slow, in turns: staleness is that of the others.
#[test]
fn in_turns_every_push_is_as_late_as_there_are_others() {
    threads(
        RANKS,
        |_| (),
        |world| {
            let mut w = vec![0.5_f32; 40];
            let specs = [TensorSpec::new("w", 40)];
            let config = config(ModelKind::R2sp(R2spConfig::default()), 0.0);
            let mut session = Session::new(&world, &specs, &mut [&mut w], &config).unwrap();
            for step in 0..30 {
                let report = session.step(&mut [&mut w], &[&[0.25; 40]], 0.1, 1.0).unwrap();
                let expected = if step == 0 { world.rank() } else { RANKS - 1 };
                assert_eq!(report.staleness, u64::from(expected), "step {step}");
            }
            session.finish(&mut [&mut w]).unwrap();
            assert_eq!(session.audit().unwrap().widest_staleness, u64::from(RANKS) - 1);
        },
    );
}

/// Updates are as many as the pushes have groups, whatever ranks do how many steps.
#[test]
fn gba_counts_its_groups_and_what_is_left() {
    let gba = GbaModelConfig {
        group: NonZeroU64::new(4),
        decay: Decay::Threshold { iota: u64::MAX },
        ..GbaModelConfig::default()
    };
    threads(
        RANKS,
        |_| (),
        |world| {
            let mut w = vec![0.0_f32; 9];
            let specs = [TensorSpec::new("w", 9)];
            let config = config(ModelKind::Gba(gba), 0.0);
            let mut session = Session::new(&world, &specs, &mut [&mut w], &config).unwrap();
            // 3 + 4 + 5 + 6 = 18 pushes: four groups and two pushes, twice.
            for _ in 0..2 {
                for _ in 0..3 + world.rank() {
                    session.step(&mut [&mut w], &[&[1.0; 9]], 1.0, 1.0).unwrap();
                }
                session.drain(&mut [&mut w]).unwrap();
            }
            assert_eq!(w, [-10.0; 9]);
            let report = session.audit().unwrap();
            assert_eq!((report.pushes, report.updates, report.held), (36, 10, 0));
            session.finish(&mut [&mut w]).unwrap();
        },
    );
}

#[test]
fn not_a_number_on_one_rank_reaches_all_and_holds_none() {
    let decay = Decay::Threshold { iota: u64::MAX };
    let models = [
        ModelKind::Ssp(SspConfig { staleness: 1, ..SspConfig::default() }),
        ModelKind::Dssp(DsspConfig { lower: 1, ..DsspConfig::default() }),
        ModelKind::R2sp(R2spConfig::default()),
        ModelKind::Gba(GbaModelConfig { decay, ..GbaModelConfig::default() }),
    ];
    for (model, poison) in models.into_iter().zip([f32::NAN, f32::INFINITY].into_iter().cycle()) {
        threads(
            3,
            |_| (),
            |world| {
                let mut w = vec![0.5_f32; 40];
                let specs = [TensorSpec::new("w", 40)];
                let mut session =
                    Session::new(&world, &specs, &mut [&mut w], &config(model, 0.5)).unwrap();
                for step in 0..8 {
                    let mut gradient = [0.25; 40];
                    if world.rank() == 1 && step == 2 {
                        gradient[7] = poison;
                    }
                    session.step(&mut [&mut w], &[&gradient], 0.1, 1.0).unwrap();
                }
                session.finish(&mut [&mut w]).unwrap();
                let bad: Vec<usize> = (0..40).filter(|index| !w[*index].is_finite()).collect();
                assert_eq!(bad, [7], "{model:?}");
            },
        );
    }
}
