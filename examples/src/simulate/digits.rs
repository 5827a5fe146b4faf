//! Gradients of a small network on the embedded digits, for every rank in turn.
//!
//! Owns data, network and the curve of loss and accuracy. Measures accuracy at no virtual cost, on
//! what rank 0 computes with at its epoch's end. Called by `cell`.

use indicatif::ProgressBar;
use syncline::lockstep::TensorList;
use syncline::simulation::{StepDone, Trainer};

use super::error::SimulateError;
use super::plan::Plan;
use super::report::Point;
use crate::data::{DataKind, Dataset, ShardPlan};
use crate::model::network::zeros_like;
use crate::model::{Network, Tensor};
use crate::worker::accuracy;
use crate::worker::crew::Crew;

/// All ranks' training, without its time.
pub(super) struct Digits<'a> {
    data: Dataset,
    network: Network,
    /// Room for one rank's parameters and gradients.
    parameters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    images: Vec<f32>,
    labels: Vec<u8>,
    /// By place among those who train, as is the next.
    plans: Vec<ShardPlan>,
    crew: Crew,
    /// Each rank's epoch and the images of that.
    orders: Vec<Option<(u64, Vec<usize>)>>,
    batch: usize,
    lr: f32,
    epochs: u64,
    /// By epoch: the sum of all ranks' losses, and how many.
    losses: Vec<(f64, u64)>,
    points: Vec<Point>,
    bar: &'a ProgressBar,
}

impl<'a> Digits<'a> {
    pub(super) fn new(
        plan: &Plan,
        ranks: u32,
        server_only: Option<u32>,
        bar: &'a ProgressBar,
    ) -> Result<Self, SimulateError> {
        let data = Dataset::load(DataKind::Digits, None, plan.seed).map_err(SimulateError::Data)?;
        let batch = plan.batch as usize;
        let crew = Crew::new(ranks, 0, server_only);
        let workers = crew.workers();
        let shard = |place| ShardPlan::new(data.train.len(), workers, place, batch, plan.seed);
        let plans: Result<Vec<ShardPlan>, _> = (0..workers).map(shard).collect();
        let (network, parameters) = Network::new(plan.net, data.shape, data.classes, plan.seed);
        Ok(Self {
            gradients: zeros_like(&parameters),
            parameters,
            network,
            images: Vec::new(),
            labels: Vec::new(),
            plans: plans.map_err(SimulateError::TooFewImages)?,
            orders: vec![None; workers as usize],
            crew,
            batch,
            lr: plan.lr,
            epochs: u64::from(plan.epochs),
            losses: vec![(0.0, 0); plan.epochs as usize],
            points: Vec::new(),
            bar,
            data,
        })
    }

    /// What all ranks start from.
    pub(super) fn start(&self) -> TensorList {
        self.parameters.iter().map(|tensor| tensor.data.clone()).collect()
    }

    pub(super) fn steps_per_epoch(&self) -> u64 {
        self.plans[0].steps() as u64
    }

    /// Accuracy of the final parameters, and the curve with it.
    pub(super) fn finish(mut self, end_s: f64, parameters: &TensorList) -> (f64, Vec<Point>) {
        self.measure(self.epochs - 1, end_s, parameters);
        for (point, (sum, count)) in self.points.iter_mut().zip(&self.losses) {
            point.loss = sum / (*count).max(1) as f64;
        }
        (self.points.last().map_or(0.0, |point| point.accuracy), self.points)
    }

    fn measure(&mut self, epoch: u64, t_s: f64, parameters: &TensorList) {
        self.lend(parameters);
        let accuracy = accuracy(&mut self.network, &self.parameters, &self.data);
        self.points.push(Point { epoch, t_s, loss: 0.0, accuracy });
    }

    fn lend(&mut self, parameters: &TensorList) {
        for (own, tensor) in self.parameters.iter_mut().zip(parameters) {
            own.data.copy_from_slice(tensor);
        }
    }
}

impl Trainer for Digits<'_> {
    fn gradients(
        &mut self,
        rank: u32,
        step: u64,
        parameters: &TensorList,
        gradients: &mut TensorList,
    ) -> f32 {
        self.lend(parameters);
        let steps = self.steps_per_epoch();
        let (epoch, within) = (step / steps, (step % steps) as usize);
        let index = self.crew.of(rank).place() as usize;
        let order = match &mut self.orders[index] {
            Some((known, order)) if *known == epoch => order,
            slot => &mut slot.insert((epoch, self.plans[index].epoch(epoch as u32))).1,
        };
        let own = order[within * self.batch..][..self.batch].iter().copied();
        self.data.gather(&self.data.train, own, &mut self.images, &mut self.labels);
        let Self { network, images, labels, .. } = self;
        let loss =
            network.loss_and_gradients(&self.parameters, images, labels, &mut self.gradients);
        for (tensor, own) in gradients.iter_mut().zip(&self.gradients) {
            tensor.copy_from_slice(&own.data);
        }
        let (sum, count) = &mut self.losses[epoch as usize];
        *sum += f64::from(loss);
        *count += 1;
        loss
    }

    fn learning_rate(&self, _step: u64) -> f32 {
        self.lr
    }

    fn step_ended(&mut self, _step: &StepDone) {
        self.bar.inc(1);
    }

    fn epoch_ended(&mut self, rank: u32, epoch: u64, now_s: f64, parameters: &TensorList) {
        // The last one is measured on what the end leaves.
        if self.crew.of(rank).reports() && epoch + 1 < self.epochs {
            self.measure(epoch, now_s, parameters);
        }
    }
}
