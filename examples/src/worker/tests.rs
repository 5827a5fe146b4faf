//! The loop of one rank, alone and with others, on the digits.

use std::sync::{Arc, Barrier, Mutex};

use super::*;
use crate::data::DataKind;
use crate::model::NetKind;
use crate::spec::tests::spec;

fn alone(net: NetKind, epochs: u32) -> RunSpec {
    RunSpec { ranks: 1, net, epochs, batch: 32, lr: 0.1, ..spec("bsp") }
}

/// Trains alone; returns the final parameters and the messages.
fn run(spec: &RunSpec, sync: &mut dyn Synchroniser) -> (Vec<Tensor>, Vec<Message>) {
    run_on(&Dataset::load(spec.data, None, spec.seed).unwrap(), spec, sync)
}

fn run_on(
    data: &Dataset,
    spec: &RunSpec,
    sync: &mut dyn Synchroniser,
) -> (Vec<Tensor>, Vec<Message>) {
    let mut messages = Vec::new();
    let mut send = |message: &Message| {
        messages.push(message.clone());
        Ok(())
    };
    let parameters = train(spec, 0, data, sync, &mut send).unwrap();
    (parameters, messages)
}

fn summary(messages: &[Message]) -> &Summary {
    let Some(Message::Done(summary)) = messages.last() else { panic!("Done comes last") };
    summary
}

#[test]
fn the_digits_are_learnt() {
    let spec = alone(NetKind::Mlp, 8);
    let (_, messages) = run(&spec, &mut LocalSgd::new(0.9));
    let summary = summary(&messages);
    let accuracy = summary.final_accuracy.unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
    assert_eq!((summary.steps, summary.samples), (8 * 44, 8 * 44 * 32));
    assert_eq!((summary.exposed_s, summary.bytes_sent), (0.0, 0));
    assert!(summary.compute_s > 0.0 && summary.compute_s < summary.wall_s);
}

#[test]
fn the_convolutional_network_learns_and_repeats_bit_for_bit() {
    let spec = RunSpec { lr: 0.05, ..alone(NetKind::Cnn, 1) };
    // A third of the images: unoptimised code takes its time.
    let mut data = Dataset::load(spec.data, None, spec.seed).unwrap();
    data.train.labels.truncate(480);
    data.train.images.truncate(480 * data.shape.values());
    let (first, messages) = run_on(&data, &spec, &mut LocalSgd::new(0.9));
    let (second, _) = run_on(&data, &spec, &mut LocalSgd::new(0.9));
    assert_eq!(first, second);
    // Guessing gives 0.1; one epoch is enough to see that it learns.
    let accuracy = summary(&messages).final_accuracy.unwrap();
    assert!(accuracy > 0.3, "{accuracy}");
}

#[test]
fn every_epoch_is_reported_once_and_its_accuracy_too() {
    let spec = alone(NetKind::Mlp, 3);
    let (_, messages) = run(&spec, &mut LocalSgd::new(0.9));
    assert!(matches!(
        &messages[0],
        Message::Started { parameter_bytes: 203_304, tensors: 6, steps_per_epoch: 44, .. }
    ));
    let mut losses = Vec::new();
    let mut ends = Vec::new();
    let mut accuracies = Vec::new();
    let mut times = 0;
    for message in &messages {
        match message {
            Message::Epoch { epoch, t_s, loss, deferred_pct } => {
                assert_eq!((*epoch as usize, *deferred_pct), (losses.len(), 0.0));
                losses.push(*loss);
                ends.push(*t_s);
            }
            Message::Accuracy { epoch, t_s, .. } => {
                assert_eq!(*epoch as usize, accuracies.len());
                accuracies.push(*t_s);
            }
            Message::SyncTimes { us } => times += us.len(),
            _ => {}
        }
    }
    assert!(losses.is_sorted_by(|a, b| a > b) && ends.is_sorted(), "{losses:?} {ends:?}");
    // Accuracy stands where its epoch ended; the last, where training ended.
    assert_eq!(accuracies[..2], ends[..2]);
    assert_eq!(accuracies[2], summary(&messages).wall_s);
    assert_eq!(times, 3 * 44);
}

