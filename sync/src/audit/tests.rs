//! Models that break one rule each are found; models that keep them are left alone.

use super::*;
use crate::config::{DilocoConfig, LocalSgdConfig, OspConfig};
use crate::error::Result;
use crate::layout::{Granularity, Layout, TensorSpec};
use crate::lockstep::{Lockstep, TensorList};
use crate::model::osp::budget::BudgetRule;
use crate::model::osp_server::settings::{OspServerConfig, Placement};
use crate::model::{self, Job, Lane};
use crate::server::osp::wire::Stage;

const LEN: usize = 12;

/// What a mutant does otherwise than the model in it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Nothing.
    Sane,
    /// Uses the names of reductions again.
    SameNames,
    /// Skips the wait for the first reduction under way.
    NoWait,
    /// Waits for it twice.
    TwoWaits,
    /// Waits for what was never started.
    WaitForNothing,
    /// Starts a reduction that nobody needs.
    Extra,
    /// Sends an element too few.
    Short,
    /// Sends blocking what it announces as hidden.
    Blocks,
    /// Says that its parameters are this stale.
    Stale(u64),
    /// Pushes to a server.
    Pushes,
    /// Forgets to drain.
    NoDrain,
    /// Reduces at the end of an epoch.
    EpochReduces,
    /// Pushes the gradients of a step as those of the next.
    Late,
    /// Drops what was to be pushed in ICS, or its wait.
    NoIcs,
    /// Tells servers twice that no push comes.
    TwoEnds,
    /// Does not tell them.
    NoEnd,
    /// Changes a parameter after a drain.
    Drifts,
}

#[derive(Debug)]
struct Mutant {
    model: Box<dyn SyncModel>,
    fault: Fault,
    queue: Vec<Action>,
}

impl Mutant {
    fn change(&mut self, action: Action) -> Action {
        match (self.fault, action) {
            (Fault::SameNames, Action::Reduce { data, .. }) => Action::Reduce { id: 0, data },
            (Fault::Short, Action::Reduce { id, mut data }) => {
                data.pop();
                Action::Reduce { id, data }
            }
            (Fault::Short, Action::StartReduce { id, mut data, lane }) => {
                data.pop();
                Action::StartReduce { id, data, lane }
            }
            (Fault::Blocks, Action::StartReduce { id, data, .. }) => Action::Reduce { id, data },
            (Fault::WaitForNothing, Action::Wait { id }) => Action::Wait { id: id + 100 },
            (Fault::TwoWaits, Action::Wait { id }) => {
                self.queue.push(Action::Wait { id });
                Action::Wait { id }
            }
            (Fault::Extra, Action::StartReduce { id, data, lane }) => {
                self.queue.push(Action::StartReduce { id: id + 1, data: vec![0.0], lane });
                Action::StartReduce { id, data, lane }
            }
            (Fault::TwoWaits, Action::AwaitStage { server, stage }) => {
                self.queue.push(Action::AwaitStage { server, stage });
                Action::AwaitStage { server, stage }
            }
            (Fault::WaitForNothing, Action::AwaitStage { server, stage }) => {
                Action::AwaitStage { server: server + 7, stage }
            }
            (Fault::Extra, Action::PushStage { server, stage, head, body, reply_words }) => {
                let (head_too, body_too) = (head, body.clone());
                let again = Action::PushStage {
                    server,
                    stage,
                    head: head_too,
                    body: body_too,
                    reply_words,
                };
                self.queue.push(again);
                Action::PushStage { server, stage, head, body, reply_words }
            }
            (Fault::Late, Action::PushStage { server, stage, mut head, body, reply_words }) => {
                head[2] += 1;
                Action::PushStage { server, stage, head, body, reply_words }
            }
            (Fault::Short, Action::PushStage { server, stage, head, mut body, reply_words }) => {
                body.pop();
                Action::PushStage { server, stage, head, body, reply_words }
            }
            (Fault::Pushes, Action::PushStage { .. }) => Action::Reduce { id: 0, data: Vec::new() },
            (Fault::TwoEnds, Action::EndStages { server, head }) => {
                self.queue.push(Action::EndStages { server, head });
                Action::EndStages { server, head }
            }
            (Fault::Pushes, Action::Reduce { .. }) => {
                Action::Push { server: 0, message: Vec::new(), replies: false }
            }
            (_, action) => action,
        }
    }
}

