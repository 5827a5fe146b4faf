//! The suite over real sockets, and what is TCP's own.

use super::*;
use crate::transport::conformance::{self, Ends, Message, Random, message};
use crate::transport::paced::Paced;
use crate::transport::{Class, SinkFold, Transport};
use std::net::TcpListener;
use std::time::Duration;

/// Connected pairs of sockets.
fn sockets(rails: usize) -> [Vec<std::net::TcpStream>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut sides = [Vec::new(), Vec::new()];
    for _ in 0..rails {
        sides[0].push(std::net::TcpStream::connect(address).unwrap());
        sides[1].push(listener.accept().unwrap().0);
    }
    sides
}

fn transports(rails: usize) -> [Box<dyn Transport>; 2] {
    let [a, b] = sockets(rails);
    let over = |rank, peer, streams| -> Box<dyn Transport> {
        Box::new(TcpTransport::over(rank, 1, vec![(peer, streams)]).unwrap())
    };
    [over(4, 7, a), over(7, 4, b)]
}

#[test]
fn conforms() {
    conformance::check_all(|| Ends::two([4, 7], transports(1)));
}

#[test]
fn conforms_when_paced() {
    conformance::check_all(|| {
        let slow = |inner| -> Box<dyn Transport> {
            Box::new(Paced::new(inner, 2e9, Duration::from_micros(100)))
        };
        Ends::two([4, 7], transports(1).map(slow))
    });
}

#[test]
fn conforms_over_three_rails() {
    conformance::check_all(|| Ends::two([4, 7], transports(3)));
}

#[test]
fn posted_messages_are_not_copied() {
    let mut ends = Ends::two([4, 7], transports(1));
    let data = Random::new(1).bytes(1 << 20);
    let mut memory = vec![0; data.len()];
    let mut seq = 0;
    for len in [5000, 32 << 10, 100_000, 1 << 20] {
        for class in [Class::Urgent, Class::Background] {
            let message = Message { class, ..message(seq, len as u64) };
            seq += 1;
            let recv = ends.recv(1, message, &mut memory[..len], SinkFold::Replace);
            let ops = [recv, ends.send(0, message, &data[..len])];
            ends.finish("a posted message", &ops);
            assert!(memory[..len] == data[..len]);
        }
    }
    assert_eq!(ends.transport(0).bytes_copied() + ends.transport(1).bytes_copied(), 0);
    // One that is not posted is kept, and counted.
    let early = message(99, 1);
    let send = ends.send(0, early, &data[..5000]);
    ends.finish("sent early", &[send]);
    ends.settle();
    assert_eq!(ends.arrived.len(), 1);
    let recv = ends.recv(1, early, &mut memory[..5000], SinkFold::Replace);
    ends.finish("received late", &[recv]);
    let copied = ends.transport(1).bytes_copied();
    assert!((5000..10_000).contains(&copied), "{copied} bytes copied");
}

#[test]
fn a_reset_names_both_ends_and_the_errno() {
    let [a, mut b] = sockets(1);
    let ends = format!("{} -> {}", a[0].local_addr().unwrap(), a[0].peer_addr().unwrap());
    let mut transport = TcpTransport::over(0, 1, vec![(1, a)]).unwrap();
    // To close with zero linger is to reset.
    socket2::SockRef::from(&b[0]).set_linger(Some(Duration::ZERO)).unwrap();
    b.clear();
    let mut events = Vec::new();
    while events.is_empty() {
        transport.poll(syncline_proto::time::Instant(1), &mut events);
    }
    let [crate::transport::Event::Failed(failure)] = &events[..] else { panic!("{events:?}") };
    assert!(failure.is_end && failure.peer == 1);
    let text = format!("tcp {ends}: Connection reset by peer (os error 104)");
    assert_eq!(failure.detail, text);
}

#[test]
fn readiness_reaches_a_sleeping_engine() {
    let [a, b] = sockets(2);
    let mut near = TcpTransport::over(0, 1, vec![(1, a)]).unwrap();
    let mut far = TcpTransport::over(1, 1, vec![(0, b)]).unwrap();
    let mut poll = mio::Poll::new().unwrap();
    near.register(poll.registry()).unwrap();
    let mut ready = mio::Events::with_capacity(8);
    let mut events = Vec::new();
    let now = syncline_proto::time::Instant(1);
    // Both rails have nothing and know it.
    while near.poll(now, &mut events) || near.streams_mut().any(|s| is_ready(s)) {}
    poll.poll(&mut ready, Some(Duration::from_millis(100))).unwrap();

    let data = [1; 10];
    let request = crate::transport::WorkRequest {
        id: crate::transport::RequestId {
            op: syncline_proto::id::OpId(1),
            transfer: syncline_proto::collective::machine::Transfer {
                peer: 0,
                tag: 0,
                chunk: 1,
                direction: syncline_proto::collective::machine::Direction::Send,
                span: syncline_proto::collective::Span::input(0, 10),
            },
        },
        peer: 0,
        message: syncline_proto::id::MessageId { chunk: 1, ..Default::default() },
        fingerprint: message(0, 1).fingerprint,
        class: Class::Urgent,
        work: crate::transport::Work::Send(crate::memory::lend(&data)),
    };
    far.post(now, request);
    far.push();
    poll.poll(&mut ready, Some(Duration::from_secs(20))).unwrap();
    let tokens: Vec<usize> =
        ready.iter().filter(|e| e.is_readable()).map(|e| e.token().0).collect();
    assert_eq!(tokens, [TCP_TOKEN_BASE + 1], "the second rail");
    near.handle_ready(mio::Token(tokens[0]), true, false);
    assert!(near.poll(now, &mut events), "nothing is posted, but the kernel has said so");
    assert!(matches!(events[..], [crate::transport::Event::Arrived { peer: 1, .. }]));
}

fn is_ready(stream: &TcpConnection) -> bool {
    crate::transport::stream::Stream::may_have_news(stream)
}
