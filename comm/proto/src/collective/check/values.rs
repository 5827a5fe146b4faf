//! What an element holds, as an expression over the ranks' contributions.

use crate::id::Rank;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// An expression; equal expressions have equal names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Value(u32);

impl Value {
    /// What memory holds that nothing was written to.
    pub(super) const UNDEFINED: Self = Self(u32::MAX);
}

/// All expressions of a world: contributions first, then what was made of them.
pub(super) struct Values {
    /// Where each rank's contributions start, and where the last rank's end.
    starts: Vec<u32>,
    nodes: Vec<(Value, Value)>,
    names: BTreeMap<(Value, Value), Value>,
}

impl Values {
    /// `lens[r]` elements are contributed by rank `r`.
    pub(super) fn new(lens: impl Iterator<Item = u64>) -> Self {
        let mut starts = vec![0];
        let mut end = 0_u64;
        for len in lens {
            end = end.saturating_add(len);
            let start = u32::try_from(end).ok().filter(|start| *start < u32::MAX / 2);
            starts.push(start.expect("a world to be proved is small"));
        }
        Self { starts, nodes: Vec::new(), names: BTreeMap::new() }
    }

    /// All contributions of a rank.
    pub(super) fn contributions(&self, rank: Rank) -> Vec<Value> {
        let rank = rank as usize;
        (self.starts[rank]..self.starts[rank + 1]).map(Value).collect()
    }

    /// `left op right`.
    pub(super) fn combine(&mut self, left: Value, right: Value) -> Value {
        let next = self.leaf_count() as usize + self.nodes.len();
        let nodes = &mut self.nodes;
        *self.names.entry((left, right)).or_insert_with(|| {
            nodes.push((left, right));
            Value(u32::try_from(next).expect("a world to be proved is small"))
        })
    }

    /// The contribution with this name, as rank and element; `None` for anything made of several.
    pub(super) fn contribution(&self, value: Value) -> Option<(Rank, u64)> {
        if value.0 >= self.leaf_count() {
            return None;
        }
        let rank = self.starts.partition_point(|start| *start <= value.0) - 1;
        let element = value.0 - self.starts[rank];
        Some((Rank::try_from(rank).expect("ranks are counted in 32 bits"), element.into()))
    }

    /// Whether a value holds element `element` of each rank once, and nothing else.
    pub(super) fn is_each_rank_once(&self, value: Value, element: u64) -> bool {
        let mut seen = vec![false; self.starts.len() - 1];
        let mut missing = seen.len();
        let mut todo = vec![value];
        while let Some(value) = todo.pop() {
            if value == Value::UNDEFINED {
                return false;
            }
            let Some((rank, at)) = self.contribution(value) else {
                let (left, right) = self.node(value);
                todo.extend([left, right]);
                // What is left to do needs a rank each: this also ends walks of huge wrong sums.
                if todo.len() > missing {
                    return false;
                }
                continue;
            };
            if at != element || core::mem::replace(&mut seen[rank as usize], true) {
                return false;
            }
            missing -= 1;
        }
        missing == 0
    }

    /// How often each contribution is in a value.
    pub(super) fn multiplicities(&self, value: Value) -> BTreeMap<(Rank, u64), u64> {
        let mut times = BTreeMap::new();
        // An expression is named after its parts, so the largest name has no user left.
        let mut todo = BTreeMap::from([(value, 1_u64)]);
        while let Some((value, count)) = todo.pop_last() {
            if let Some(contribution) = self.contribution(value) {
                times.insert(contribution, count);
                continue;
            }
            let (left, right) = self.node(value);
            for part in [left, right] {
                let sum = todo.entry(part).or_insert(0);
                *sum = sum.saturating_add(count);
            }
        }
        times
    }

    fn node(&self, value: Value) -> (Value, Value) {
        self.nodes[(value.0 - self.leaf_count()) as usize]
    }

    fn leaf_count(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }
}