impl SyncModel for Mutant {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match (self.fault, &event) {
            (Fault::NoDrain, Event::Drain) => return,
            // The result of what should have gone on in the background.
            (Fault::Blocks, Event::Reduced { id, .. }) if id % 3 == 2 => return,
            (Fault::EpochReduces, Event::EpochEnded { .. }) => {
                let lane = Lane::Background;
                self.queue.push(Action::StartReduce { id: 1000, data: vec![0.0], lane });
            }
            _ => {}
        }
        let is_end = matches!(event, Event::Collected { .. });
        self.model.handle_event(event, tensors);
        if is_end && self.fault == Fault::Drifts {
            tensors.parameters[0][0] += 1.0;
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.queue.pop() {
            return Some(action);
        }
        match self.model.poll_action()? {
            Action::Wait { .. } if self.fault == Fault::NoWait => None,
            Action::AwaitStage { stage: Stage::Rs, .. } if self.fault == Fault::NoWait => None,
            Action::EndStages { .. } if self.fault == Fault::NoEnd => self.poll_action(),
            Action::PushStage { stage: Stage::Ics, .. } if self.fault == Fault::NoIcs => {
                self.poll_action()
            }
            action => Some(self.change(action)),
        }
    }

    fn staleness(&self) -> u64 {
        match self.fault {
            Fault::Stale(staleness) => staleness,
            _ => self.model.staleness(),
        }
    }

    fn traffic(&self) -> Traffic {
        self.model.traffic()
    }

    fn decision(&self) -> &Decision {
        self.model.decision()
    }
}

fn osp(share: f64) -> ModelKind {
    ModelKind::Osp(OspConfig {
        budget: BudgetRule::fixed(share),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 16 },
        rs_parts: 0,
        ..OspConfig::default()
    })
}

fn local(every: u64) -> ModelKind {
    ModelKind::LocalSgd(LocalSgdConfig { every, averages_memory: true })
}

fn diloco(every: u64, delay: u64) -> ModelKind {
    ModelKind::Diloco(DilocoConfig { every, fragments: 2, delay, ..DilocoConfig::default() })
}

fn on_servers(share: f64, placement: Placement) -> ModelKind {
    let ModelKind::Osp(osp) = osp(share) else { unreachable!("as above") };
    let settings = OspServerConfig::new(placement);
    let osp = OspConfig { gib_lag: settings.osp.gib_lag, ceiling: settings.osp.ceiling, ..osp };
    ModelKind::OspServer(OspServerConfig { osp, ..settings })
}

/// Runs two ranks whose models have the fault, through steps, an epoch's end and a drain.
fn run(kind: ModelKind, fault: Fault) -> Result<()> {
    let config =
        SessionConfig { model: kind, check_every: 3, audits: true, ..SessionConfig::default() };
    config.validate()?;
    let start: TensorList = vec![vec![1.0; LEN - 4], vec![1.0; 4]];
    let mut ranks = Lockstep::with_models(&config, 2, &start, |job: Job, tensors| {
        let specs = [TensorSpec::new("a", LEN - 4), TensorSpec::new("b", 4)];
        let layout = Layout::new(&specs, config.model.granularity());
        let memory = Memory::new(&config.optimiser, LEN);
        let model = model::build(&config, job, layout, tensors, memory);
        Mutant { model, fault, queue: Vec::new() }
    });
    for step in 0..11 {
        let gradient = |rank: u64| vec![vec![(step + rank) as f32; LEN - 4], vec![1.0; 4]];
        ranks.step(&[gradient(0), gradient(1)], 0.1)?;
        if step == 4 {
            ranks.drain()?;
        }
    }
    ranks.end_epoch(&[1.0, 1.0])?;
    ranks.drain()
}

fn reason(kind: ModelKind, fault: Fault) -> String {
    match run(kind, fault) {
        Err(Error::Protocol { reason }) => reason,
        outcome => panic!("{fault:?} of {kind:?} gives {outcome:?}"),
    }
}

#[test]
fn models_that_keep_the_rules_are_left_alone() {
    let kinds = [
        ModelKind::Bsp,
        osp(0.0),
        osp(0.5),
        osp(1.0),
        local(1),
        local(3),
        diloco(2, 0),
        diloco(4, 1),
        diloco(5, 2),
    ];
    let placements =
        [Placement::Sharded, Placement::Colocated { rank: 1 }, Placement::Dedicated { rank: 0 }];
    let servers = [0.0, 0.5, 1.0]
        .into_iter()
        .flat_map(|share| placements.map(|placement| on_servers(share, placement)));
    for kind in kinds.into_iter().chain(servers) {
        run(kind, Fault::Sane).unwrap();
    }
}

