//! The account of a rank under OSP on servers: what it pushed, and which replies are to come.
//!
//! Owns no verdict: it says which rule an action or an event breaks, if one. Called by the audit.
//! What the servers do with the pushes is for their own audit (`server/osp/audit.rs`).

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Action, Event, Tensors};
use crate::server::osp::wire::{Head, Push, Stage};

/// A rule, and the numbers that break it.
pub(super) type Break = (&'static str, String);

/// What one rank has under way to OSP's servers.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// The step of each push that was not answered, by server.
    under_way: BTreeMap<(u32, Stage), u64>,
    /// Servers that were pushed to and not told of an end.
    open: BTreeSet<u32>,
    /// The reply that must come next.
    awaited: Option<(u32, Stage)>,
    /// Whether the servers are brought together, and the result must come next.
    is_collecting: bool,
    /// Whether that was so since the last drain.
    is_collected: bool,
}

impl Stages {
    /// Whether an event must come before the next action.
    pub(super) fn is_waiting(&self) -> bool {
        self.awaited.is_some() || self.is_collecting
    }

    /// Pushes of ICS that were not answered.
    pub(super) fn overlapped(&self) -> usize {
        self.under_way.keys().filter(|(_, stage)| *stage == Stage::Ics).count()
    }

    /// Pushes that were not answered.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Whether nothing is under way to a server.
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.is_empty() && self.open.is_empty() && !self.is_waiting()
    }

    /// Whether the servers were brought together since this was asked last.
    pub(super) fn take_collected(&mut self) -> bool {
        std::mem::take(&mut self.is_collected)
    }

    /// An action in step number `step`, from 0, or in a drain after that many steps. Says how many
    /// elements it pushes in RS and in ICS.
    pub(super) fn see_action(
        &mut self,
        action: &Action,
        step: Option<u64>,
    ) -> Result<[usize; 2], Break> {
        match action {
            Action::AwaitStage { server, stage } => {
                let key = (*server, *stage);
                if !self.under_way.contains_key(&key) {
                    return Err(("one wait", format!("{key:?} is not under way")));
                }
                self.awaited = Some(key);
            }
            Action::Collect => {
                let (left, open) = (self.under_way.len(), self.open.len());
                if left + open > 0 {
                    let numbers = format!("{left} replies to come, {open} servers not told");
                    return Err(("quiet drain", format!("collects with {numbers}")));
                }
                self.is_collecting = true;
            }
            Action::EndStages { server, .. } => {
                if !self.open.remove(server) {
                    return Err(("one end", format!("rank {server} was not pushed to")));
                }
            }
            Action::PushStage { server, stage, head, body, .. } => {
                return self.see_push((*server, *stage), head, body.len(), step);
            }
            action => return Err(("its turn", format!("{action:?}, which is for collectives"))),
        }
        Ok([0, 0])
    }

    fn see_push(
        &mut self,
        key: (u32, Stage),
        head: &[u32],
        elements: usize,
        step: Option<u64>,
    ) -> Result<[usize; 2], Break> {
        let (server, stage) = key;
        match (Head::decode(head), step) {
            (Ok(Head::Push(push)), Some(step)) if push.stage == stage && push.step == step => {
                let Push { words, .. } = push;
                if words as usize != elements {
                    return Err(("honest traffic", format!("{words} announced, {elements} sent")));
                }
                if self.under_way.insert(key, step).is_some() {
                    return Err(("bounded flight", format!("{key:?} is under way already")));
                }
            }
            (head, step) => return Err(("its turn", format!("{head:?} in step {step:?}"))),
        }
        let rs = self.under_way.keys().filter(|(_, stage)| *stage == Stage::Rs).count();
        if stage == Stage::Ics && rs > 0 {
            return Err(("its turn", format!("ICS before the replies of {rs} RS")));
        }
        let steps: BTreeSet<u64> = self.under_way.values().copied().collect();
        if steps.len() > 1 {
            return Err(("bounded flight", format!("pushes of steps {steps:?} under way")));
        }
        self.open.insert(server);
        Ok(if stage == Stage::Rs { [elements, 0] } else { [0, elements] })
    }

    /// A reply, or all servers brought together after so many steps.
    pub(super) fn see_event(&mut self, event: &Event, steps: u64) -> Result<(), Break> {
        match event {
            Event::StageReplied { server, message, .. } => {
                let (found, wanted) = (*server, self.awaited.take());
                let Some(key) = wanted.filter(|(server, _)| *server == found) else {
                    let numbers = format!("rank {found} replied, {wanted:?} was awaited");
                    return Err(("right result", numbers));
                };
                let step = self.under_way.remove(&key);
                // A refusal is the model's to report.
                if let (Some([low, high]), Some(step)) = (message.get(2..4), step)
                    && !crate::server::osp::wire::is_refusal(message)
                    && u64::from(*low) | u64::from(*high) << 32 != step
                {
                    return Err(("right result", format!("{key:?} of another step than {step}")));
                }
            }
            Event::Collected { versions, .. } => {
                if !std::mem::take(&mut self.is_collecting) {
                    return Err(("right result", "a collection that was not asked for".to_owned()));
                }
                self.is_collected = true;
                if versions.iter().any(|version| *version != steps) {
                    let numbers = format!("servers applied {versions:?} of {steps} steps");
                    return Err(("each gradient once", numbers));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the trainer's tensors have the bits of the servers' parameters.
pub(super) fn agree(parameters: &[f32], tensors: &Tensors<'_, '_>) -> Result<(), Break> {
    let own = tensors.parameters.iter().flat_map(|tensor| tensor.iter());
    let differing = own.zip(parameters).filter(|(own, all)| own.to_bits() != all.to_bits());
    match differing.count() {
        0 => Ok(()),
        count => Err(("one state", format!("{count} parameters are not those of the servers"))),
    }
}
