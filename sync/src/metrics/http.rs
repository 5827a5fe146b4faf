//! Answers a scraper: `GET /metrics` over HTTP, one request a connection.
//!
//! Owns one thread and one listening socket. Never blocks a trainer, holds more than one request,
//! or waits for a client longer than [`PATIENCE`]. The parser of requests is the crate `httparse`.
//! Called by trainers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{CONTENT_TYPE, Metrics};
use crate::clock::{Moment, pause};

/// Longest time for one client, from the connection to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a request.
const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// Most lines of a request's head.
const MAX_HEADERS: usize = 64;
/// Failures to accept, one after the other, after which the server gives up.
const MAX_FAILURES: u32 = 16;

/// Serves the metrics of one rank until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens on `port` of 127.0.0.1; on any free one for port 0.
    ///
    /// # Errors
    /// If the port is taken, or there is no thread.
    pub fn start(port: u16, metrics: Arc<Metrics>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("syncline-metrics".to_owned()).spawn({
            let is_stopping = Arc::clone(&is_stopping);
            move || serve(&listener, &metrics, &is_stopping)
        })?;
        Ok(Self { address, is_stopping, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        // A connection wakes the thread. Where none can be made, it ends with the process.
        let is_woken = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take()
            && is_woken
        {
            // A panic there has been printed, and concerns no one here.
            let _ = thread.join();
        }
    }
}

/// From one failure to accept to the next attempt.
const PAUSE: Duration = Duration::from_millis(250);

fn serve(listener: &TcpListener, metrics: &Metrics, is_stopping: &AtomicBool) {
    let mut failures = 0;
    while failures < MAX_FAILURES {
        let stream = listener.accept();
        if is_stopping.load(Ordering::Acquire) {
            return;
        }
        match stream {
            Ok((stream, _)) => {
                failures = 0;
                // A client that goes away or is too slow has its own loss.
                let _ = answer(stream, metrics);
            }
            Err(_) => {
                // Whatever is missing, descriptors above all, may be there again.
                failures += 1;
                pause(PAUSE);
            }
        }
    }
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    BadRequest,
    Metrics,
    NotAllowed,
    NotFound,
    TooLarge,
}

impl Answer {
    fn status(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::Metrics => "200 OK",
            Self::NotAllowed => "405 Method Not Allowed",
            Self::NotFound => "404 Not Found",
            Self::TooLarge => "431 Request Header Fields Too Large",
        }
    }
}

fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let start = Moment::now();
    let answer = read_request(&mut stream, start)?;
    let (kind, body) = match answer {
        Answer::Metrics => (CONTENT_TYPE, metrics.text()),
        other => ("text/plain; charset=utf-8", format!("{}; try /metrics\n", other.status())),
    };
    let (status, len) = (answer.status(), body.len());
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n");
    let all = format!("{head}Connection: close\r\n\r\n{body}");
    let mut rest = all.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(time_left(start)?))?;
        match stream.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => rest = &rest[written..],
        }
    }
    Ok(())
}

/// Reads a request's head.
fn read_request(stream: &mut TcpStream, start: Moment) -> io::Result<Answer> {
    let mut buffer = [0; MAX_REQUEST_BYTES];
    let mut len = 0;
    loop {
        if len == buffer.len() {
            return Ok(Answer::TooLarge);
        }
        stream.set_read_timeout(Some(time_left(start)?))?;
        match stream.read(&mut buffer[len..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => len += read,
        }
        if let Some(answer) = route(&buffer[..len]) {
            return Ok(answer);
        }
    }
}

/// The answer to a request, or `None` if there is more of it to come.
fn route(request: &[u8]) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let path = parsed.path.unwrap_or_default();
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            Some(match (parsed.method, path) {
                (Some("GET"), "/metrics") => Answer::Metrics,
                (Some("GET"), _) => Answer::NotFound,
                _ => Answer::NotAllowed,
            })
        }
        Err(httparse::Error::TooManyHeaders) => Some(Answer::TooLarge),
        Err(_) => Some(Answer::BadRequest),
    }
}

fn time_left(start: Moment) -> io::Result<Duration> {
    let left = PATIENCE.saturating_sub(start.elapsed());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &MetricsServer, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn server() -> MetricsServer {
        MetricsServer::start(0, Arc::new(Metrics::new(7))).unwrap()
    }

    #[test]
    fn a_scraper_gets_the_metrics() {
        let server = server();
        assert!(server.address().ip().is_loopback());
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n",
            "GET /metrics?x=1 HTTP/1.0\r\n\r\n",
        ] {
            let text = ask(&server, request.as_bytes());
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            assert!(body.contains("syncline_loss{rank=\"7\"} 0"), "{body}");
        }
    }

    #[test]
    fn other_requests_get_their_status() {
        let server = server();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x16\x03\x01 what is this\r\n\r\n", "400"),
        ] {
            let text = ask(&server, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        }
    }

    #[test]
    fn requests_are_parsed_as_far_as_they_are_there() {
        assert_eq!(route(b""), None);
        assert_eq!(route(b"GET /metrics HTTP/1.1\r\nHost"), None);
        assert_eq!(route(b"GET /metrics HTTP/1.1\r\n\r\n"), Some(Answer::Metrics));
        assert_eq!(route(b"GET /metricsx HTTP/1.1\r\n\r\n"), Some(Answer::NotFound));
        let many = "A: b\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert_eq!(route(many.as_bytes()), Some(Answer::TooLarge));
    }

    /// As many bytes as fit, so that the server has read all of them when it closes.
    #[test]
    fn a_head_without_end_is_cut_off() {
        let server = server();
        let mut request = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        request.resize(MAX_REQUEST_BYTES, b'b');
        let text = ask(&server, &request);
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    }

    #[test]
    fn clients_that_go_away_do_not_end_it_and_a_drop_does() {
        let server = server();
        for _ in 0..2 * MAX_FAILURES {
            drop(TcpStream::connect(server.address()).unwrap());
        }
        let text = ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        let address = server.address();
        drop(server);
        assert!(TcpListener::bind(address).is_ok(), "the port is free again");
    }

    #[test]
    fn a_port_that_is_taken_is_an_error() {
        let server = server();
        let error = MetricsServer::start(server.address().port(), Arc::new(Metrics::new(0)));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
