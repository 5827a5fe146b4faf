//! OSP with an ICS of several steps, and with budgets by windows, over the real communicator.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::lockstep::{Lockstep, TensorList};
use syncline::{
    BudgetRule, Communicator, Granularity, IcsMerge, ModelKind, OspConfig, Session, SessionConfig,
    TensorSpec,
};

const LENS: [usize; 3] = [300, 7, 190];
const STEPS: u64 = 11;

fn configs() -> Vec<SessionConfig> {
    let base = OspConfig {
        budget: BudgetRule::fixed(0.6),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 64 },
        ..OspConfig::default()
    };
    let models = [
        OspConfig { span: 2, ..base },
        OspConfig { span: 4, merge: IcsMerge::Overwrite, ..base },
        OspConfig { budget: BudgetRule::noise(5.0, 3), ..base },
        OspConfig { budget: BudgetRule::noise(20.0, 3), span: 2, ..base },
    ];
    let config = |osp| SessionConfig {
        model: ModelKind::Osp(osp),
        check_every: 2,
        ..SessionConfig::default()
    };
    models.map(config).to_vec()
}

/// Multiples of 1/16 below 1: their average over 4 ranks is exact, however it is added up.
fn list(seed: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(seed);
    LENS.map(|len| (0..len).map(|_| random.i32(-16..16) as f32 / 16.0).collect()).to_vec()
}

fn views_mut(list: &mut TensorList) -> Vec<&mut [f32]> {
    list.iter_mut().map(Vec::as_mut_slice).collect()
}

/// The parameters after each step and after the end, and the bytes deferred.
fn train(communicator: &Communicator, config: &SessionConfig) -> (Vec<TensorList>, u64) {
    let rank = u64::from(communicator.rank());
    let specs: Vec<_> = LENS.iter().map(|len| TensorSpec::new("t", *len)).collect();
    let mut parameters = list(77);
    let mut session =
        Session::new(communicator, &specs, &mut views_mut(&mut parameters), config).unwrap();
    let (mut all, mut deferred) = (Vec::new(), 0);
    for step in 0..STEPS {
        let gradients = list(rank * 1000 + step);
        let views: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        let report = session.step(&mut views_mut(&mut parameters), &views, 0.125, 1.0).unwrap();
        deferred += report.bytes_deferred;
        all.push(parameters.clone());
    }
    session.finish(&mut views_mut(&mut parameters)).unwrap();
    all.push(parameters);
    (all, deferred)
}

#[test]
fn a_session_computes_what_lockstep_does() {
    let configs = configs();
    let found = threads(
        4,
        |config| config.timeout = Duration::from_secs(60),
        |world| configs.iter().map(|config| train(&world, config)).collect::<Vec<_>>(),
    );
    for (index, config) in configs.iter().enumerate() {
        let mut expected = Lockstep::new(config, 4, &list(77)).unwrap();
        for step in 0..=STEPS {
            if step < STEPS {
                let gradients: Vec<_> = (0..4).map(|rank| list(rank * 1000 + step)).collect();
                expected.step_with_losses(&gradients, 0.125, &[1.0; 4]).unwrap();
            } else {
                expected.drain().unwrap();
            }
            for (rank, runs) in found.iter().enumerate() {
                let (parameters, deferred) = &runs[index];
                assert_eq!(&parameters[step as usize], expected.parameters(rank), "{config:?}");
                assert!(*deferred > 0, "{config:?} defers nothing");
            }
        }
    }
}
