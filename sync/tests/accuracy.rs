//! Accuracy of the models in two settings that tell them apart, over exact sums in memory.
//!
//! `cargo test --release --package syncline --test accuracy -- --ignored --nocapture` prints a
//! table of mean and standard deviation over seeds. `SEEDS=n` takes more or fewer seeds,
//! `ONLY=text` the variants whose name has that text, `SETTING=hard` that setting, `BOUNDS=x,y`
//! other bounds of the noise rule. The digits set, 1437 images to train and 360 to test, a
//! perceptron of 64-256-128-10 units, momentum 0.9. Results and what they say: docs/osp.md.

use std::io::Read;

use syncline::lockstep::{Lockstep, TensorList};
use syncline::{
    BudgetRule, Granularity, IcsMerge, Importance, Lgp, ModelKind, OspConfig, SessionConfig, Sgd,
};

const SIZES: [usize; 4] = [64, 256, 128, 10];
const TRAIN: usize = 1437;
/// Of the noise rule's study; see docs/osp.md.
const BOUNDS: f64 = 1.0;

/// What a table's column stands for.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    ranks: u32,
    batch: usize,
    rate: f32,
    epochs: usize,
}

const EASY: Setting = Setting { name: "easy", ranks: 8, batch: 8, rate: 0.2, epochs: 20 };
const HARD: Setting = Setting { name: "hard", ranks: 16, batch: 4, rate: 0.5, epochs: 12 };

struct Digits {
    images: Vec<[f32; 64]>,
    labels: Vec<usize>,
}

fn digits() -> Digits {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits.csv.gz");
    let file = std::fs::File::open(path).expect("the digits set");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip of text");
    let mut digits = Digits { images: Vec::new(), labels: Vec::new() };
    for line in text.lines() {
        let numbers: Vec<f32> = line.split(',').map(|x| x.parse().expect("a number")).collect();
        assert_eq!(numbers.len(), 65, "{line}");
        digits.images.push(std::array::from_fn(|index| numbers[index] / 16.0 - 0.3));
        digits.labels.push(numbers[64] as usize);
    }
    assert_eq!(digits.labels.len(), 1797);
    digits
}

fn normal(random: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * random.f64()).cos()) as f32
}

fn initial(random: &mut fastrand::Rng) -> TensorList {
    let mut list = Vec::new();
    for pair in SIZES.windows(2) {
        let scale = (2.0 / pair[0] as f32).sqrt();
        list.push((0..pair[0] * pair[1]).map(|_| normal(random) * scale).collect());
        list.push(vec![0.0; pair[1]]);
    }
    list
}

/// What the units of each layer put out for one image; scores last.
fn forward(parameters: &TensorList, image: &[f32; 64]) -> Vec<Vec<f32>> {
    let mut layers = vec![image.to_vec()];
    for (layer, pair) in parameters.chunks_exact(2).enumerate() {
        let mut output = pair[1].clone();
        for (x, weights) in layers[layer].iter().zip(pair[0].chunks_exact(output.len())) {
            if *x != 0.0 {
                output.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * w);
            }
        }
        if layer + 2 < SIZES.len() {
            output.iter_mut().for_each(|x| *x = x.max(0.0));
        }
        layers.push(output);
    }
    layers
}

/// Adds one image's part to `gradients`, and gives its loss.
fn backward(
    parameters: &TensorList,
    image: &[f32; 64],
    label: usize,
    share: f32,
    gradients: &mut TensorList,
) -> f64 {
    let layers = forward(parameters, image);
    let scores = layers.last().expect("layers");
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut slope: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f32 = slope.iter().sum();
    let loss = -f64::from(slope[label] / sum + 1e-9).ln();
    slope.iter_mut().for_each(|p| *p *= share / sum);
    slope[label] -= share;
    for layer in (0..SIZES.len() - 1).rev() {
        let (input, units) = (&layers[layer], slope.len());
        let mut below = vec![0.0; input.len()];
        let weights = parameters[2 * layer].chunks_exact(units);
        let changes = gradients[2 * layer].chunks_exact_mut(units);
        for (((x, weights), changes), below) in
            input.iter().zip(weights).zip(changes).zip(&mut below)
        {
            if *x != 0.0 {
                changes.iter_mut().zip(&slope).for_each(|(change, s)| *change += x * s);
                *below = weights.iter().zip(&slope).map(|(w, s)| w * s).sum();
            }
        }
        gradients[2 * layer + 1].iter_mut().zip(&slope).for_each(|(change, s)| *change += s);
        slope = below;
    }
    loss
}