#[test]
fn a_straggler_sleeps_as_part_of_computing() {
    let mut spec = RunSpec { train_limit: Some(96), ..alone(NetKind::Mlp, 2) };
    // Of six steps over two epochs, the last of the first and the first of the second.
    spec.stragglers = vec!["0:40ms:2-3".parse().unwrap(), "1:5s".parse().unwrap()];
    let data = Dataset::of(&spec).unwrap();
    let (slow, messages) = run_on(&data, &spec, &mut LocalSgd::new(0.9));
    let summary = summary(&messages);
    assert_eq!(summary.steps, 6);
    // A sleep is never shorter than asked for.
    assert!(summary.compute_s >= 0.08, "{}", summary.compute_s);
    spec.stragglers.clear();
    assert_eq!(run_on(&data, &spec, &mut LocalSgd::new(0.9)).0, slow);
}

/// All-reduce among threads: the simplest synchroniser for several ranks.
struct Shared {
    sums: Arc<Mutex<Vec<Vec<f32>>>>,
    barrier: Arc<Barrier>,
    ranks: f32,
    local: LocalSgd,
}

impl Synchroniser for Shared {
    fn transport(&self) -> String {
        "threads".to_owned()
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        self.local.start(parameters)
    }

    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        if self.barrier.wait().is_leader() {
            self.sums.lock().unwrap().clear();
        }
        self.barrier.wait();
        self.sums
            .lock()
            .unwrap()
            .push(gradients.iter().flat_map(|gradient| gradient.data.iter().copied()).collect());
        self.barrier.wait();
        let all = self.sums.lock().unwrap();
        let values = gradients.iter_mut().flat_map(|gradient| &mut gradient.data);
        for (at, value) in values.enumerate() {
            // Ranks come in any order; adding in order of size makes the sum the same for all.
            let mut parts: Vec<f32> = all.iter().map(|one| one[at]).collect();
            parts.sort_by(f32::total_cmp);
            *value = parts.iter().sum::<f32>() / self.ranks;
        }
        drop(all);
        self.local.step(loss, parameters, gradients, lr)?;
        Ok(StepCost { exposed_ns: 1000, bytes_sent: 10, report: None })
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        self.local.end_epoch(mean_loss)
    }

    fn finish(&mut self, _: &mut [Tensor]) -> Result<StepCost, BoxError> {
        Ok(StepCost { exposed_ns: 500, bytes_sent: 3, report: None })
    }
}

