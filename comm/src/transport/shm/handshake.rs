//! How a host's ranks come to share one segment.
//!
//! The leader (the lowest rank of the host) listens on an abstract unix socket, which vanishes
//! with the process and crosses no network namespace. Members prove that they know the job's
//! secret, hand over their bell, and get the segment with everybody's bells by descriptor. Then
//! all have it or none: the leader says "go" only after every member has mapped it.
//!
//! ```text
//!   member                                   leader
//!                                        ◀─  challenge {nonce a}
//!   join {nonce b, place, proof} + bell  ─▶
//!                                        ◀─  welcome {sizes, pids, proof} + segment + all bells
//!   mapped {ok or why not}               ─▶
//!                                        ◀─  go {ok or why not}
//! ```
//! Proofs are HMAC-SHA256 under the secret, labelled by role. Every wait ends at the deadline; a
//! stranger that connects is refused and holds nobody up.

use super::layout::{Layout, MAX_LOCAL_SIZE};
use super::segment::{NodeSegment, Parts, check_size, too_little_memory};
use super::socket::{self, Received};
use super::{ShmUnavailable, backing, bell};
use hmac::{Hmac, KeyInit, Mac};
use rustix::process::geteuid;
use sha2::Sha256;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use syncline_proto::time::Instant;

const MAGIC: &[u8; 8] = b"SYNSHM01";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const CHALLENGE_BYTES: usize = MAGIC.len() + NONCE_BYTES;
const JOIN_BYTES: usize = NONCE_BYTES + 8 + PROOF_BYTES;
/// Local size, ring bytes, chunk bytes.
const SIZES_BYTES: usize = 4 + 8 + 8;
/// Longest message: a welcome with all pids, or a refusal with its reason.
const MESSAGE_MAX_BYTES: usize = 1024;
/// Strangers and members in the middle of joining, at most.
const PENDING_MAX: usize = 256;

type Nonce = [u8; NONCE_BYTES];

/// The leader's end, listening.
#[derive(Debug)]
pub struct SegmentHost {
    listener: OwnedFd,
}

/// A connection that has been challenged.
struct Pending {
    socket: OwnedFd,
    nonce: Nonce,
    pid: u32,
}

/// A member that has proved itself.
struct Member {
    socket: OwnedFd,
    bell: OwnedFd,
    pid: u32,
    nonces: (Nonce, Nonce),
}