/// What one run has shown.
struct Outcome {
    /// Share of the test images that are right.
    accuracy: f64,
    /// Share of all bytes that a step did not wait for, over all steps.
    deferred: f64,
    /// Bytes of gradient sent, over those of BSP.
    sent: f64,
    /// The last decision's words.
    reason: String,
}

fn train(digits: &Digits, model: ModelKind, setting: Setting, seed: u64) -> Outcome {
    let Setting { ranks, batch, rate, epochs, .. } = setting;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut order: Vec<usize> = (0..digits.labels.len()).collect();
    random.shuffle(&mut order);
    let (order, test) = order.split_at_mut(TRAIN);
    let start = initial(&mut random);
    let optimiser = Sgd::default().into();
    let config =
        SessionConfig { model, optimiser, seed, check_every: 0, ..SessionConfig::default() };
    let mut job = Lockstep::new(&config, ranks, &start).expect("valid settings");
    let zeros: TensorList = start.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
    let mut gradients = vec![zeros; ranks as usize];
    let (mut important, mut deferred, mut steps) = (0, 0, 0);
    for _ in 0..epochs {
        random.shuffle(order);
        let mut losses = vec![0.0; ranks as usize];
        let in_epoch = TRAIN / (ranks as usize * batch);
        for images in order.chunks_exact(ranks as usize * batch) {
            let mut step_losses = vec![0.0_f32; ranks as usize];
            for (rank, images) in images.chunks_exact(batch).enumerate() {
                let gradients = &mut gradients[rank];
                gradients.iter_mut().for_each(|tensor| tensor.fill(0.0));
                let mut sum = 0.0;
                for index in images {
                    let (image, label) = (&digits.images[*index], digits.labels[*index]);
                    let share = 1.0 / batch as f32;
                    sum += backward(job.parameters(rank), image, label, share, gradients);
                }
                losses[rank] += sum / (batch * in_epoch) as f64;
                step_losses[rank] = (sum / batch as f64) as f32;
            }
            job.step_with_losses(&gradients, rate, &step_losses).expect("a step");
            let traffic = job.model(0).traffic();
            important += traffic.important_bytes;
            deferred += traffic.deferred_bytes;
            steps += 1;
        }
        job.end_epoch(&losses).expect("an epoch");
    }
    let reason = job.model(0).decision().reason.to_string();
    job.drain().expect("the end");
    let is_right = |index: &&usize| {
        let layers = forward(job.parameters(0), &digits.images[**index]);
        let scores = layers.last().expect("layers");
        let best = (0..10).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        scores.iter().all(|x| x.is_finite()) && best == Some(digits.labels[**index])
    };
    let right = test.iter().filter(is_right).count();
    let all = (4 * start.concat().len() * steps) as f64;
    Outcome {
        accuracy: right as f64 / test.len() as f64,
        deferred: 1.0 - important as f64 / all,
        sent: (important + deferred) as f64 / all,
        reason,
    }
}

/// The reference's settings: whole tensors of at least 64 elements, after an epoch of BSP.
fn reference(share: f64, lgp: Lgp) -> OspConfig {
    OspConfig {
        budget: BudgetRule::Fixed { share, warmup_epochs: 1 },
        lgp,
        granularity: Granularity::Tensors,
        min_deferred_len: 64,
        rs_parts: 0,
        ..OspConfig::default()
    }
}

/// Slices of 4 kB, which the budget is met with.
fn sliced(budget: BudgetRule) -> OspConfig {
    let granularity = Granularity::Slices { max_bytes: 4096 };
    OspConfig { budget, granularity, ..reference(0.0, Lgp::Local) }
}

fn fixed(share: f64) -> OspConfig {
    sliced(BudgetRule::Fixed { share, warmup_epochs: 1 })
}

