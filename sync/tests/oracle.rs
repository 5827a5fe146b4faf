//! OSP against an independent implementation: numpy, with a server in place of an all_reduce.
//!
//! `data/osp_oracle.json` holds what that program computed with and its gradients, a few steps of
//! a tiny perceptron; it says how it was made. Here the same gradients go through our model, which
//! must come to the same parameters on every rank after every step. Nothing of it is random.

use serde_json::Value;
use syncline::lockstep::{Lockstep, TensorList};
use syncline::{BudgetRule, Granularity, Lgp, ModelKind, OspConfig, SessionConfig, Sgd};

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a list");
    list.iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn tensors(value: &Value, lens: &[usize]) -> TensorList {
    let flat: Vec<f32> = numbers(value).into_iter().map(|x| x as f32).collect();
    let mut rest = flat.as_slice();
    let mut list = Vec::new();
    for len in lens {
        let (tensor, later) = rest.split_at(*len);
        list.push(tensor.to_vec());
        rest = later;
    }
    assert!(rest.is_empty(), "lengths and numbers fit");
    list
}

/// The oracle's settings.
fn config(oracle: &Value, lgp: Lgp) -> SessionConfig {
    let share = oracle["share"].as_f64().expect("a share");
    let osp = OspConfig {
        budget: BudgetRule::Fixed { share, warmup_epochs: 1 },
        lgp,
        granularity: Granularity::Tensors,
        min_deferred_len: 6,
        rs_parts: 0,
        ..OspConfig::default()
    };
    let momentum = oracle["momentum"].as_f64().expect("a momentum") as f32;
    let optimiser = Sgd { momentum, ..Sgd::default() }.into();
    SessionConfig { model: ModelKind::Osp(osp), optimiser, ..SessionConfig::default() }
}

fn compare(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().map(|x| x.abs()).fold(0.0, f64::max);
    for (index, (x, y)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*x) - y).abs();
        // Relative, with a floor for numbers near zero.
        let allowed = 1e-4 * y.abs().max(0.01 * scale);
        assert!(error <= allowed, "{what}, element {index}: {x} is not {y}");
    }
}

#[test]
fn the_model_follows_the_oracle() {
    let text = include_str!("data/osp_oracle.json");
    let oracle: Value = serde_json::from_str(text).expect("JSON");
    let lens: Vec<usize> = numbers(&oracle["lens"]).into_iter().map(|x| x as usize).collect();
    let ranks = oracle["ranks"].as_u64().expect("ranks") as u32;
    let rate = oracle["learning_rate"].as_f64().expect("a rate") as f32;
    let steps_per_epoch = oracle["steps_per_epoch"].as_u64().expect("steps") as usize;
    for run in oracle["runs"].as_array().expect("runs") {
        let name = run["lgp"].as_str().expect("a name");
        let lgp = match name {
            "local" => Lgp::Local,
            "plain" => Lgp::LocalPlain,
            _ => Lgp::None,
        };
        let start = tensors(&run["start"], &lens);
        let mut job = Lockstep::new(&config(&oracle, lgp), ranks, &start).expect("settings");
        let expected = run["parameters"].as_array().expect("parameters");
        let (mut deferred, mut compared) = (0, 0);
        for (step, gradients) in run["gradients"].as_array().expect("steps").iter().enumerate() {
            for point in expected.iter().filter(|point| point["after"] == step) {
                for (rank, flat) in point["ranks"].as_array().expect("ranks").iter().enumerate() {
                    let what = format!("{name}, {step} steps, rank {rank}");
                    compare(&job.parameters(rank).concat(), &numbers(flat), &what);
                    compared += 1;
                }
            }
            let each = gradients.as_array().expect("ranks").iter();
            let lists: Vec<TensorList> = each.map(|flat| tensors(flat, &lens)).collect();
            job.step(&lists, rate).expect("a step");
            deferred += u32::from(job.model(0).traffic().deferred_bytes > 0);
            if (step + 1) % steps_per_epoch == 0 {
                job.end_epoch(&vec![1.0; ranks as usize]).expect("an epoch");
            }
        }
        assert!(compared > 0 && deferred > 2, "{name}: {compared} {deferred}");
    }
}