impl SegmentHost {
    /// Listens under a new name, which the other ranks of the host need for
    /// [`NodeSegment::join`].
    ///
    /// # Errors
    /// If the system has no unix sockets or no descriptors left.
    pub fn bind() -> Result<(String, Self), ShmUnavailable> {
        let nonce = nonce()?;
        let id: String = nonce[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("syncline-{id}");
        Ok((name.clone(), Self { listener: socket::listen(&name)? }))
    }

    /// Makes the segment and hands it to the other `local_size - 1` ranks, as local rank 0.
    ///
    /// # Errors
    /// If memory or descriptors are short, or a rank has not joined by the deadline. Then none
    /// of the ranks has the segment.
    pub fn serve(
        self,
        local_size: u32,
        secret: &[u8; 32],
        deadline: Instant,
    ) -> Result<NodeSegment, ShmUnavailable> {
        check_size(local_size)?;
        let layout = Layout::fit(local_size, backing::budget()).ok_or_else(too_little_memory)?;
        let file = backing::create(layout.total_bytes())?;
        let own_bell = bell::create().map_err(|error| failed("make a bell", error))?;
        let members = self.gather(local_size, secret, deadline)?;
        let pids: Vec<u32> = std::iter::once(std::process::id())
            .chain(members.iter().map(|member| member.pid))
            .collect();
        welcome(&members, layout, &pids, &file, &own_bell, secret, deadline)?;
        let (sockets, bells): (Vec<_>, Vec<_>) =
            members.into_iter().map(|member| (member.socket, member.bell)).unzip();
        let bells = std::iter::once(own_bell).chain(bells).collect();
        let opened = NodeSegment::open(Parts { file, layout, bells, pids }, 0);
        conclude(&sockets, opened, deadline)
    }

    /// Waits for all members; by local rank, from 1.
    fn gather(
        &self,
        local_size: u32,
        secret: &[u8; 32],
        deadline: Instant,
    ) -> Result<Vec<Member>, ShmUnavailable> {
        let mut members: Vec<Option<Member>> = (1..local_size).map(|_| None).collect();
        let mut pending: Vec<Pending> = Vec::new();
        while members.iter().any(Option::is_none) {
            let mut sockets: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
            sockets.extend(pending.iter().map(|p| p.socket.as_fd()));
            let Some(mut ready) = socket::wait_readable(&sockets, deadline)? else {
                let missing = (1..).zip(&members).filter(|(_, member)| member.is_none());
                let missing: Vec<String> = missing.map(|(local, _)| local.to_string()).collect();
                let missing = missing.join(", ");
                let reason = format!("local ranks {missing} did not join the segment in time");
                return Err(ShmUnavailable { reason });
            };
            let knocked = ready.remove(0);
            let mut rest = Vec::new();
            for (candidate, is_ready) in pending.drain(..).zip(ready) {
                if !is_ready {
                    rest.push(candidate);
                } else if let Some((local, member)) = admit(candidate, local_size, secret) {
                    // A second one with the same place knows the secret, and is a mistake.
                    members[local as usize - 1].get_or_insert(member);
                }
            }
            pending = rest;
            if knocked && let Some(newcomer) = self.challenge() {
                pending.truncate(PENDING_MAX - 1);
                pending.push(newcomer);
            }
        }
        Ok(members.into_iter().flatten().collect())
    }

    /// Takes a connection of this user and challenges it. `None` if it is somebody else's or is
    /// gone already.
    fn challenge(&self) -> Option<Pending> {
        let socket = socket::accept(&self.listener)?;
        let peer = socket::credentials(&socket).ok()?;
        if peer.uid != geteuid() {
            tracing::debug!("refused user {} at the segment's socket", peer.uid.as_raw());
            return None;
        }
        let nonce = nonce().ok()?;
        let message = [&MAGIC[..], &nonce].concat();
        socket::send(&socket, &message, &[], crate::time::now()).ok()?;
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        Some(Pending { socket, nonce, pid })
    }
}

impl NodeSegment {
    /// Joins the segment that the leader of this host [serves](SegmentHost::serve) under `name`,
    /// as local rank `local_index` of `local_size`.
    ///
    /// # Errors
    /// If the leader cannot be reached (another network namespace, say), gives up, or does not
    /// know the secret; if memory or descriptors are short; if the deadline passes.
    ///
    /// # Panics
    /// If `local_index` is not in `1..local_size`.
    pub fn join(
        name: &str,
        local_index: u32,
        local_size: u32,
        secret: &[u8; 32],
        deadline: Instant,
    ) -> Result<Self, ShmUnavailable> {
        assert!((1..local_size).contains(&local_index), "member {local_index} of {local_size}");
        check_size(local_size)?;
        let socket = socket::connect(name, deadline)?;
        let leader = socket::credentials(&socket).map_err(|error| failed("credentials", error))?;
        if leader.uid != geteuid() {
            let reason = "the segment's socket belongs to another user".to_owned();
            return Err(ShmUnavailable { reason });
        }
        let own_bell = bell::create().map_err(|error| failed("make a bell", error))?;
        let place = [local_index.to_le_bytes(), local_size.to_le_bytes()].concat();

        let challenge = socket::receive(&socket, MESSAGE_MAX_BYTES, 0, deadline)?.bytes;
        let Some(theirs) = challenge.strip_prefix(MAGIC).and_then(|n| Nonce::try_from(n).ok())
        else {
            return Err(malformed("challenge", challenge.len(), CHALLENGE_BYTES));
        };
        let ours = nonce()?;
        let proof = prove(secret, b"member", [&theirs, &ours, &place]);
        let join = [&ours[..], &place, &proof].concat();
        socket::send(&socket, &join, &[own_bell.as_fd()], deadline)?;

        let fds_max = local_size as usize + 1;
        let welcome = socket::receive(&socket, MESSAGE_MAX_BYTES, fds_max, deadline)?;
        let opened = parse_welcome(welcome, local_size, |body| {
            verify(secret, b"leader", [&ours, &theirs, body.0], body.1)
        })
        .and_then(|parts| Self::open(parts, local_index));
        let sent = socket::send(&socket, &verdict(&opened), &[], deadline);
        let segment = opened?;
        sent?;
        let go = socket::receive(&socket, MESSAGE_MAX_BYTES, 0, deadline)?.bytes;
        parse_verdict(&go)?;
        Ok(segment)
    }
}

/// Checks a member's join. `None` if it is none.
fn admit(candidate: Pending, local_size: u32, secret: &[u8; 32]) -> Option<(u32, Member)> {
    let Pending { socket, nonce: ours, pid } = candidate;
    let Received { bytes, mut fds } =
        socket::receive(&socket, MESSAGE_MAX_BYTES, 1, crate::time::now()).ok()?;
    let bytes: [u8; JOIN_BYTES] = bytes.try_into().ok()?;
    let (theirs, rest) = bytes.split_at(NONCE_BYTES);
    let (place, proof) = rest.split_at(8);
    if !verify(secret, b"member", [&ours, theirs, place], proof) {
        tracing::debug!("refused process {pid} at the segment's socket: wrong secret");
        return None;
    }
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| place[at + i]));
    let (local, size) = (word(0), word(4));
    if size != local_size || !(1..local_size).contains(&local) {
        tracing::debug!("refused local rank {local} of {size}: {local_size} are expected");
        return None;
    }
    let nonces = (theirs.try_into().ok()?, ours);
    Some((local, Member { socket, bell: fds.pop()?, pid, nonces }))
}

