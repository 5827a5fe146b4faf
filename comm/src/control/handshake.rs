//! Who may come in: both ends prove that they know the job's secret before anything else.
//!
//! ```text
//!   connecting side                         accepting side
//!   Hello {who, nonce a}             ─▶
//!                                    ◀─     Challenge {nonce b, proof over a, b, Hello}
//!   Answer {proof over b, a, Hello}  ─▶
//!                                    ◀─     Verdict {Ok or why not}
//! ```
//! Proofs are HMAC-SHA256 (RFC 2104) under the secret, labelled by role. Four messages of at most
//! 4 KiB, each bounded by the deadline; no other byte of a stranger is read.

use crate::config::JobSecret;
use crate::error::{Error, ErrorKind, Result};
use bincode::{Decode, Encode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use syncline_proto::time::Instant;
use syncline_proto::wire::{decode_control, encode_control};

const MAGIC: u32 = 0x5359_4e43;
const VERSION: u8 = 1;
const MESSAGE_MAX_BYTES: usize = 4096;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) enum Purpose {
    /// A member's stream to the hub.
    Control,
    /// Training data, connection number `rail` of its pair.
    Data {
        /// Counted from 0.
        rail: u32,
    },
}

/// Who comes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) struct Hello {
    magic: u32,
    version: u8,
    /// For what.
    pub(crate) purpose: Purpose,
    /// World rank.
    pub(crate) rank: u32,
    /// For whom: the rank that should be listening.
    pub(crate) target: u32,
    /// Settings that all ranks must have alike.
    pub(crate) agreement: String,
    nonce: [u8; 16],
}

impl Hello {
    pub(crate) fn new(purpose: Purpose, rank: u32, target: u32, agreement: String) -> Self {
        Self { magic: MAGIC, version: VERSION, purpose, rank, target, agreement, nonce: nonce() }
    }
}

#[derive(Encode, Decode)]
struct Challenge {
    nonce: [u8; 16],
    proof: [u8; 32],
}

#[derive(Encode, Decode)]
struct Answer {
    proof: [u8; 32],
}

/// `Err` is worth another try only if the listener may be another process by then.
#[derive(Encode, Decode)]
struct Verdict(core::result::Result<(), String>);

/// Introduces this process; returns when it has been let in.
pub(crate) fn introduce(
    stream: &mut TcpStream,
    hello: &Hello,
    secret: &JobSecret,
    deadline: Instant,
) -> Result<()> {
    send(stream, hello, deadline)?;
    let challenge: Challenge = receive(stream, deadline)?;
    let expected = proof(secret, b"accept", &hello.nonce, &challenge.nonce, hello)?;
    if !same(&expected, &challenge.proof) {
        return Err(Error::new(
            ErrorKind::Protocol,
            "the process that listens there does not know this job's secret",
        )
        .hint("another job may be using the same MASTER_PORT"));
    }
    let proof = proof(secret, b"connect", &challenge.nonce, &hello.nonce, hello)?;
    send(stream, &Answer { proof }, deadline)?;
    let Verdict(verdict) = receive(stream, deadline)?;
    verdict.map_err(|why| Error::new(ErrorKind::Config, format!("refused: {why}")))
}

/// Lets a process in if it knows the secret and `judge` agrees.
pub(crate) fn admit(
    stream: &mut TcpStream,
    secret: &JobSecret,
    deadline: Instant,
    judge: impl FnOnce(&Hello) -> core::result::Result<(), String>,
) -> Result<Hello> {
    let stranger = |text: &str| Error::new(ErrorKind::Protocol, text);
    let hello: Hello = receive(stream, deadline)?;
    if hello.magic != MAGIC {
        return Err(stranger("not a syncline process"));
    }
    if hello.version != VERSION {
        return Err(stranger("another version of syncline"));
    }
    let nonce = nonce();
    let ours = proof(secret, b"accept", &hello.nonce, &nonce, &hello)?;
    send(stream, &Challenge { nonce, proof: ours }, deadline)?;
    let answer: Answer = receive(stream, deadline)?;
    let expected = proof(secret, b"connect", &nonce, &hello.nonce, &hello)?;
    if !same(&expected, &answer.proof) {
        return Err(stranger("does not know this job's secret"));
    }
    let verdict = judge(&hello);
    let refusal = verdict.clone().err();
    send(stream, &Verdict(verdict), deadline)?;
    match refusal {
        Some(why) => {
            Err(Error::new(ErrorKind::Config, format!("rank {} refused: {why}", hello.rank)))
        }
        None => Ok(hello),
    }
}

