//! What can be said of one rank's plan alone.

use super::{Flaw, Job, Place};
use crate::call::CollectiveKind;
use crate::collective::plan::{Area, Span, Step};
use crate::id::{MessageId, Rank};
use alloc::vec::Vec;

/// Checks every step and every round of a rank.
pub(super) fn check(job: &Job<'_>, rank: Rank) -> Result<(), Flaw> {
    for (at, step) in job.places(rank) {
        check_step(job, at, step)?;
    }
    for (round, steps) in job.plan(rank).rounds.iter().enumerate() {
        check_aliasing(rank, round, &steps.steps)?;
    }
    Ok(())
}

fn check_step(job: &Job<'_>, at: Place, step: &Step) -> Result<(), Flaw> {
    match *step {
        Step::Copy { source, target } | Step::Reduce { source, target } => {
            check_span(job, at, source)?;
            check_target(job, at, target)?;
            if source.len != target.len {
                let (sent, received) = (source.len, target.len);
                return Err(Flaw::LengthMismatch { source: at, target: at, sent, received });
            }
            if overlap(source, target) {
                return Err(Flaw::Aliased { recv: at, with: at.step });
            }
            Ok(())
        }
        Step::ReduceMany { before, own, after, target } => {
            for span in [before, own, after] {
                check_span(job, at, span)?;
            }
            check_target(job, at, target)?;
            check_parts(at, [before, own, after], target)
        }
        Step::Recv { peer, tag, span, .. } => {
            check_peer(job, at, peer, tag)?;
            check_target(job, at, span)
        }
        Step::Send { peer, tag, span } => {
            check_peer(job, at, peer, tag)?;
            check_span(job, at, span)
        }
    }
}

/// `own` is one part, the others any number; only `own` may be the target.
fn check_parts(at: Place, sources: [Span; 3], target: Span) -> Result<(), Flaw> {
    let [before, own, after] = sources;
    let is_whole = |span: Span| span.len.checked_rem(target.len).unwrap_or(span.len) == 0;
    let fits = |span: Span| if span == own { span.len == target.len } else { is_whole(span) };
    if let Some(Span { len: sent, .. }) = sources.into_iter().find(|span| !fits(*span)) {
        return Err(Flaw::LengthMismatch { source: at, target: at, sent, received: target.len });
    }
    let hit = |span| overlap(span, target);
    if hit(before) || hit(after) || (hit(own) && own != target) {
        return Err(Flaw::Aliased { recv: at, with: at.step });
    }
    Ok(())
}

fn check_peer(job: &Job<'_>, at: Place, peer: Rank, tag: u32) -> Result<(), Flaw> {
    if peer == at.rank || peer >= job.world_size() {
        return Err(Flaw::PeerInvalid { at });
    }
    if tag & MessageId::POINT_TO_POINT != 0 {
        return Err(Flaw::TagReserved { at });
    }
    Ok(())
}

fn check_target(job: &Job<'_>, at: Place, span: Span) -> Result<(), Flaw> {
    check_span(job, at, span)?;
    if span.area == Area::Input {
        return Err(Flaw::InputWritten { at });
    }
    Ok(())
}

fn check_span(job: &Job<'_>, at: Place, span: Span) -> Result<(), Flaw> {
    let len = job.area_len(at.rank, span.area);
    if span.offset.checked_add(span.len).is_some_and(|end| end <= len) {
        return Ok(());
    }
    let is_rooted = matches!(job.kind, CollectiveKind::Gather | CollectiveKind::Reduce);
    let is_root = job.shapes[at.rank as usize].root == at.rank;
    if span.area == Area::Output && is_rooted && !is_root {
        return Err(Flaw::OutputOfNonRoot { at });
    }
    Err(Flaw::OutOfBounds { at, area: span.area, len })
}

/// A use of memory in a round.
#[derive(Clone, Copy)]
struct Use {
    step: usize,
    span: Span,
    is_recv: bool,
}

fn check_aliasing(rank: Rank, round: usize, steps: &[Step]) -> Result<(), Flaw> {
    let mut uses = Vec::with_capacity(steps.len());
    for (step, what) in steps.iter().enumerate() {
        let mut push = |span: Span, is_recv| {
            if span.len > 0 {
                uses.push(Use { step, span, is_recv });
            }
        };
        match *what {
            Step::Copy { source, target } | Step::Reduce { source, target } => {
                push(source, false);
                push(target, false);
            }
            Step::ReduceMany { before, own, after, target } => {
                [before, own, after, target].into_iter().for_each(|span| push(span, false));
            }
            Step::Recv { span, .. } => push(span, true),
            Step::Send { span, .. } => push(span, false),
        }
    }
    uses.sort_unstable_by_key(|u| (u.span.area, u.span.offset, u.step));
    // Of all uses so far, those that reach farthest: any, and receives only.
    let (mut any, mut recv): (Option<Use>, Option<Use>) = (None, None);
    for now in uses {
        let earlier = if now.is_recv { any } else { recv };
        if let Some(other) = earlier.filter(|other| overlap(other.span, now.span)) {
            let (recv, with) = if now.is_recv { (now, other) } else { (other, now) };
            let recv = Place { rank, round, step: recv.step };
            return Err(Flaw::Aliased { recv, with: with.step });
        }
        any = Some(farther(any, now));
        if now.is_recv {
            recv = Some(farther(recv, now));
        }
    }
    Ok(())
}

fn farther(other: Option<Use>, now: Use) -> Use {
    let end = |u: &Use| (u.span.area, u.span.offset + u.span.len);
    other.filter(|other| end(other) > end(&now)).unwrap_or(now)
}

/// Whether two spans share an element; an empty one shares none, wherever it lies.
fn overlap(a: Span, b: Span) -> bool {
    a.len > 0 && b.len > 0 && a.overlaps(&b)
}
