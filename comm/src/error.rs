//! The one error type: kind to act on, text to read.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use syncline_proto::call::Call;
use syncline_proto::fault::{Fault, FaultKind};
use syncline_proto::id::Rank;

/// What a caller may want to act on. C status codes and Python exceptions map one to one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A rank ended the job on purpose.
    Aborted,
    /// Settings that cannot work, found before anything starts.
    Config,
    /// Ranks made different calls at the same place.
    ContractMismatch,
    /// A bug in this library.
    Internal,
    /// This call's arguments cannot be right; nothing was sent, the communicator is unharmed.
    InvalidArgument,
    /// A rank's process or host is gone, or has left the job.
    PeerLost,
    /// A peer sent what the protocol does not allow.
    Protocol,
    /// The operating system refused memory, descriptors or ports.
    ResourceExhausted,
    /// The deadline passed.
    Timeout,
    /// A transport failed for another reason than a peer's end.
    Transport,
    /// Not possible on this host or in this build.
    Unsupported,
}

impl From<FaultKind> for ErrorKind {
    fn from(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Aborted => Self::Aborted,
            FaultKind::ContractMismatch => Self::ContractMismatch,
            FaultKind::PeerLost => Self::PeerLost,
            FaultKind::Protocol => Self::Protocol,
            FaultKind::Timeout => Self::Timeout,
            FaultKind::Transport => Self::Transport,
        }
    }
}

/// Result of every fallible call.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, where, and what to do about it.
///
/// After any error but [`ErrorKind::InvalidArgument`] the communicator, and every communicator of
/// the same job in this process, is finished: further calls return the same first cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    rank: Option<Rank>,
    call: Option<Call>,
    fault: Option<Arc<Fault>>,
    peer: Option<String>,
    hint: Option<&'static str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a message, in lower case, cause first.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            rank: None,
            call: None,
            fault: None,
            peer: None,
            hint: None,
            source: None,
        }))
    }

    /// The job's first cause, as this rank's call `call` met it.
    pub(crate) fn from_fault(rank: Rank, call: Option<Call>, fault: Arc<Fault>) -> Self {
        let mut error = Self::new(fault.kind.into(), fault.to_string());
        error.0.rank = Some(rank);
        error.0.call = call;
        error.0.hint = match fault.kind {
            FaultKind::ContractMismatch => {
                Some("every rank must make the same calls, in the same order, with equal counts")
            }
            FaultKind::Timeout => {
                Some("raise SYNCLINE_TIMEOUT_S if a rank may really be this late")
            }
            _ => None,
        };
        error.0.fault = Some(fault);
        error
    }

    /// Adds what was being tried.
    #[must_use]
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Adds what to do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: &'static str) -> Self {
        self.0.hint = Some(hint);
        self
    }

    /// Adds who the peer at fault is: process, host, address.
    #[must_use]
    pub(crate) fn peer(mut self, description: String) -> Self {
        self.0.peer = Some(description);
        self
    }

    /// Adds the error underneath.
    #[must_use]
    pub(crate) fn source_error(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// An operating-system error met while doing `what`.
    pub(crate) fn io(what: impl fmt::Display, error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::TimedOut => ErrorKind::Timeout,
            Io::OutOfMemory | Io::StorageFull => ErrorKind::ResourceExhausted,
            _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                ErrorKind::ResourceExhausted
            }
            _ => ErrorKind::Transport,
        };
        Self::new(kind, format!("{what}: {error}")).source_error(error)
    }

    /// The class.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The rank that returned this error, once it has one.
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The call that returned it.
    pub fn call(&self) -> Option<&Call> {
        self.0.call.as_ref()
    }

    /// The job's first cause, for errors that came from another place than this call.
    pub fn fault(&self) -> Option<&Fault> {
        self.0.fault.as_deref()
    }

    /// Whether a rank is gone.
    pub fn is_peer_lost(&self) -> bool {
        self.0.kind == ErrorKind::PeerLost
    }

    /// Whether the deadline passed.
    pub fn is_timeout(&self) -> bool {
        self.0.kind == ErrorKind::Timeout
    }

    /// Whether ranks made different calls.
    pub fn is_contract_mismatch(&self) -> bool {
        self.0.kind == ErrorKind::ContractMismatch
    }

    /// Whether this host or build cannot do it.
    pub fn is_unsupported(&self) -> bool {
        self.0.kind == ErrorKind::Unsupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if let Some(rank) = inner.rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some(call) = &inner.call {
            write!(f, "{call}: ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(peer) = &inner.peer {
            write!(f, "; {peer}")?;
        }
        if let Some(hint) = inner.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_proto::call::Fingerprint;
    use syncline_proto::id::CommId;

    #[test]
    fn b87_an_error_names_rank_call_peer_and_cause() {
        let fingerprint =
            Fingerprint { kind: 2, dtype: 2, op: 4, algorithm: 6, root: u32::MAX, count: 10 };
        let call = Call { comm: CommId::WORLD, seq: 12, fingerprint };
        let detail = "tcp 127.0.0.1:4 -> 127.0.0.1:5: connection reset by peer (os error 104)";
        let fault = Fault::new(FaultKind::PeerLost, 2, detail).with_culprit(5);
        let error = Error::from_fault(3, Some(call), Arc::new(fault)).peer("rank 5 is x".into());
        let text = error.to_string();
        for part in ["rank 3: all_reduce(count 10", "#12 on world", "rank 5 is lost", detail] {
            assert!(text.contains(part), "{text}");
        }
        assert!(error.is_peer_lost() && !error.is_timeout());
    }
}