#[test]
fn three_ranks_train_as_one_with_three_times_the_batch() {
    let together = RunSpec { ranks: 3, batch: 16, ..alone(NetKind::Mlp, 2) };
    let data = Dataset::load(DataKind::Digits, None, together.seed).unwrap();
    let sums = Arc::new(Mutex::new(Vec::new()));
    let barrier = Arc::new(Barrier::new(3));
    let results: Vec<(Vec<Tensor>, Vec<Message>)> = std::thread::scope(|scope| {
        let start = |rank: u32| {
            let (sums, barrier) = (Arc::clone(&sums), Arc::clone(&barrier));
            let (spec, data) = (&together, &data);
            scope.spawn(move || {
                let local = LocalSgd::new(0.9);
                let mut sync = Shared { sums, barrier, ranks: 3.0, local };
                let mut messages = Vec::new();
                let mut send = |message: &Message| {
                    messages.push(message.clone());
                    Ok(())
                };
                let parameters = train(spec, rank, data, &mut sync, &mut send).unwrap();
                (parameters, messages)
            })
        };
        let threads: Vec<_> = (0..3).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().all(|(parameters, _)| *parameters == results[0].0));
    let one = RunSpec { ranks: 1, batch: 48, ..together };
    let (expected, _) = run(&one, &mut LocalSgd::new(0.9));
    for (found, expected) in results[0].0.iter().zip(&expected) {
        let differs = |(x, y): (&f32, &f32)| (x - y).abs() > 1e-3;
        assert!(!found.data.iter().zip(&expected.data).any(differs), "{}", expected.name);
    }
    // Costs add up, the final accuracy is from rank 0, each epoch's accuracy from one rank.
    let steps = 2 * (1437 / 48);
    let mut measured = Vec::new();
    for (rank, (_, messages)) in results.iter().enumerate() {
        let summary = summary(messages);
        assert_eq!((summary.steps, summary.bytes_sent), (steps, steps * 10 + 3));
        assert!((summary.exposed_s - (steps as f64 * 1e-6 + 5e-7)).abs() < 1e-12);
        assert_eq!(summary.final_accuracy.is_some(), rank == 0);
        measured.extend(messages.iter().filter_map(|message| match message {
            Message::Accuracy { epoch, .. } => Some(*epoch),
            _ => None,
        }));
    }
    measured.sort_unstable();
    assert_eq!(measured, [0, 1]);
}

/// Fails in its third step.
struct Failing(u32, LocalSgd);

impl Synchroniser for Failing {
    fn transport(&self) -> String {
        self.1.transport()
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        self.1.start(parameters)
    }

    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        self.0 += 1;
        if self.0 == 3 {
            return Err("rank 2 is gone".into());
        }
        self.1.step(loss, parameters, gradients, lr)
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        self.1.end_epoch(mean_loss)
    }

    fn finish(&mut self, parameters: &mut [Tensor]) -> Result<StepCost, BoxError> {
        self.1.finish(parameters)
    }
}

#[test]
fn failures_end_training_with_their_reason() {
    let data = Dataset::load(DataKind::Digits, None, 1).unwrap();
    let mut good = |_: &Message| Ok(());
    let spec = alone(NetKind::Mlp, 1);
    let mut failing = Failing(0, LocalSgd::new(0.0));
    let error = train(&spec, 0, &data, &mut failing, &mut good).unwrap_err();
    assert_eq!(error.to_string(), "cannot synchronise a step in epoch 0: rank 2 is gone");
    let wild = RunSpec { lr: 1e30, ..spec.clone() };
    let error = train(&wild, 0, &data, &mut LocalSgd::new(0.9), &mut good).unwrap_err();
    assert!(matches!(error, WorkerError::Diverged { epoch: 0, .. }), "{error}");
    let mut told = Vec::new();
    let mut keep = |message: &Message| {
        told.push(message.clone());
        Ok(())
    };
    train(&wild, 0, &data, &mut LocalSgd::new(0.9), &mut keep).unwrap_err();
    assert!(matches!(told.last(), Some(Message::Diverged { epoch: 0, .. })), "{told:?}");
    let large = RunSpec { batch: 2000, ..spec.clone() };
    let error = train(&large, 0, &data, &mut LocalSgd::new(0.9), &mut good).unwrap_err();
    assert!(matches!(error, WorkerError::TooFewImages(_)), "{error}");
    let mut closed = |_: &Message| Err(io::Error::from(io::ErrorKind::BrokenPipe));
    let error = train(&spec, 0, &data, &mut LocalSgd::new(0.9), &mut closed).unwrap_err();
    assert!(matches!(error, WorkerError::Report(_)), "{error}");
}

/// Keeps which gradients it was told of, and refuses one of the third step, if it shall.
struct Told {
    tensors: Vec<usize>,
    refuses: bool,
    local: LocalSgd,
}

impl Synchroniser for Told {
    fn transport(&self) -> String {
        self.local.transport()
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        self.local.start(parameters)
    }

    fn gradient_ready(&mut self, tensor: usize, gradient: &[f32]) -> Result<(), BoxError> {
        self.tensors.push(tensor);
        assert!(!gradient.is_empty());
        match self.refuses && self.tensors.len() == 2 * 6 + 3 {
            true => Err("rank 1 is gone".into()),
            false => Ok(()),
        }
    }

    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        self.local.step(loss, parameters, gradients, lr)
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        self.local.end_epoch(mean_loss)
    }

    fn finish(&mut self, parameters: &mut [Tensor]) -> Result<StepCost, BoxError> {
        self.local.finish(parameters)
    }
}