/// Sends the segment to all.
fn welcome(
    members: &[Member],
    layout: Layout,
    pids: &[u32],
    file: &OwnedFd,
    own_bell: &OwnedFd,
    secret: &[u8; 32],
    deadline: Instant,
) -> Result<(), ShmUnavailable> {
    let mut body = layout.local_size.to_le_bytes().to_vec();
    body.extend((layout.ring_bytes as u64).to_le_bytes());
    body.extend((layout.chunk_bytes as u64).to_le_bytes());
    body.extend(pids.iter().flat_map(|pid| pid.to_le_bytes()));
    let mut fds = vec![file.as_fd(), own_bell.as_fd()];
    fds.extend(members.iter().map(|member| member.bell.as_fd()));
    for member in members {
        let (theirs, ours) = &member.nonces;
        let proof = prove(secret, b"leader", [theirs, ours, &body]);
        socket::send(&member.socket, &[&body[..], &proof].concat(), &fds, deadline)?;
    }
    Ok(())
}

/// Hears whether all have mapped the segment, and tells all.
fn conclude(
    sockets: &[OwnedFd],
    opened: Result<NodeSegment, ShmUnavailable>,
    deadline: Instant,
) -> Result<NodeSegment, ShmUnavailable> {
    let heard = (1..).zip(sockets).try_for_each(|(local, socket): (u32, _)| {
        let answer = socket::receive(socket, MESSAGE_MAX_BYTES, 0, deadline);
        answer.and_then(|answer| parse_verdict(&answer.bytes)).map_err(|error| {
            let reason = format!("local rank {local}: {}", error.reason);
            ShmUnavailable { reason }
        })
    });
    let outcome = opened.and_then(|segment| heard.map(|()| segment));
    for socket in sockets {
        let sent = socket::send(socket, &verdict(&outcome), &[], deadline);
        if outcome.is_ok() {
            sent?;
        }
    }
    outcome
}

