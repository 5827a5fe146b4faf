use super::*;
use crate::fault::FaultKind;
use crate::machine::Machine;
use crate::time::Instant;
use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec;

/// A hub and its members on perfect streams; `cut` members neither hear nor speak.
struct World {
    now: Instant,
    hub: Hub,
    members: Vec<Member>,
    cut: BTreeSet<Rank>,
    seen: Vec<Vec<MemberOutput>>,
}

const PACE: Pace = Pace { beat: Duration::from_millis(100), silence: Duration::from_secs(2) };

impl World {
    fn new(world_size: u32, joined: u32) -> Self {
        let now = Instant::ZERO;
        let mut hub = Hub::new(world_size, PACE, now, now + Duration::from_secs(5));
        for rank in 0..joined {
            assert!(hub.has_room(rank));
            hub.handle_input(now, HubInput::Joined { rank });
            assert!(!hub.has_room(rank));
        }
        let members = (0..joined).map(|rank| Member::new(rank, PACE, now)).collect();
        let seen = (0..joined).map(|_| Vec::new()).collect();
        Self { now, hub, members, cut: BTreeSet::new(), seen }
    }

    fn input(&mut self, rank: Rank, input: MemberInput) {
        self.members[rank as usize].handle_input(self.now, input);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for (member, rank) in self.members.iter_mut().zip(0..) {
                while let Some(output) = member.poll_output() {
                    moved = true;
                    match output {
                        MemberOutput::Send(message) if !self.cut.contains(&rank) => {
                            self.hub.handle_input(self.now, HubInput::Message { rank, message });
                        }
                        MemberOutput::Send(_) => {}
                        other => self.seen[rank as usize].push(other),
                    }
                }
            }
            while let Some(output) = self.hub.poll_output() {
                moved = true;
                if let HubOutput::Send { rank, message } = output
                    && !self.cut.contains(&rank)
                {
                    let input = MemberInput::Message(message);
                    self.members[rank as usize].handle_input(self.now, input);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + Duration::from_millis(50);
            self.hub.handle_timeout(self.now);
            for member in &mut self.members {
                member.handle_timeout(self.now);
            }
            self.settle();
        }
    }

    fn faults(&self) -> Vec<Option<&Fault>> {
        self.members.iter().map(Member::fault).collect()
    }
}

#[test]
fn rounds_gather_by_rank_even_out_of_order() {
    let mut world = World::new(3, 3);
    for (rank, round) in [(2, 1), (2, 0), (0, 0), (1, 0), (1, 1), (0, 1)] {
        let bytes = vec![u8::try_from(10 * round + rank).unwrap()];
        world.input(rank, MemberInput::Publish { round, bytes });
    }
    for seen in &world.seen {
        let gathered: Vec<_> =
            seen.iter().filter(|o| matches!(o, MemberOutput::Gathered { .. })).collect();
        let blobs = |base: u8| (0..3).map(|rank| vec![base + rank]).collect();
        assert_eq!(gathered[0], &MemberOutput::Gathered { round: 0, blobs: blobs(0) });
        assert_eq!(gathered[1], &MemberOutput::Gathered { round: 1, blobs: blobs(10) });
    }
}

#[test]
fn b09_ranks_that_never_join_are_named() {
    let mut world = World::new(5, 3);
    world.run(Duration::from_secs(4));
    assert!(world.faults().iter().all(Option::is_none));
    world.run(Duration::from_secs(2));
    for fault in world.faults() {
        let fault = fault.expect("fault");
        assert_eq!(fault.kind, FaultKind::Timeout);
        assert!(fault.to_string().contains("ranks 3-4 never joined"), "{fault}");
    }
}

#[test]
fn b03_a_report_reaches_every_rank_and_the_first_wins() {
    let mut world = World::new(4, 4);
    let fault = |rank| Fault::new(FaultKind::Transport, rank, "x");
    world.members[2].handle_input(world.now, MemberInput::Report(fault(2)));
    world.members[3].handle_input(world.now, MemberInput::Report(fault(3)));
    world.settle();
    let firsts: BTreeSet<_> =
        world.faults().iter().map(|f| f.expect("fault").detected_by).collect();
    // Rank 3 reported before it heard of 2's; everybody else has the hub's first.
    assert_eq!(world.faults()[0].map(|f| f.detected_by), Some(2));
    assert_eq!(world.faults()[1].map(|f| f.detected_by), Some(2));
    assert!(firsts.is_subset(&BTreeSet::from([2, 3])));
}

#[test]
fn a_stopped_rank_is_lost_after_the_silence_and_not_before() {
    let mut world = World::new(3, 3);
    world.run(Duration::from_secs(1));
    world.cut.insert(1);
    world.run(Duration::from_millis(1800));
    assert!(world.faults().iter().all(Option::is_none));
    world.run(Duration::from_millis(700));
    for rank in [0, 2] {
        let fault = world.faults()[rank].expect("fault").clone();
        assert_eq!((fault.kind, fault.culprit), (FaultKind::PeerLost, Some(1)));
    }
    // The stopped one finds the hub silent when it looks again.
    assert_eq!(world.faults()[1].expect("fault").culprit, Some(0));
}

#[test]
fn an_end_without_goodbye_is_a_loss_and_with_goodbye_is_not() {
    let mut world = World::new(3, 3);
    world.input(1, MemberInput::Leave { panicking: false });
    let closed = |rank| HubInput::Closed { rank, detail: "eof".into() };
    world.hub.handle_input(world.now, closed(1));
    world.settle();
    assert!(world.faults().iter().all(Option::is_none));
    assert!(world.seen[0].contains(&MemberOutput::Left(1)));
    world.hub.handle_input(world.now, closed(2));
    world.settle();
    assert_eq!(world.faults()[0].expect("fault").culprit, Some(2));
}

#[test]
fn b04_a_panic_is_told_to_all() {
    let mut world = World::new(2, 2);
    world.input(1, MemberInput::Leave { panicking: true });
    let fault = world.faults()[0].expect("fault").clone();
    assert_eq!((fault.kind, fault.culprit), (FaultKind::PeerLost, Some(1)));
    assert!(fault.to_string().contains("panicked"));
}

#[test]
fn all_leaving_ends_the_job_in_order() {
    let mut world = World::new(3, 3);
    for rank in 0..3 {
        assert!(!world.seen[0].contains(&MemberOutput::AllLeft));
        world.input(rank, MemberInput::Leave { panicking: false });
    }
    assert!(world.seen.iter().all(|seen| seen.contains(&MemberOutput::AllLeft)));
    let detail = "eof".to_string();
    world.input(0, MemberInput::HubClosed { detail });
    assert!(world.faults().iter().all(Option::is_none));
}

#[test]
fn the_verdict_lists_who_is_behind() {
    let standing = |calls, age_ms| Standing { calls, age_ms, has_left: false };
    let table = [standing(7, 3), standing(5, 900), standing(7, 1)];
    assert_eq!(verdict(&table, 0), "behind: rank 1 (5 of 7 calls begun, last heard 900 ms ago)");
    assert_eq!(verdict(&[], 0), "");
}