#[test]
fn each_mutant_is_found_by_its_rule() {
    for (kind, fault, rule) in [
        (ModelKind::Bsp, Fault::SameNames, "step 2: fresh names: 0 after Some(0)"),
        (local(1), Fault::SameNames, "step 2: fresh names"),
        (osp(0.5), Fault::NoWait, "whole exchange: 0 elements in a step, which are to be 12"),
        (osp(0.5), Fault::TwoWaits, "one wait"),
        (diloco(4, 1), Fault::TwoWaits, "step 3: one wait: 0 is not under way"),
        (osp(0.5), Fault::WaitForNothing, "one wait"),
        (diloco(4, 1), Fault::WaitForNothing, "step 3: one wait: 100 is not under way"),
        (osp(0.5), Fault::Extra, "bounded flight: 2 under way, of 1"),
        (diloco(4, 1), Fault::Extra, "step 2: bounded flight"),
        (ModelKind::Bsp, Fault::Stale(1), "bounded staleness: 1 updates lack, of 0"),
        (osp(0.5), Fault::Stale(2), "bounded staleness"),
        (local(3), Fault::Stale(3), "bounded staleness: 3 updates lack, of 2"),
        (diloco(4, 1), Fault::Stale(5), "bounded staleness: 5 updates lack, of 4"),
        (local(3), Fault::Stale(2), "step 5: quiet drain: 0 reductions under way, 2 updates lack"),
        (ModelKind::Bsp, Fault::Pushes, "its turn"),
        (osp(0.5), Fault::NoDrain, "quiet drain: 1 reductions under way"),
        (diloco(4, 1), Fault::NoDrain, "quiet drain"),
        (ModelKind::Bsp, Fault::EpochReduces, "bounded flight"),
        (diloco(4, 1), Fault::EpochReduces, "whole exchange: 1 elements in an epoch's end"),
        (osp(0.5), Fault::Blocks, "honest traffic"),
    ] {
        let reason = reason(kind, fault);
        assert!(reason.contains(rule), "{fault:?} of {}: {reason}", kind.name());
        assert!(reason.starts_with(&format!("audit of {} in step", kind.name())), "{reason}");
    }
}

#[test]
fn each_mutant_on_servers_is_found_by_its_rule() {
    let sharded = on_servers(0.5, Placement::Sharded);
    let dedicated = on_servers(0.5, Placement::Dedicated { rank: 0 });
    for (kind, fault, rule) in [
        (sharded, Fault::NoWait, "step 1: one wait: replies of RS were not awaited"),
        (sharded, Fault::TwoWaits, "step 1: one wait: (0, Rs) is not under way"),
        (dedicated, Fault::WaitForNothing, "step 1: one wait: (7, Rs) is not under way"),
        (sharded, Fault::Extra, "bounded flight: (1, Rs) is under way already"),
        (sharded, Fault::Late, "step 1: its turn"),
        (sharded, Fault::Short, "step 1: honest traffic"),
        (sharded, Fault::NoIcs, "step 3: whole exchange"),
        (sharded, Fault::Stale(2), "step 1: bounded staleness: 2 updates lack, of 1"),
        (sharded, Fault::Stale(0), "step 3: bounded staleness: 0 updates are told to lack"),
        (sharded, Fault::Stale(1), "step 1: bounded staleness: 1 updates are told to lack, 0 ICS"),
        (dedicated, Fault::Pushes, "step 1: its turn"),
        (sharded, Fault::NoDrain, "step 5: quiet drain"),
        (sharded, Fault::TwoEnds, "step 5: one end: rank 0 was not pushed to"),
        (sharded, Fault::NoEnd, "step 5: quiet drain: collects with 0 replies to come, 2 servers"),
        (dedicated, Fault::Drifts, "step 5: one state: 1 parameters are not"),
        (sharded, Fault::EpochReduces, "its turn"),
    ] {
        let reason = reason(kind, fault);
        assert!(reason.contains(rule), "{fault:?} of {}: {reason}", kind.name());
        assert!(reason.starts_with(&format!("audit of {} in step", kind.name())), "{reason}");
    }
}

/// One rank by itself, so that its own model may see a result of another length.
fn audited(kind: ModelKind, fault: Fault) -> Audited<Mutant> {
    let config = SessionConfig { model: kind, ..SessionConfig::default() };
    let layout = Layout::new(&[TensorSpec::new("a", LEN)], config.model.granularity());
    let mut w = [1.0; LEN];
    let memory = Memory::new(&config.optimiser, LEN);
    let model = model::build(&config, Job::new(0, 1, &config), layout, &[&mut w], memory);
    Audited::new(Mutant { model, fault, queue: Vec::new() }, Rules::of(&config, 0, LEN))
}

