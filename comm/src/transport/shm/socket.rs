//! Unix sockets that keep messages whole and carry descriptors, with deadlines.
//!
//! Owns the system calls of the handshake; knows nothing of what the messages mean.

use super::ShmUnavailable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    UCred, accept_with, bind, listen as listen_on, recvmsg, sendmsg, socket_with,
};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use syncline_proto::time::Instant;

/// Descriptors of one message, at most: the kernel's own limit is 253.
const FDS_MAX: usize = 128;

/// A message.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Listens under an abstract name.
pub(super) fn listen(name: &str) -> Result<OwnedFd, ShmUnavailable> {
    let socket = new_socket()?;
    bind(&socket, &address(name)?).map_err(|error| failed("bind", error))?;
    listen_on(&socket, 128).map_err(|error| failed("listen", error))?;
    Ok(socket)
}

/// The next connection; `None` if there is none (any more).
pub(super) fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
}

/// Connects to an abstract name.
pub(super) fn connect(name: &str, deadline: Instant) -> Result<OwnedFd, ShmUnavailable> {
    let socket = new_socket()?;
    let address = address(name)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            // The leader's queue is full: it is there, and busy.
            Err(Errno::AGAIN | Errno::INTR) if crate::time::now() < deadline => {
                std::thread::yield_now();
            }
            Err(error) => return Err(failed("connect", error)),
        }
    }
}

/// Who is at the other end.
pub(super) fn credentials(socket: &OwnedFd) -> Result<UCred, Errno> {
    socket_peercred(socket)
}

/// Sends one message with descriptors.
pub(super) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(), ShmUnavailable> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            let reason = format!("{} descriptors do not fit a message", fds.len());
            return Err(ShmUnavailable { reason });
        }
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline)?,
            Err(error) => return Err(failed("send", error)),
        }
    }
}

/// Receives one message of at most `bytes_max` bytes and `fds_max` descriptors.
pub(super) fn receive(
    socket: &OwnedFd,
    bytes_max: usize,
    fds_max: usize,
    deadline: Instant,
) -> Result<Received, ShmUnavailable> {
    let mut bytes = vec![0; bytes_max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait(socket, PollFlags::IN, deadline)?;
                continue;
            }
            Err(error) => return Err(failed("receive", error)),
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        if message.bytes == 0 {
            let reason = "the segment's socket was closed by the other end".to_owned();
            return Err(ShmUnavailable { reason });
        }
        let truncated = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if message.flags.intersects(truncated) || fds.len() > fds_max {
            let reason = "a message arrived cut off (see ulimit -n), or too long".to_owned();
            return Err(ShmUnavailable { reason });
        }
        bytes.truncate(message.bytes);
        return Ok(Received { bytes, fds });
    }
}

/// Which of the sockets can be read; `None` if none could by the deadline.
pub(super) fn wait_readable(
    sockets: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<Option<Vec<bool>>, ShmUnavailable> {
    let mut fds: Vec<_> = sockets.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let any = poll_until(&mut fds, deadline)?;
    Ok(any.then(|| fds.iter().map(|fd| !fd.revents().is_empty()).collect()))
}

fn wait(socket: &OwnedFd, flags: PollFlags, deadline: Instant) -> Result<(), ShmUnavailable> {
    if poll_until(&mut [PollFd::new(socket, flags)], deadline)? {
        return Ok(());
    }
    Err(ShmUnavailable { reason: "the deadline passed at the segment's socket".to_owned() })
}

/// Whether any became ready by the deadline.
fn poll_until(fds: &mut [PollFd<'_>], deadline: Instant) -> Result<bool, ShmUnavailable> {
    loop {
        let left = deadline.since(crate::time::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(fds, Some(&timeout)) {
            Ok(0) if !left.is_zero() => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed("poll", error)),
        }
    }
}

fn new_socket() -> Result<OwnedFd, ShmUnavailable> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| failed("make", error))
}

fn address(name: &str) -> Result<SocketAddrUnix, ShmUnavailable> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|error| failed("name", error))
}

fn failed(what: &str, error: Errno) -> ShmUnavailable {
    ShmUnavailable { reason: format!("{what} the segment's socket: {error}") }
}

/// Every descriptor of a message must fit.
const _: () = assert!((super::MAX_LOCAL_SIZE as usize) < FDS_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn pair() -> (OwnedFd, OwnedFd) {
        let id: u64 = getrandom::u64().unwrap();
        let name = format!("syncline-test-{id:x}");
        let listener = listen(&name).unwrap();
        let near = connect(&name, crate::time::now()).unwrap();
        (near, accept(&listener).unwrap())
    }

    #[test]
    fn messages_keep_their_bounds_and_descriptors() {
        let (near, far) = pair();
        let soon = crate::time::now() + Duration::from_secs(5);
        let fds: Vec<_> = (0..FDS_MAX).map(|_| near.as_fd()).collect();
        send(&near, b"one", &fds, soon).unwrap();
        send(&near, b"three", &[], soon).unwrap();
        let first = receive(&far, 16, FDS_MAX, soon).unwrap();
        assert_eq!((first.bytes.as_slice(), first.fds.len()), (&b"one"[..], FDS_MAX));
        assert!(receive(&far, 4, 0, soon).unwrap_err().reason.contains("cut off"));
        send(&near, b"x", &fds[..2], soon).unwrap();
        assert!(receive(&far, 4, 1, soon).is_err());
    }

    #[test]
    fn waits_are_bounded_and_ends_are_seen() {
        let (near, far) = pair();
        let shortly = crate::time::now() + Duration::from_millis(30);
        assert!(receive(&far, 4, 0, shortly).unwrap_err().reason.contains("deadline"));
        assert_eq!(wait_readable(&[far.as_fd()], shortly).unwrap(), None);
        drop(near);
        let soon = crate::time::now() + Duration::from_secs(5);
        assert_eq!(wait_readable(&[far.as_fd()], soon).unwrap(), Some(vec![true]));
        assert!(receive(&far, 4, 0, soon).unwrap_err().reason.contains("closed"));
    }
}
