//! The messages of OSP's parameter server.
//!
//! Owns their encoding and decoding. Never trusts a length or a kind. Called by the servers and by
//! the workers.
//!
//! Everything is `u32`: a value is the bits of its `f32`, which no copy changes. A push is two
//! messages, a head of eight words that says how long the body is, and the body; a worker's end is
//! a head alone. A reply is one message, whose length the worker knows.
//!
//! | word | head of a push | head of a reply |
//! |---|---|---|
//! | 0 | kind: 1 RS, 2 ICS, 3 done, 4 stop | kind: 5 RS, 6 ICS, 7 refusal |
//! | 1 | worker's rank | server's rank |
//! | 2, 3 | step, from 0, low word first | the same |
//! | 4 | learning rate, bits | 0 |
//! | 5, 6 | budget of all servers, bytes, low word first | 0 |
//! | 7 | words in the body | 0 |
//!
//! | then | push: body | reply, in the same message |
//! |---|---|---|
//! | RS | gradients of important slices, in order of slices | the next step's bitmap, a bit a slice; then as ICS |
//! | ICS | gradients of deferred slices | parameters of the slices pushed; moments, if they are shipped |

use crate::error::{Error, Result};

/// Words of a head.
pub const HEAD_WORDS: usize = 8;

const RS: u32 = 1;
const ICS: u32 = 2;
const DONE: u32 = 3;
const STOP: u32 = 4;
const RS_REPLY: u32 = 5;
const ICS_REPLY: u32 = 6;
const REFUSAL: u32 = 7;

/// A stage of a step's synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Important slices, which the workers wait for.
    Rs,
    /// Deferred slices, while the workers compute.
    Ics,
}

/// What a worker says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head {
    /// It pushes no more until the servers' parameters were brought together.
    Done {
        /// Who.
        worker: u32,
    },
    /// Gradients follow.
    Push(Push),
    /// The server's own rank gives up.
    Stop,
}

/// A worker's gradients of one stage of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Push {
    /// Which slices.
    pub stage: Stage,
    /// Whose.
    pub worker: u32,
    /// Steps before this one.
    pub step: u64,
    /// The same of all workers.
    pub learning_rate: f32,
    /// Bytes that may be deferred, over all servers; the same of all workers.
    pub budget: u64,
    /// Words in the body: one per element.
    pub words: u32,
}

