//! OSP on a parameter server, over the real communicator, ranks as threads.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::lockstep::{Lockstep, TensorList};
use syncline::{
    Adam, BudgetRule, Communicator, Error, GibLag, Granularity, ModelKind, MomentSource, Optimiser,
    OspConfig, OspServerConfig, Placement, Session, SessionConfig, Sgd, TensorSpec,
};

const LENS: [usize; 4] = [300, 7, 0, 190];
const LEN: usize = 497;

fn server(share: f64, placement: Placement) -> OspServerConfig {
    let base = OspServerConfig::new(placement);
    let osp = OspConfig {
        budget: BudgetRule::fixed(share),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 64 },
        ..base.osp
    };
    OspServerConfig { osp, moments: MomentSource::Shipped, ..base }
}

fn config(server: OspServerConfig) -> SessionConfig {
    let model = ModelKind::OspServer(server);
    SessionConfig { model, seed: 3, check_every: 3, audits: true, ..SessionConfig::default() }
}

fn configs() -> Vec<SessionConfig> {
    let mut all = Vec::new();
    for placement in [Placement::Sharded, Placement::Colocated { rank: 0 }] {
        for share in [0.0, 0.6, 1.0] {
            all.push(config(server(share, placement)));
        }
    }
    let moments = MomentSource::Cheapest;
    all.push(config(OspServerConfig { moments, ..server(0.6, Placement::Sharded) }));
    all.push(SessionConfig { optimiser: Adam::default().into(), ..all[1] });
    all
}

fn list(seed: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(seed);
    LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect()).to_vec()
}

fn seed(rank: u32, step: u64) -> u64 {
    u64::from(rank) * 1000 + step
}

fn specs() -> Vec<TensorSpec> {
    (0..)
        .zip(LENS)
        .map(|(index, len): (u32, _)| TensorSpec::new(format!("t{index}"), len))
        .collect()
}

fn views(list: &TensorList) -> Vec<&[f32]> {
    list.iter().map(Vec::as_slice).collect()
}

fn views_mut(list: &mut TensorList) -> Vec<&mut [f32]> {
    list.iter_mut().map(Vec::as_mut_slice).collect()
}

fn bits(list: &TensorList) -> Vec<u32> {
    list.iter().flatten().map(|x| x.to_bits()).collect()
}

fn world<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    threads(ranks, |config| config.timeout = Duration::from_secs(30), body)
}

/// The parameters after each step, after a drain in the middle, and after the end.
fn train(communicator: &Communicator, config: &SessionConfig) -> Vec<TensorList> {
    let mut parameters = list(77);
    let start = &mut views_mut(&mut parameters);
    let mut session = Session::new(communicator, &specs(), start, config).expect("started");
    let mut all = Vec::new();
    for step in 0..9 {
        let gradients = list(seed(communicator.rank(), step));
        let outcome = session.step(&mut views_mut(&mut parameters), &views(&gradients), 0.05, 1.0);
        let report = outcome.expect("a step");
        assert_eq!(report.bytes_important + report.bytes_deferred, 4 * LEN as u64);
        assert_eq!(report.staleness, u64::from(report.bytes_deferred > 0));
        all.push(parameters.clone());
        if step == 5 {
            session.drain(&mut views_mut(&mut parameters)).expect("drained");
            all.push(parameters.clone());
        }
    }
    session.end_epoch(1.0).expect("an epoch");
    session.finish(&mut views_mut(&mut parameters)).expect("finished");
    let ModelKind::OspServer(OspServerConfig { placement, .. }) = config.model else {
        unreachable!("see config")
    };
    let serves = placement == Placement::Sharded || communicator.rank() == 0;
    assert_eq!(session.audit().is_some(), serves);
    if let Some(report) = session.audit() {
        let is_deferring = session.stats().deferred_share() > 0.0;
        assert_eq!((report.updates, report.widest_lead), (9, 1));
        assert_eq!(report.widest_staleness, u64::from(is_deferring));
        assert!(report.pushes >= 9 * u64::from(communicator.world_size()));
    }
    all.push(parameters);
    all
}

