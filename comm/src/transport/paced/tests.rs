//! Rate, latency and order in made-up time, over a transport that only takes notes.

use super::*;
use crate::memory::lend;
use crate::transport::RequestId;
use std::sync::{Arc, Mutex};
use syncline_proto::call::Fingerprint;
use syncline_proto::collective::Span;
use syncline_proto::collective::machine::{Direction, Transfer};
use syncline_proto::id::{MessageId, OpId};

/// When which request came through.
type Notes = Arc<Mutex<Vec<(Instant, u64)>>>;

/// Completes everything at once.
#[derive(Debug, Default)]
struct Taker {
    notes: Notes,
    done: Vec<RequestId>,
    is_cancelled: bool,
}

impl Transport for Taker {
    fn name(&self) -> &'static str {
        "taker"
    }

    fn post(&mut self, now: Instant, request: WorkRequest) {
        self.notes.lock().unwrap().push((now, request.id.op.0));
        self.done.push(request.id);
    }

    fn poll(&mut self, _now: Instant, events: &mut Vec<Event>) -> bool {
        events.extend(self.done.drain(..).map(Event::Completed));
        !events.is_empty()
    }

    fn is_flushed(&self) -> bool {
        self.done.is_empty()
    }

    fn cancel_all(&mut self) {
        self.is_cancelled = true;
    }

    fn bytes_copied(&self) -> u64 {
        7
    }
}

fn paced(bytes_per_s: f64, latency: Duration) -> (Paced, Notes) {
    let taker = Taker::default();
    let notes = Arc::clone(&taker.notes);
    (Paced::new(Box::new(taker), bytes_per_s, latency), notes)
}

fn send(op: u64, class: Class, data: &[u8]) -> WorkRequest {
    let span = Span::input(0, 0);
    let transfer = Transfer { peer: 1, tag: 0, chunk: 0, direction: Direction::Send, span };
    WorkRequest {
        id: RequestId { op: OpId(op), transfer },
        peer: 1,
        message: MessageId { seq: op, ..MessageId::default() },
        fingerprint: Fingerprint::decode([0; Fingerprint::BYTES]),
        class,
        work: Work::Send(lend(data)),
    }
}

/// Polls whenever it is due, `late` after that, until all is through. When that was.
fn drain(paced: &mut Paced, mut now: Instant, late: Duration) -> Instant {
    let mut events = Vec::new();
    while !paced.is_flushed() {
        let due = paced.next_timeout().expect("something waits");
        now = now.max(due) + late;
        paced.poll(now, &mut events);
    }
    now
}

#[test]
fn the_rate_is_kept() {
    const MESSAGES: u64 = 500;
    let data = vec![0; 64 << 10];
    for mbit_per_s in [50, 100, 1000] {
        // However late it is polled, by up to a message's time.
        for late in [0, 40, 400] {
            let bytes_per_s = f64::from(mbit_per_s) * 1e6 / 8.0;
            let (mut paced, notes) = paced(bytes_per_s, Duration::ZERO);
            let start = Instant(5_000_000_000);
            for op in 0..MESSAGES {
                paced.post(start, send(op, Class::Urgent, &data));
            }
            assert!(notes.lock().unwrap().is_empty(), "sent in no time");
            let end = drain(&mut paced, start, Duration::from_micros(late));
            let seconds = end.since(start).as_secs_f64();
            let rate = MESSAGES as f64 * data.len() as f64 / seconds;
            let off = (rate / bytes_per_s - 1.0).abs();
            assert!(off < 0.01, "{mbit_per_s} Mbit/s, {late} us late: {rate} bytes/s");
        }
    }
}

#[test]
fn a_message_takes_its_time_and_the_latency() {
    let data = [0; 936];
    let latency = Duration::from_millis(3);
    let (mut paced, notes) = paced(1e6, latency);
    // 936 + 64 bytes at a megabyte per second.
    for op in [1, 9, 2] {
        paced.post(Instant(10_000_000), send(op, Class::Urgent, &data));
    }
    drain(&mut paced, Instant(10_000_000), Duration::ZERO);
    paced.post(Instant(50_000_000), send(3, Class::Urgent, &data));
    drain(&mut paced, Instant(50_000_000), Duration::ZERO);
    let millis: Vec<(u64, u64)> =
        notes.lock().unwrap().iter().map(|(at, op)| (at.0 / 1_000_000, *op)).collect();
    // The card is idle before 1 and 3, and saves up nothing meanwhile.
    assert_eq!(millis, [(14, 1), (15, 9), (16, 2), (54, 3)]);
}

#[test]
fn urgent_goes_before_background_at_message_boundaries() {
    let data = [0; 936];
    let (mut paced, notes) = paced(1e6, Duration::ZERO);
    for op in 0..3 {
        paced.post(Instant(0), send(op, Class::Background, &data));
    }
    // In the middle of message 0.
    paced.post(Instant(500_000), send(10, Class::Urgent, &data));
    // Nobody looked since; by now message 1 would have begun, had there been no urgent one.
    paced.post(Instant(2_500_000), send(11, Class::Urgent, &data));
    drain(&mut paced, Instant(2_500_000), Duration::ZERO);
    let order: Vec<u64> = notes.lock().unwrap().iter().map(|(_, op)| *op).collect();
    assert_eq!(order, [0, 10, 1, 11, 2]);
}

#[test]
fn full_duplex_and_the_rest_passes_through() {
    let (mut paced, notes) = paced(1.0, Duration::ZERO);
    let data = [0; 1000];
    let recv = WorkRequest {
        work: Work::Recv(crate::transport::Sink {
            memory: lend(&data[..0]),
            fold: crate::transport::SinkFold::Replace,
        }),
        ..send(1, Class::Urgent, &data)
    };
    paced.post(Instant(0), send(0, Class::Urgent, &data));
    paced.post(Instant(0), recv);
    assert_eq!(*notes.lock().unwrap(), [(Instant(0), 1)], "receives wait for nothing");
    assert!(!paced.is_flushed());
    assert_eq!((paced.name(), paced.bytes_copied()), ("taker", 7));
    assert_eq!(paced.next_timeout(), Some(Instant(1_064_000_000_000)));
    paced.cancel_all();
    let mut events = Vec::new();
    paced.poll(Instant(u64::MAX), &mut events);
    assert_eq!(events.len(), 1, "only the receive");
    assert_eq!(notes.lock().unwrap().len(), 1, "a cancelled send went out");
    assert_eq!(paced.next_timeout(), None);
}