impl Head {
    /// Its words.
    pub fn encode(self) -> [u32; HEAD_WORDS] {
        match self {
            Self::Done { worker } => [DONE, worker, 0, 0, 0, 0, 0, 0],
            Self::Push(push) => {
                let kind = if push.stage == Stage::Rs { RS } else { ICS };
                let ([low, high], [less, more]) = (halves(push.step), halves(push.budget));
                let rate = push.learning_rate.to_bits();
                [kind, push.worker, low, high, rate, less, more, push.words]
            }
            Self::Stop => [STOP, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// What the words say.
    ///
    /// # Errors
    /// [`Error::Protocol`] if they are too few or too many, or of no known kind.
    pub fn decode(words: &[u32]) -> Result<Self> {
        let [kind, worker, low, high, rate, less, more, words] = fixed(words)?;
        let stage = match kind {
            RS => Stage::Rs,
            ICS => Stage::Ics,
            DONE => return Ok(Self::Done { worker }),
            STOP => return Ok(Self::Stop),
            kind => return broken(format!("a message of unknown kind {kind} from rank {worker}")),
        };
        let learning_rate = f32::from_bits(rate);
        let (step, budget) = (whole(low, high), whole(less, more));
        Ok(Self::Push(Push { stage, worker, step, learning_rate, budget, words }))
    }
}

/// The words of a reply's head.
pub(crate) fn encode_reply(stage: Stage, server: u32, step: u64) -> [u32; HEAD_WORDS] {
    let kind = if stage == Stage::Rs { RS_REPLY } else { ICS_REPLY };
    let [low, high] = halves(step);
    [kind, server, low, high, 0, 0, 0, 0]
}

/// The words of the head of a refusal: the server has met an error and serves no more.
pub(crate) fn encode_refusal(server: u32) -> [u32; HEAD_WORDS] {
    [REFUSAL, server, 0, 0, 0, 0, 0, 0]
}

/// Whether a message in a reply's place is a refusal.
pub(crate) fn is_refusal(message: &[u32]) -> bool {
    message.first() == Some(&REFUSAL)
}

/// What follows the head of a reply, which must be this one, with `len` words to follow.
///
/// # Errors
/// [`Error::Protocol`] if it answers another push, is of another length, or a refusal.
pub(crate) fn decode_reply(
    message: &[u32],
    stage: Stage,
    server: u32,
    step: u64,
    len: usize,
) -> Result<&[u32]> {
    match message.split_first_chunk::<HEAD_WORDS>() {
        Some((head, rest)) if *head == encode_reply(stage, server, step) && rest.len() == len => {
            Ok(rest)
        }
        Some((head, _)) if *head == encode_refusal(server) => broken(format!(
            "the server on rank {server} refused a push of step {step}; that rank says whose"
        )),
        head => broken(format!(
            "rank {server} answered {stage:?} of step {step}, {len} words, by {:?} and {} words",
            head.map(|(head, _)| head),
            message.len().saturating_sub(HEAD_WORDS),
        )),
    }
}

/// Words that hold one bit for each of `count` slices.
pub(crate) fn flag_words(count: usize) -> usize {
    count.div_ceil(32)
}

/// One bit a flag, low bits first.
pub(crate) fn encode_flags(flags: &[bool]) -> impl Iterator<Item = u32> + '_ {
    let word = |flags: &[bool]| {
        flags.iter().enumerate().fold(0, |word, (bit, flag)| word | u32::from(*flag) << bit)
    };
    flags.chunks(32).map(word)
}

/// Reads flags.
pub(crate) fn decode_flags(words: &[u32], flags: &mut [bool]) {
    for (word, flags) in words.iter().zip(flags.chunks_mut(32)) {
        for (bit, flag) in flags.iter_mut().enumerate() {
            *flag = word >> bit & 1 == 1;
        }
    }
}

fn fixed(words: &[u32]) -> Result<[u32; HEAD_WORDS]> {
    let reason = || format!("a head has {HEAD_WORDS} words, not {}", words.len());
    words.try_into().map_err(|_| Error::Protocol { reason: reason() })
}

fn broken<T>(reason: String) -> Result<T> {
    Err(Error::Protocol { reason })
}

fn halves(number: u64) -> [u32; 2] {
    // Truncation is meant.
    [number as u32, (number >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_out_as_they_went_in() {
        let step = 0x1234_5678_9abc_def0;
        let push = |stage| Push {
            stage,
            worker: u32::MAX,
            step,
            learning_rate: -0.0,
            budget: !step,
            words: 7,
        };
        for head in [
            Head::Done { worker: 3 },
            Head::Push(push(Stage::Rs)),
            Head::Push(push(Stage::Ics)),
            Head::Stop,
        ] {
            assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        }
        let refused = |words: &[u32], text| {
            let error = Head::decode(words).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused(&[1; 7], "8 words, not 7");
        refused(&[1; 9], "8 words, not 9");
        refused(&[5, 4, 0, 0, 0, 0, 0, 0], "unknown kind 5 from rank 4");
    }

    #[test]
    fn a_reply_must_answer_the_push() {
        let mut message = encode_reply(Stage::Rs, 2, 9).to_vec();
        message.extend([1, 2]);
        assert_eq!(decode_reply(&message, Stage::Rs, 2, 9, 2).unwrap(), [1, 2]);
        for (stage, server, step, len) in [
            (Stage::Ics, 2, 9, 2),
            (Stage::Rs, 1, 9, 2),
            (Stage::Rs, 2, 8, 2),
            (Stage::Rs, 2, 9, 3),
        ] {
            assert!(decode_reply(&message, stage, server, step, len).is_err());
        }
        assert!(decode_reply(&message[..5], Stage::Rs, 2, 9, 0).is_err());
    }

    #[test]
    fn flags_take_a_bit_each() {
        for count in [0, 1, 31, 32, 33, 100] {
            let flags: Vec<bool> = (0..count).map(|index| index % 3 == 0).collect();
            let words: Vec<u32> = encode_flags(&flags).collect();
            assert_eq!(words.len(), flag_words(count));
            let mut found = vec![true; count];
            decode_flags(&words, &mut found);
            assert_eq!(found, flags);
        }
    }
}