/// Sums go by ranks on both sides, so any gradients will do.
#[test]
fn a_session_computes_what_lockstep_does() {
    for ranks in [1, 3] {
        let found = world(ranks, |world| {
            configs().iter().map(|config| train(&world, config)).collect::<Vec<_>>()
        });
        for (index, config) in configs().iter().enumerate() {
            let mut expected = Lockstep::new(config, ranks, &list(77)).unwrap();
            let mut places = 0..;
            let mut compare = |expected: &Lockstep| {
                let place: usize = places.next().unwrap();
                for (rank, found) in found.iter().enumerate() {
                    let found = bits(&found[index][place]);
                    assert_eq!(found, bits(expected.parameters(rank)), "{config:?} {place}");
                }
            };
            for step in 0..9 {
                let gradients: Vec<_> = (0..ranks).map(|rank| list(seed(rank, step))).collect();
                expected.step(&gradients, 0.05).unwrap();
                compare(&expected);
                if step == 5 {
                    expected.drain().unwrap();
                    compare(&expected);
                }
            }
            expected.drain().unwrap();
            compare(&expected);
        }
    }
}

/// Through both forms of OSP and the optimiser's memory with them: equal gradients on all ranks
/// make every model the same plain optimiser.
#[test]
fn switches_keep_parameters_and_memory() {
    let optimisers: [Optimiser; 2] = [Sgd::default().into(), Adam::default().into()];
    for optimiser in optimisers {
        let ends = world(2, |world| {
            let single = server(0.7, Placement::Colocated { rank: 1 });
            let kinds = [
                ModelKind::OspServer(single),
                ModelKind::Bsp,
                ModelKind::OspServer(server(0.7, Placement::Sharded)),
                ModelKind::Osp(OspConfig { gib_lag: GibLag::One, ..single.osp }),
                ModelKind::OspServer(single),
            ];
            let run = |kinds: &[ModelKind]| {
                let mut parameters = list(77);
                let mut tensors = views_mut(&mut parameters);
                let start = SessionConfig { optimiser, model: kinds[0], ..Default::default() };
                let mut session = Session::new(&world, &specs(), &mut tensors, &start).unwrap();
                for (index, kind) in (0..).zip(kinds) {
                    if index > 0 {
                        let report = session.switch_to(*kind, &mut tensors).unwrap();
                        assert_eq!(report.updates, 4 * index);
                    }
                    for step in 0..4 {
                        let gradients = list(4 * index + step);
                        session.step(&mut tensors, &views(&gradients), 0.05, 1.0).unwrap();
                    }
                }
                session.finish(&mut tensors).unwrap();
                drop(tensors);
                parameters
            };
            (run(&kinds), run(&[ModelKind::Bsp; 5]))
        });
        for (switched, plain) in ends {
            assert_eq!(bits(&switched), bits(&plain), "{optimiser:?}");
        }
    }
}

#[test]
fn another_learning_rate_is_refused_by_the_server() {
    let errors = world(2, |world| {
        let config = config(server(0.5, Placement::Sharded));
        let mut parameters = list(77);
        let mut tensors = views_mut(&mut parameters);
        let mut session = Session::new(&world, &specs(), &mut tensors, &config).unwrap();
        let rate = 0.05 + world.rank() as f32;
        let gradients = list(1);
        let outcome = session.step(&mut tensors, &views(&gradients), rate, 1.0);
        outcome.err().map(|error| error.to_string())
    });
    // Each server says what it met; a rank that was told by the other's server says that.
    let is_told = |error: &Option<String>| {
        error.as_ref().is_some_and(|text| text.contains("with rate") || text.contains("refused"))
    };
    assert!(errors.iter().all(is_told), "{errors:?}");
    assert!(errors.iter().flatten().any(|text| text.contains("with rate")), "{errors:?}");
}

#[test]
fn a_server_on_no_rank_is_refused_before_anything_is_served() {
    let errors = world(2, |world| {
        let config = config(server(0.5, Placement::Colocated { rank: 2 }));
        let mut parameters = list(77);
        Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config).unwrap_err()
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Config { .. })), "{errors:?}");
}