fn nonce() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

fn proof(
    secret: &JobSecret,
    role: &[u8],
    first: &[u8; 16],
    second: &[u8; 16],
    hello: &Hello,
) -> Result<[u8; 32]> {
    let hello =
        encode_control(hello).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("a key of any length is legal");
    for part in [role, first, second, &hello] {
        mac.update(part);
    }
    Ok(mac.finalize().into_bytes().into())
}

/// Compares without telling by its time where the first difference is.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

fn send<T: Encode>(stream: &mut TcpStream, message: &T, deadline: Instant) -> Result<()> {
    let body =
        encode_control(message).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    let len = u32::try_from(body.len()).expect("control messages are small");
    let bytes = [&len.to_le_bytes()[..], &body].concat();
    let limit = stream.set_write_timeout(Some(left(deadline)?));
    limit.and_then(|()| stream.write_all(&bytes)).map_err(|e| Error::io("handshake", e))
}

fn receive<T: Decode<()>>(stream: &mut TcpStream, deadline: Instant) -> Result<T> {
    let mut read = |into: &mut [u8]| -> Result<()> {
        let limit = stream.set_read_timeout(Some(left(deadline)?));
        limit.and_then(|()| stream.read_exact(into)).map_err(|e| Error::io("handshake", e))
    };
    let mut prefix = [0; 4];
    read(&mut prefix)?;
    let len = u32::from_le_bytes(prefix) as usize;
    if len > MESSAGE_MAX_BYTES {
        return Err(Error::new(ErrorKind::Protocol, "not a syncline process"));
    }
    let mut body = vec![0; len];
    read(&mut body)?;
    decode_control(&body).map_err(|_| Error::new(ErrorKind::Protocol, "not a syncline process"))
}

fn left(deadline: Instant) -> Result<Duration> {
    let left = deadline.since(crate::time::now());
    if left.is_zero() {
        return Err(Error::new(ErrorKind::Timeout, "handshake: deadline passed"));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair(theirs: JobSecret, ours: JobSecret) -> (Result<()>, Result<Hello>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let deadline = crate::time::now() + Duration::from_secs(5);
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let hello = Hello::new(Purpose::Data { rail: 1 }, 3, 0, "same".into());
            introduce(&mut stream, &hello, &theirs, deadline)
        });
        let (mut stream, _) = listener.accept().unwrap();
        let admitted = admit(&mut stream, &ours, deadline, |hello| {
            if hello.rank == 3 { Ok(()) } else { Err("unknown rank".into()) }
        });
        drop(stream);
        (client.join().unwrap(), admitted)
    }

    #[test]
    fn b36_only_who_knows_the_secret_comes_in() {
        let (client, server) = pair(JobSecret([1; 32]), JobSecret([1; 32]));
        client.unwrap();
        assert_eq!(server.unwrap().purpose, Purpose::Data { rail: 1 });
        let (client, server) = pair(JobSecret([1; 32]), JobSecret([2; 32]));
        assert!(client.unwrap_err().to_string().contains("secret"));
        assert!(server.is_err());
    }

    #[test]
    fn strangers_are_refused_without_allocation_or_panic() {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[255; 64], &[8, 0, 0, 0, 1]] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(bytes).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let deadline = crate::time::now() + Duration::from_secs(5);
            assert!(admit(&mut stream, &JobSecret::none(), deadline, |_| Ok(())).is_err());
        }
    }
}