/// A table's name, and the variants in it.
fn variants(bounds: &[f64]) -> Vec<(String, OspConfig)> {
    let mut all = vec![
        ("lgp: local".to_owned(), reference(0.8, Lgp::Local)),
        ("lgp: local without momentum".to_owned(), reference(0.8, Lgp::LocalPlain)),
        ("lgp: ema 0.9, 0.5".to_owned(), reference(0.8, Lgp::Ema { gamma: 0.9, lambda: 0.5 })),
        ("lgp: none".to_owned(), reference(0.8, Lgp::None)),
        ("lgp: local, all deferred".to_owned(), reference(1.0, Lgp::Local)),
    ];
    let choices = [Importance::Mean, Importance::Sum, Importance::Signed];
    for importance in choices.into_iter().chain([Importance::Random, Importance::RoundRobin]) {
        all.push((format!("choice: {importance:?}"), OspConfig { importance, ..fixed(0.68) }));
    }
    for span in [1, 2, 4] {
        for merge in [IcsMerge::Overwrite, IcsMerge::Delta] {
            let name = format!("span: {span} {merge:?}");
            all.push((name, OspConfig { span, merge, ..fixed(0.5) }));
        }
    }
    for span in [1, 2] {
        let rs = OspConfig { rs_parts: 4, span, ..fixed(0.68) };
        all.push((format!("rs: in the backward pass, span {span}"), rs));
    }
    for share in [0.25, 0.5] {
        all.push((format!("budget: fixed {share}"), fixed(share)));
    }
    for smoothing in [0.3, 0.9] {
        let rule = BudgetRule::LossDriven { smoothing, rise: 0.1 };
        all.push((format!("budget: loss {smoothing}"), sliced(rule)));
    }
    for bound in bounds {
        all.push((format!("budget: noise {bound}"), sliced(BudgetRule::noise(*bound, 4))));
    }
    all
}

fn mean_and_sd(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (mean, (squares / count).sqrt())
}

#[expect(clippy::disallowed_methods, reason = "a study takes its size from the command line")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
#[ignore = "a study of some minutes; run it with --release"]
fn accuracy_of_the_models() {
    let digits = digits();
    let seeds = variable("SEEDS").and_then(|text| text.parse().ok()).unwrap_or(5);
    let only = variable("ONLY").unwrap_or_default();
    let which = variable("SETTING").unwrap_or_default();
    let bounds = variable("BOUNDS").unwrap_or_else(|| BOUNDS.to_string());
    let bounds: Vec<f64> = bounds.split(',').map(|x| x.parse().expect("a bound")).collect();
    let osps = variants(&bounds).into_iter().map(|(name, osp)| (name, ModelKind::Osp(osp)));
    let all = std::iter::once(("BSP".to_owned(), ModelKind::Bsp)).chain(osps);
    println!("{:28} {:6} {:>7} {:>6} {:>9} {:>5}", "variant", "", "mean", "sd", "deferred", "sent");
    for (name, model) in all.filter(|(name, _)| name.contains(&only)) {
        for setting in [EASY, HARD].into_iter().filter(|setting| setting.name.contains(&which)) {
            let run = |seed| {
                let outcome = train(&digits, model, setting, seed);
                let Outcome { accuracy, deferred, reason, .. } = &outcome;
                eprintln!("{name} {} {seed}: {accuracy:.4} {deferred:.2} {reason}", setting.name);
                outcome
            };
            let runs: Vec<Outcome> = (0..seeds).map(run).collect();
            let (mean, sd) = mean_and_sd(runs.iter().map(|run| run.accuracy));
            let (share, _) = mean_and_sd(runs.iter().map(|run| run.deferred));
            let (sent, _) = mean_and_sd(runs.iter().map(|run| run.sent));
            println!("{name:28} {:6} {mean:7.4} {sd:6.4} {share:9.2} {sent:5.2}", setting.name);
        }
    }
}

/// The short form that always runs: nothing is lost where nothing should be.
#[test]
fn the_models_learn() {
    let digits = digits();
    let short = Setting { epochs: 3, ..EASY };
    let bsp = train(&digits, ModelKind::Bsp, short, 1).accuracy;
    let osp = train(&digits, ModelKind::Osp(reference(0.8, Lgp::Local)), short, 1);
    assert!(bsp > 0.9 && osp.accuracy > 0.9, "{bsp} {}", osp.accuracy);
    assert!(osp.deferred > 0.4, "{}", osp.deferred);
}
