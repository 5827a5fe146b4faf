//! Groups over the real communicator, ranks as threads.

use std::ops::Range;
use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::{ModelKind, SessionConfig, Sgd};

use super::*;

const LEN: usize = 33;

/// Whole multiples of 12: averages over 3 and 4 ranks are exact.
fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(u64::from(rank) * 1000 + step);
    (0..LEN).map(|_| (random.i32(-8..8) * 12) as f32).collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    let is_close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(is_close, "{found:?} {expected:?}");
}

/// Steps of all, of a group, and of all again are those of one rank with the averages.
#[test]
fn a_group_s_steps_reach_those_that_sat_out() {
    let optimiser = || Sgd { momentum: 0.5, ..Sgd::default() }.into();
    let osp: ModelKind = "osp".parse().unwrap();
    for (members, model) in [(vec![0, 1, 3], ModelKind::Bsp), (vec![1, 2, 3], osp)] {
        let ends = threads(
            4,
            |config| config.timeout = Duration::from_secs(60),
            |world| {
                let rank = world.rank();
                let mut w = vec![1.0_f32; LEN];
                let specs = [TensorSpec::new("w", LEN)];
                let config =
                    SessionConfig { model, optimiser: optimiser(), ..SessionConfig::default() };
                let mut session = Session::new(&world, &specs, &mut [&mut w], &config).unwrap();
                let run = |session: &mut Session, w: &mut [f32], steps: Range<u64>| {
                    for step in steps {
                        session.step(&mut [&mut *w], &[&gradient(rank, step)], 0.25, 0.5).unwrap();
                    }
                };
                run(&mut session, &mut w, 0..3);
                let mut group =
                    Group::form(members.clone(), &mut session, &world, &specs, &mut [&mut w])
                        .unwrap();
                assert_eq!((group.count(), group.members()), (3, &members[..]));
                assert_eq!(group.own().is_some(), members.contains(&rank));
                if let Some((communicator, session)) = group.own() {
                    assert_eq!(communicator.world_size(), 3);
                    run(session, &mut w, 3..7);
                }
                group.dissolve(&mut session, &world, &mut [&mut w]).unwrap();
                let middle = w.clone();
                run(&mut session, &mut w, 7..9);
                session.finish(&mut [&mut w]).unwrap();
                (middle, w)
            },
        );
        let (mut w, mut v) = (vec![1.0_f32; LEN], vec![0.0_f32; LEN]);
        for step in 0..9 {
            let group = (3..7).contains(&step);
            let ranks: Vec<u32> = if group { members.clone() } else { (0..4).collect() };
            let all: Vec<Vec<f32>> = ranks.iter().map(|rank| gradient(*rank, step)).collect();
            for at in 0..LEN {
                let average = all.iter().map(|g| g[at]).sum::<f32>() / ranks.len() as f32;
                v[at] = 0.5 * v[at] + average;
                w[at] -= 0.25 * v[at];
            }
            if step == 6 {
                ends.iter().for_each(|(middle, _)| assert_close(middle, &w));
            }
        }
        ends.iter().for_each(|(_, end)| assert_close(end, &w));
        assert!(ends.iter().all(|end| *end == ends[0]));
    }
}