/// Two workers and the server of nobody's gradients, with agreements, checks, a snapshot and a
/// switch to other settings.
#[test]
fn a_rank_that_only_serves_keeps_step_with_the_workers() {
    for server_rank in [0, 2] {
        let placement = Placement::Dedicated { rank: server_rank };
        let first = config(server(0.6, placement));
        let then = ModelKind::OspServer(server(0.3, placement));
        let run = |world: Communicator| {
            let mut parameters = list(77);
            let mut tensors = views_mut(&mut parameters);
            let mut session = Session::new(&world, &specs(), &mut tensors, &first).unwrap();
            assert_eq!(session.is_server_only(), world.rank() == server_rank);
            let worker = world.rank() - u32::from(world.rank() > server_rank);
            for step in 0..12 {
                if step == 8 {
                    let error = session.switch_to(ModelKind::Bsp, &mut tensors).unwrap_err();
                    assert!(error.to_string().contains("only serves under osp-ps"), "{error}");
                    session.switch_to(then, &mut tensors).unwrap();
                }
                let gradients = list(seed(worker, step));
                let gradients = views(&gradients);
                if session.is_server_only() {
                    let told = session.step(&mut tensors, &gradients, 0.05, 1.0).unwrap_err();
                    assert!(matches!(told, Error::InvalidArgument { .. }), "{told}");
                    assert!(session.accumulate(&gradients, 1.0).is_err());
                    session.serve_step().unwrap();
                } else {
                    assert!(session.serve_step().is_err());
                    session.accumulate(&gradients, 1.0).unwrap();
                    session.step(&mut tensors, &gradients, 0.05, 1.0).unwrap();
                }
                if step == 4 {
                    session.end_epoch(1.0).unwrap();
                    session.snapshot(&mut tensors).unwrap();
                }
            }
            session.finish(&mut tensors).unwrap();
            drop(tensors);
            parameters
        };
        let ends = world(3, run);
        assert!(ends.iter().all(|found| bits(found) == bits(&ends[0])));
        assert_ne!(bits(&ends[0]), bits(&list(77)));
    }
}

/// Gradients go out of each worker once a step, parameters out of the server once to each.
#[test]
fn the_bytes_of_a_dedicated_server_are_those_of_its_replies() {
    const STEPS: u64 = 20;
    let moments = MomentSource::Cheapest;
    let server = OspServerConfig { moments, ..server(0.6, Placement::Dedicated { rank: 2 }) };
    let config = SessionConfig { check_every: 0, ..config(server) };
    let sent = world(3, |world| {
        let mut parameters = list(77);
        let mut tensors = views_mut(&mut parameters);
        let mut session = Session::new(&world, &specs(), &mut tensors, &config).unwrap();
        let before = world.counters().bytes_sent;
        for step in 0..STEPS {
            let gradients = list(step);
            if session.is_server_only() {
                session.serve_step().unwrap();
            } else {
                session.step(&mut tensors, &views(&gradients), 0.05, 1.0).unwrap();
            }
        }
        world.barrier().unwrap();
        let sent = world.counters().bytes_sent - before;
        session.finish(&mut tensors).unwrap();
        sent
    });
    let all = STEPS * 4 * LEN as u64;
    // Heads and bitmaps beside it; the last messages may be under way.
    for (sent, expected) in sent.iter().zip([all, all, 2 * all]) {
        assert!((expected * 9 / 10..expected * 6 / 5).contains(sent), "{sent} for {expected}");
    }
}

#[test]
fn a_dedicated_server_without_workers_is_refused() {
    let errors = world(1, |world| {
        let config = config(server(0.5, Placement::Dedicated { rank: 0 }));
        let mut parameters = list(77);
        Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config).unwrap_err()
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Config { .. })), "{errors:?}");
}

/// A trainer that gives up after some steps leaves no thread that waits for it.
#[test]
fn a_session_that_is_dropped_early_stops_its_server() {
    world(2, |world| {
        let config = config(server(0.5, Placement::Sharded));
        let mut parameters = list(77);
        let mut tensors = views_mut(&mut parameters);
        let mut session = Session::new(&world, &specs(), &mut tensors, &config).unwrap();
        for step in 0..4 {
            let gradients = list(seed(world.rank(), step));
            session.step(&mut tensors, &views(&gradients), 0.05, 1.0).unwrap();
        }
        drop(session);
        world.barrier().unwrap();
    });
}