/// The parts of a welcome. `is_genuine` gets (body, proof).
fn parse_welcome(
    welcome: Received,
    local_size: u32,
    is_genuine: impl Fn((&[u8], &[u8])) -> bool,
) -> Result<Parts, ShmUnavailable> {
    let Received { bytes, mut fds } = welcome;
    let size = local_size as usize;
    let expected = SIZES_BYTES + 4 * size + PROOF_BYTES;
    if bytes.len() != expected {
        return Err(malformed("welcome", bytes.len(), expected));
    }
    let (body, proof) = bytes.split_at(expected - PROOF_BYTES);
    if !is_genuine((body, proof)) {
        let reason = "the leader of this host does not know the job's secret".to_owned();
        return Err(ShmUnavailable { reason });
    }
    if fds.len() != size + 1 {
        let reason = format!(
            "{} of {} descriptors came with the segment (see ulimit -n)",
            fds.len(),
            size + 1
        );
        return Err(ShmUnavailable { reason });
    }
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| body[at + i]));
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| body[at + i]));
    let Some(layout) = Layout::checked(word(0), long(4), long(12))
        .filter(|layout| layout.local_size == local_size)
    else {
        return Err(ShmUnavailable { reason: "the segment's sizes make no sense".to_owned() });
    };
    let bells = fds.split_off(1);
    let Some(file) = fds.pop() else { unreachable!("one more descriptor than bells") };
    backing::check(&file, layout.total_bytes())?;
    let pids = (0..size).map(|local| word(SIZES_BYTES + 4 * local)).collect();
    Ok(Parts { file, layout, bells, pids })
}

fn verdict<T>(outcome: &Result<T, ShmUnavailable>) -> Vec<u8> {
    match outcome {
        Ok(_) => vec![1],
        Err(error) => {
            let mut bytes = vec![0];
            bytes.extend(error.reason.bytes().take(MESSAGE_MAX_BYTES - 1));
            bytes
        }
    }
}

fn parse_verdict(bytes: &[u8]) -> Result<(), ShmUnavailable> {
    match bytes {
        [1] => Ok(()),
        [0, reason @ ..] => {
            Err(ShmUnavailable { reason: String::from_utf8_lossy(reason).into_owned() })
        }
        _ => Err(malformed("verdict", bytes.len(), 1)),
    }
}

fn mac(secret: &[u8; 32], role: &[u8], parts: [&[u8]; 3]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length will do for HMAC");
    mac.update(MAGIC);
    mac.update(role);
    for part in parts {
        mac.update(part);
    }
    mac
}

fn prove(secret: &[u8; 32], role: &[u8], parts: [&[u8]; 3]) -> [u8; PROOF_BYTES] {
    mac(secret, role, parts).finalize().into_bytes().into()
}

/// In constant time.
fn verify(secret: &[u8; 32], role: &[u8], parts: [&[u8]; 3], proof: &[u8]) -> bool {
    mac(secret, role, parts).verify_slice(proof).is_ok()
}

fn nonce() -> Result<Nonce, ShmUnavailable> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)
        .map_err(|error| ShmUnavailable { reason: format!("random bytes: {error}") })?;
    Ok(nonce)
}

fn failed(what: &str, error: rustix::io::Errno) -> ShmUnavailable {
    ShmUnavailable { reason: format!("{what}: {error}") }
}

fn malformed(what: &str, bytes: usize, expected: usize) -> ShmUnavailable {
    ShmUnavailable { reason: format!("a {what} of {bytes} bytes instead of {expected}") }
}

