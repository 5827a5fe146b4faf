//! The engine over a transport that only counts.

use super::*;
use crate::memory::lend_mut;
use crate::offload::node::{LaneId, LaneMember};
use crate::transport::shm::NodeSegment;
use std::sync::atomic::{AtomicU32, Ordering};
use syncline_proto::call::Fingerprint;

/// Counts how often it is polled.
#[derive(Debug)]
struct Counting(Arc<AtomicU32>);

impl Transport for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn post(&mut self, _now: Instant, request: WorkRequest) {
        panic!("{request:?} goes by the lane");
    }

    fn poll(&mut self, _now: Instant, _events: &mut Vec<Event>) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn cancel_all(&mut self) {}

    fn bytes_copied(&self) -> u64 {
        0
    }
}

/// A call that ends at the first look: of a world of one.
fn short(seq: u64, data: &mut [f32]) -> Launch {
    let count = data.len() as u64;
    let fingerprint =
        Fingerprint { kind: 0, dtype: 0, op: 0, algorithm: 0, root: Fingerprint::NO_ROOT, count };
    Launch {
        call: Call { comm: CommId::WORLD, seq, fingerprint },
        body: Body::Node { root: 0, kind: CollectiveKind::AllReduce },
        dtype: DType::F32,
        op: ReduceOp::Sum,
        average_over: None,
        class: Class::Urgent,
        endpoint: None,
        input: LocalSlice::empty(),
        output: lend_mut(data),
        timeout: Duration::from_secs(1),
        buffer: None,
    }
}

/// Peers of other calls must not wait until this rank has nothing short to do.
#[test]
fn transports_are_polled_while_only_short_calls_are_made() {
    let polls = Arc::new(AtomicU32::new(0));
    let transport = Box::new(Counting(Arc::clone(&polls)));
    let mut engine = Engine::new(0, vec![transport], vec![0], None).unwrap();
    let segment = Arc::new(NodeSegment::for_threads(1).unwrap().remove(0));
    let member = LaneMember { local_index: 0, rank: 0 };
    let id = LaneId { index: 0, generation: 0 };
    engine.add_lane(CommId::WORLD, NodeLane::open(segment, id, &[member], 0));
    let mut data = [2.5];
    for seq in 0..10 * u64::from(LOOK_EVERY) {
        let outcome = engine.run(short(seq, &mut data), 1).expect("it ends at once");
        assert!(outcome.fault.is_none() && engine.is_idle());
    }
    assert_eq!(data, [2.5]);
    assert_eq!(polls.load(Ordering::SeqCst), 10);
    // Nobody has looked yet: it is in flight.
    assert!(engine.run(short(640, &mut data), 0).is_err());
    assert!(!engine.is_idle() && engine.step() && engine.is_idle());
}