#[test]
fn gradients_are_told_in_the_backward_pass_and_an_error_there_is_the_step_s() {
    let spec = RunSpec { train_limit: Some(4 * 32), ..alone(NetKind::Mlp, 1) };
    let data = Dataset::of(&spec).unwrap();
    let mut told = Told { tensors: Vec::new(), refuses: false, local: LocalSgd::new(0.9) };
    run_on(&data, &spec, &mut told);
    // Layer by layer from the last on, weights before biases, in each of four steps.
    assert_eq!(told.tensors, [4, 5, 2, 3, 0, 1].repeat(4));
    let mut refusing = Told { tensors: Vec::new(), refuses: true, local: LocalSgd::new(0.9) };
    let mut good = |_: &Message| Ok(());
    let error = train(&spec, 0, &data, &mut refusing, &mut good).unwrap_err();
    assert_eq!(error.to_string(), "cannot synchronise a step in epoch 0: rank 1 is gone");
    assert_eq!(refusing.tensors.len(), 15, "nothing is told after an error");
}

#[test]
fn the_language_model_learns_what_follows_what() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rhyme.txt");
    std::fs::write(&path, "one for the master and one for the dame, ".repeat(25)).unwrap();
    let spec = RunSpec {
        data: DataKind::Text,
        data_dir: Some(path),
        context: 8,
        lr: 0.02,
        ..alone(NetKind::Charlm, 6)
    };
    let data = Dataset::of(&spec).unwrap();
    let (_, messages) = run_on(&data, &spec, &mut LocalSgd::new(0.9));
    let end = summary(&messages);
    // Eight bytes tell all that follows but for one place, "one for the ".
    assert!(end.final_accuracy.unwrap() > 0.9, "{end:?}");
    assert!(end.final_test_loss.unwrap() < 0.2, "{end:?}");
    let untrained = Network::new(spec.net, data.shape, data.classes, 1);
    let (mut network, parameters) = untrained;
    let start = evaluate(&mut network, &parameters, &data);
    // Ahead of training it is not better than a guess among the classes, in nats.
    assert!(start.loss > (data.classes as f64).ln() / 2.0 && start.accuracy < 0.5, "{start:?}");
}

/// Keeps the rates that it is given.
struct Rates(Vec<f32>, LocalSgd);

impl Synchroniser for Rates {
    fn transport(&self) -> String {
        self.1.transport()
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        self.1.start(parameters)
    }

    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        self.0.push(lr);
        self.1.step(loss, parameters, gradients, lr)
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        self.1.end_epoch(mean_loss)
    }

    fn finish(&mut self, parameters: &mut [Tensor]) -> Result<StepCost, BoxError> {
        self.1.finish(parameters)
    }
}

/// The rate falls at a mark in samples of all ranks, whatever the epochs.
#[test]
fn the_schedule_counts_the_samples_of_all_ranks() {
    let data = Dataset::load(DataKind::Digits, None, 1).unwrap();
    let spec = RunSpec { ranks: 2, batch: 50, lr: 0.5, ..alone(NetKind::Mlp, 2) };
    let spec = RunSpec { schedule: Some("step:0.5@1000,2000".to_owned()), ..spec };
    let mut rates = Rates(Vec::new(), LocalSgd::new(0.0));
    train(&spec, 1, &data, &mut rates, &mut |_| Ok(())).unwrap();
    assert_eq!(rates.0.len(), 28);
    let expected = [(0, 0.5), (9, 0.5), (10, 0.25), (19, 0.25), (20, 0.125), (27, 0.125)];
    for (step, rate) in expected {
        assert_eq!(rates.0[step], rate, "step {step}");
    }
    let bad = RunSpec { schedule: Some("cosin".to_owned()), ..spec };
    let error = train(&bad, 0, &data, &mut LocalSgd::new(0.0), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("'cosin'"), "{error}");
}
