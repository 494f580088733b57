//! As much of HTTP/1.1 as Prometheus needs: `GET /metrics`.

use crate::daemon::Host;
use crate::metrics;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request, headers included, in bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Most headers.
const HEADERS_MAX: usize = 64;
/// A request has to be there by then, and each write of the answer to be taken.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// What HTTP can come in by.
pub trait Stream: Sized {
    /// Let reads and writes fail after this time.
    fn set_timeouts(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeouts(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for UnixStream {
    fn set_timeouts(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// Answer one request and hang up.
///
/// # Errors
/// The connection broke, or the client was too slow.
pub fn serve_http<S: Stream>(host: &Host, stream: S) -> io::Result<()>
where
    for<'s> &'s S: Read + Write,
{
    stream.set_timeouts(REQUEST_TIME)?;
    answer(host, &mut BufReader::new(&stream), &mut &stream)
}

/// Answer the request that `input` begins with.
pub(super) fn answer(host: &Host, input: &mut impl Read, out: &mut impl Write) -> io::Result<()> {
    let (status, kind, body, head) = match read_request(input)? {
        Ok(Asked { get: true, head, path }) if path == "/metrics" => {
            ("200 OK", metrics::CONTENT_TYPE, host.recent_metrics(|| metrics::render(host)), head)
        }
        Ok(Asked { get: true, head, .. }) => {
            ("404 Not Found", "text/plain", Arc::new("There is /metrics only.\n".into()), head)
        }
        Ok(Asked { get: false, .. }) => (
            "405 Method Not Allowed",
            "text/plain",
            Arc::new("GET /metrics is all.\n".into()),
            false,
        ),
        Err(text) => ("400 Bad Request", "text/plain", Arc::new(format!("{text}\n")), false),
    };
    let length = body.len();
    let body = if head { "" } else { body.as_str() };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A request as far as it matters.
struct Asked {
    /// GET or HEAD.
    get: bool,
    head: bool,
    path: String,
}

/// Read a request to its end, or say what is wrong with it.
fn read_request(input: &mut impl Read) -> io::Result<Result<Asked, &'static str>> {
    let began = Instant::now();
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let read = match input.read(&mut chunk) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(Err("the request ends in the middle"));
        }
        bytes.extend_from_slice(&chunk[..read]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {
                let method = request.method.unwrap_or_default();
                let path = request.path.unwrap_or_default();
                let path = path.split('?').next().unwrap_or_default().to_string();
                let head = method == "HEAD";
                return Ok(Ok(Asked { get: head || method == "GET", head, path }));
            }
            Ok(httparse::Status::Partial) if bytes.len() > REQUEST_BYTES_MAX => {
                return Ok(Err("a request of more than 16 KiB"));
            }
            Ok(httparse::Status::Partial) if began.elapsed() > REQUEST_TIME => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(httparse::Status::Partial) => {}
            Err(_) => return Ok(Err("not a request of HTTP/1.1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(bool, String), &'static str> {
        let asked = read_request(&mut text.as_bytes()).unwrap();
        asked.map(|a| (a.get, a.path))
    }

    #[test]
    fn requests() {
        let get = read("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(get, Ok((true, "/metrics".into())));
        assert_eq!(read("POST / HTTP/1.0\r\n\r\n"), Ok((false, "/".into())));
        assert_eq!(read("GET /metrics HTTP/1.1\r\nHost"), Err("the request ends in the middle"));
        assert_eq!(read("GET\0\r\n\r\n"), Err("not a request of HTTP/1.1"));
        let long = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(1 << 20));
        assert_eq!(read(&long), Err("a request of more than 16 KiB"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(read(&many), Err("not a request of HTTP/1.1"));
    }
}