const _: () = assert!(SIZES_BYTES + 4 * MAX_LOCAL_SIZE as usize + PROOF_BYTES <= MESSAGE_MAX_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    const SECRET: [u8; 32] = [7; 32];

    fn soon() -> Instant {
        crate::time::now() + Duration::from_secs(10)
    }

    /// The results of all ranks; member `i`'s secret is `secrets[i]`.
    fn meet(secrets: &[[u8; 32]], within: Duration) -> Vec<Result<NodeSegment, ShmUnavailable>> {
        let size = u32::try_from(secrets.len()).unwrap();
        let (name, host) = SegmentHost::bind().unwrap();
        let deadline = crate::time::now() + within;
        std::thread::scope(|scope| {
            let join = |index: u32| {
                let (name, secret) = (&name, &secrets[index as usize]);
                move || NodeSegment::join(name, index, size, secret, deadline)
            };
            let members: Vec<_> = (1..size).map(|index| scope.spawn(join(index))).collect();
            let leader = host.serve(size, &secrets[0], deadline);
            let members = members.into_iter().map(|member| member.join().unwrap());
            std::iter::once(leader).chain(members).collect()
        })
    }

    #[test]
    fn all_ranks_get_the_same_memory_and_bells() {
        let segments: Vec<_> =
            meet(&[SECRET; 5], Duration::from_secs(10)).into_iter().map(Result::unwrap).collect();
        for (index, segment) in (0..).zip(&segments) {
            assert_eq!((segment.local_index(), segment.local_size()), (index, 5));
            assert_eq!(segment.pids(), [std::process::id(); 5]);
            segment.sleeping(index).store(u64::from(index) + 10, Ordering::SeqCst);
        }
        for segment in &segments {
            for index in 0..5 {
                let value = segment.sleeping(index).load(Ordering::SeqCst);
                assert_eq!(value, u64::from(index) + 10);
            }
        }
        bell::ring(segments[1].bell(4));
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(segments[4].bell(4), &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 1);
    }

    #[test]
    fn a_host_of_one_rank_needs_nobody() {
        let (_, host) = SegmentHost::bind().unwrap();
        assert_eq!(host.serve(1, &SECRET, soon()).unwrap().local_size(), 1);
    }

    #[test]
    fn nobody_gets_the_segment_if_one_has_the_wrong_secret() {
        let results = meet(&[SECRET, SECRET, [8; 32]], Duration::from_millis(300));
        let reasons: Vec<_> = results.into_iter().map(|r| r.unwrap_err().reason).collect();
        assert_eq!(reasons[0], "local ranks 2 did not join the segment in time");
        // Its deadline is the leader's, so a good member may see either first.
        let gave_up = |reason: &str| reason.contains("closed") || reason.contains("deadline");
        assert!(gave_up(&reasons[1]), "{}", reasons[1]);
        assert!(reasons[2].contains("closed"), "{}", reasons[2]);
    }

    #[test]
    fn a_leader_without_the_secret_is_not_believed() {
        let (name, host) = SegmentHost::bind().unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = loop {
                    if let Some(pending) = host.challenge() {
                        break pending.socket;
                    }
                    std::thread::yield_now();
                };
                let join = socket::receive(&socket, MESSAGE_MAX_BYTES, 1, soon()).unwrap();
                assert_eq!(join.bytes.len(), JOIN_BYTES);
                let layout = Layout::fit(2, u64::MAX).unwrap();
                let file = backing::create(layout.total_bytes()).unwrap();
                let nonces = (join.bytes[..NONCE_BYTES].try_into().unwrap(), [0; NONCE_BYTES]);
                let [bell, own] = [bell::create().unwrap(), bell::create().unwrap()];
                let members = [Member { socket, bell, pid: 1, nonces }];
                welcome(&members, layout, &[1, 2], &file, &own, &[9; 32], soon()).unwrap();
            });
            NodeSegment::join(&name, 1, 2, &SECRET, soon()).unwrap_err()
        });
        assert_eq!(error.reason, "the leader of this host does not know the job's secret");
    }

    #[test]
    fn strangers_hold_nobody_up() {
        let (name, host) = SegmentHost::bind().unwrap();
        let mute = socket::connect(&name, soon()).unwrap();
        let babbler = socket::connect(&name, soon()).unwrap();
        socket::send(&babbler, &[1; 300], &[], soon()).unwrap();
        std::thread::scope(|scope| {
            let member = scope.spawn(|| NodeSegment::join(&name, 1, 2, &SECRET, soon()));
            host.serve(2, &SECRET, soon()).unwrap();
            member.join().unwrap().unwrap();
        });
        drop(mute);
    }

    #[test]
    fn waits_end_at_the_deadline() {
        let (name, host) = SegmentHost::bind().unwrap();
        let shortly = crate::time::now() + Duration::from_millis(100);
        let error = NodeSegment::join(&name, 1, 2, &SECRET, shortly).unwrap_err();
        assert!(error.reason.contains("deadline"), "{error}");
        drop(host);
        let error = NodeSegment::join(&name, 1, 2, &SECRET, soon()).unwrap_err();
        assert!(error.reason.contains("connect"), "{error}");
    }
}