/// Ends a step, with `answer` to each reduction; returns the reason of the failure, if any.
fn step(
    model: &mut Audited<Mutant>,
    answer: impl Fn(ReduceId, Vec<f32>) -> (ReduceId, Vec<f32>),
) -> Option<String> {
    let (mut w, gradient) = ([1.0; LEN], [1.0; LEN]);
    let mut parameters = [&mut w[..]];
    let gradients = [&gradient[..]];
    let mut tensors = Tensors { parameters: &mut parameters, gradients: &gradients };
    let ended = model::StepEnded { learning_rate: 0.1, loss: 0.0, compute: Default::default() };
    model.handle_event(Event::StepEnded(ended), &mut tensors);
    let mut reason = None;
    while let Some(action) = model.poll_action() {
        match action {
            Action::Fail(error) => reason = Some(error.to_string()),
            Action::Reduce { id, data } => {
                let (id, data) = answer(id, data);
                let event = Event::Reduced { id, data, timing: Default::default() };
                model.handle_event(event, &mut tensors);
            }
            action => panic!("{action:?}"),
        }
    }
    reason
}

#[test]
fn results_that_were_not_asked_for_are_found() {
    for (answer, text) in [
        (|id, data| (id + 1, data), "Some((1, 12)) came, Some((0, 12)) was awaited"),
        (|id, data: Vec<f32>| (id, data[1..].to_vec()), "Some((0, 11)) came"),
    ] as [(fn(ReduceId, Vec<f32>) -> (ReduceId, Vec<f32>), &str); 2]
    {
        let mut model = audited(ModelKind::Bsp, Fault::Sane);
        let reason = step(&mut model, answer).unwrap();
        assert!(reason.contains("right result") && reason.contains(text), "{reason}");
        // It is told once, and the model is left alone from then on.
        assert_eq!(step(&mut model, |id, data| (id, data)), None);
    }
}

/// The model itself gets all it waits for: only the audit sees that an element did not travel.
#[test]
fn an_element_that_does_not_travel_is_found() {
    let whole = |id, mut data: Vec<f32>| {
        data.push(0.0);
        (id, data)
    };
    for kind in [ModelKind::Bsp, osp(0.0), local(1), diloco(2, 0)] {
        let mut model = audited(kind, Fault::Short);
        let reason = (0..2).find_map(|_| step(&mut model, whole)).unwrap();
        assert!(reason.contains("right result"), "{reason}");
    }
}

/// A model that loses an element on its way in and out is found by what is left of the whole, and
/// one that also hides it by what it says to have moved.
#[test]
fn a_step_that_is_not_whole_is_found() {
    let rules =
        |kind| Rules::of(&SessionConfig { model: kind, ..Default::default() }, 0, LEN).unwrap();
    for (kind, blocking, behind, steps, rule) in [
        (ModelKind::Bsp, LEN - 1, 0, 1, "whole exchange: 11 elements in a step"),
        (ModelKind::Bsp, 2 * LEN, 0, 1, "whole exchange: 24 elements"),
        (ModelKind::Bsp, 0, LEN, 1, "honest traffic"),
        (osp(0.5), 4, 4, 1, "whole exchange: 8 elements"),
        (local(2), 0, 0, 2, "whole exchange: 0 elements in a step of a round"),
        (local(2), 2 * LEN, 0, 1, "whole exchange: 24 elements in a step of a round"),
        (diloco(2, 0), LEN, 0, 2, "whole exchange: 24 elements in 2 steps"),
        (diloco(2, 0), 0, 0, 2, "whole exchange: 0 elements in 2 steps"),
    ] {
        let mut audit = Audit::new(rules(kind));
        for _ in 0..steps {
            let ended =
                model::StepEnded { learning_rate: 0.1, loss: 0.0, compute: Default::default() };
            audit.see_event(&Event::StepEnded(ended));
            (audit.blocking, audit.behind) = (blocking, behind);
            let important_bytes = ((blocking + behind) * ELEMENT_BYTES) as u64;
            audit.see_end(Traffic { important_bytes, deferred_bytes: 0 }, 0);
        }
        match &audit.verdict {
            Verdict::Broken(reason) => assert!(reason.contains(rule), "{reason}"),
            verdict => panic!("{kind:?}: {verdict:?}"),
        }
    }
}

#[test]
fn a_rank_without_rules_is_as_it_is() {
    let config = SessionConfig { model: "asp".parse().unwrap(), ..SessionConfig::default() };
    assert_eq!(Rules::of(&config, 0, LEN), None);
}
