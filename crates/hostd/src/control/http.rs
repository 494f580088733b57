//! As much of HTTP/1.1 as Prometheus, `curl` and the web page need: a connection carries one
//! request and one answer. Everything has a limit, and a client that is slow wastes its own time.
//! What is answered is [`web`](super::web)'s.

use crate::stream::Stream;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request, headers included, without its body, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Most headers of a request; one with more is answered by 400 Bad Request.
const HEADERS_MAX: usize = 64;
/// A request has to be there by then, and each write of the answer to be taken.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// The whole answer has to be taken by then.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Bytes of an answer that are written at once.
const CHUNK_BYTES: usize = 256 << 10;

/// The method of a request, by the role of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    Head,
    Post,
    Other,
}

/// A request as far as it matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HttpRequest {
    pub method: Method,
    /// Without what follows a question mark.
    pub path: String,
    /// Text behind the question mark; empty if there is none.
    pub query: String,
    /// Values of headers. One that comes twice is refused.
    pub host: Option<String>,
    pub origin: Option<String>,
    pub authorization: Option<String>,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
}

/// The body of an answer.
pub(super) enum Body {
    Static(&'static [u8]),
    Shared(Arc<String>),
    Text(String),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Static(bytes) => bytes,
            Body::Shared(text) => text.as_bytes(),
            Body::Text(text) => text.as_bytes(),
        }
    }
}

/// Status, headers and body of an answer; `send` adds its length.
pub(super) struct HttpAnswer {
    /// Code and reason phrase, such as `400 Bad Request`.
    pub status: &'static str,
    /// Value of the header Content-Type.
    pub kind: &'static str,
    /// More headers, each line with its end.
    pub headers: &'static [&'static str],
    pub body: Body,
}

impl HttpAnswer {
    /// An answer of plain text: `text` and a line feed.
    pub fn text(status: &'static str, text: &str) -> HttpAnswer {
        let body = Body::Text(format!("{text}\n"));
        HttpAnswer { status, kind: "text/plain; charset=utf-8", headers: &[], body }
    }
}

/// Answer the request that comes by a stream, and hang up.
///
/// # Errors
/// The connection broke, or the client was too slow.
pub(super) fn exchange_by(
    stream: &Stream,
    answer: impl FnOnce(&HttpRequest) -> HttpAnswer,
) -> io::Result<()> {
    stream.set_timeouts(Some(REQUEST_TIME), Some(REQUEST_TIME))?;
    exchange(&mut BufReader::new(stream), &mut &*stream, answer)
}

/// Answer the request that `input` begins with.
pub(super) fn exchange(
    input: &mut dyn Read,
    out: &mut dyn Write,
    answer: impl FnOnce(&HttpRequest) -> HttpAnswer,
) -> io::Result<()> {
    match read_request(input)? {
        Ok(request) => send(out, &answer(&request), request.method == Method::Head),
        Err(Wrong(status, text)) => send(out, &HttpAnswer::text(status, text), false),
    }
}

fn send(out: &mut dyn Write, answer: &HttpAnswer, head: bool) -> io::Result<()> {
    let HttpAnswer { status, kind, headers, body } = answer;
    let (began, length) = (Instant::now(), body.bytes().len());
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         {}Connection: close\r\n\r\n",
        headers.concat()
    );
    out.write_all(text.as_bytes())?;
    let mut rest = if head { &[] } else { body.bytes() };
    while !rest.is_empty() {
        // Each write has its time; a client that takes little at a time has this one.
        if began.elapsed() > ANSWER_TIME {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match out.write(&rest[..rest.len().min(CHUNK_BYTES)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    out.flush()
}

/// Why a request is wrong: status and sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wrong(&'static str, &'static str);

const BAD: &str = "400 Bad Request";
const TOO_LARGE: &str = "413 Content Too Large";

/// Read a request to its end, or say what is wrong with it.
fn read_request(input: &mut dyn Read) -> io::Result<Result<HttpRequest, Wrong>> {
    let began = Instant::now();
    let mut bytes = Vec::new();
    // The head of the request, once all of it is there, and how many bytes of body belong to it.
    let mut read: Option<(HttpRequest, usize)> = None;
    loop {
        match read.take() {
            Some((request, length)) if bytes.len() >= length => {
                bytes.truncate(length);
                return Ok(Ok(HttpRequest { body: bytes, ..request }));
            }
            None if !bytes.is_empty() => match parse_head(&bytes) {
                Ok(Some((request, head_length, length))) => {
                    bytes.drain(..head_length);
                    read = Some((request, length));
                    continue;
                }
                Ok(None) if bytes.len() > HEAD_BYTES_MAX => {
                    return Ok(Err(Wrong(BAD, "a request of more than 16 KiB")));
                }
                Ok(None) => {}
                Err(wrong) => return Ok(Err(wrong)),
            },
            waiting => read = waiting,
        }
        if began.elapsed() > REQUEST_TIME {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut chunk = [0; 1024];
        match input.read(&mut chunk) {
            Ok(0) => return Ok(Err(Wrong(BAD, "the request ends in the middle"))),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// A request without its body, the length of its head, and that of its body; `None` as long as
/// its head has no end.
fn parse_head(bytes: &[u8]) -> Result<Option<(HttpRequest, usize, usize)>, Wrong> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head_length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Wrong(BAD, "not a request of HTTP/1.1")),
    };
    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let (authority, path) = parts_of_target(path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let value = |name: &str| -> Result<Option<String>, Wrong> {
        let mut values = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
        let value = values.next().map(|h| String::from_utf8(h.value.to_vec())).transpose();
        match (value, values.next()) {
            (Ok(value), None) => Ok(value),
            _ => Err(Wrong(BAD, "a header that comes twice, or is no text")),
        }
    };
    if value("transfer-encoding")?.is_some() {
        return Err(Wrong("411 Length Required", "a body needs a Content-Length"));
    }
    let length = match value("content-length")? {
        None => 0,
        // `parse` alone would take a sign.
        Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
            text.parse().map_err(|_| Wrong(BAD, "a Content-Length that is no number"))?
        }
        Some(_) => return Err(Wrong(BAD, "a Content-Length that is no number")),
    };
    if length > BODY_BYTES_MAX {
        return Err(Wrong(TOO_LARGE, "a body of more than 16 KiB"));
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => Method::Other,
    };
    let request = HttpRequest {
        method,
        path: path.to_string(),
        query: query.to_string(),
        // A host in the target goes before that of the header (RFC 9112, 3.2.2).
        host: value("host")?.map(|host| authority.map_or(host, str::to_string)),
        origin: value("origin")?,
        authorization: value("authorization")?,
        content_type: value("content-type")?,
        body: Vec::new(),
    };
    Ok(Some((request, head_length, length)))
}

/// The host and port that a request's target names, if it does, and its path (RFC 9112, 3.2).
fn parts_of_target(target: &str) -> (Option<&str>, &str) {
    let Some((scheme, rest)) = target.split_once("://") else { return (None, target) };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return (None, target);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let path = if rest[end..].starts_with('/') { &rest[end..] } else { "/" };
    (Some(&rest[..end]), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Method, String), &'static str> {
        let asked = read_request(&mut text.as_bytes()).unwrap();
        asked.map(|a| (a.method, a.path)).map_err(|wrong| wrong.1)
    }

    #[test]
    fn requests() {
        let get = read("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(get, Ok((Method::Get, "/metrics".into())));
        assert_eq!(read("POST / HTTP/1.0\r\n\r\n"), Ok((Method::Post, "/".into())));
        let whole = "GET http://kvm1:9187/metrics?x HTTP/1.1\r\nHost: kvm2\r\n\r\n";
        assert_eq!(read(whole), Ok((Method::Get, "/metrics".into())));
        let asked = read_request(&mut whole.as_bytes()).unwrap();
        assert_eq!(asked.ok().and_then(|a| a.host).as_deref(), Some("kvm1:9187"));
        for (target, path) in [("http://a", "/"), ("HTTP://a?x", "/"), ("/a://b", "/a://b")] {
            assert_eq!(parts_of_target(target).1, path);
        }
        assert_eq!(read("PUT / HTTP/1.0\r\n\r\n"), Ok((Method::Other, "/".into())));
        assert_eq!(read("GET /metrics HTTP/1.1\r\nHost"), Err("the request ends in the middle"));
        assert_eq!(read("GET\0\r\n\r\n"), Err("not a request of HTTP/1.1"));
        let long = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(1 << 20));
        assert_eq!(read(&long), Err("a request of more than 16 KiB"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(read(&many), Err("not a request of HTTP/1.1"));
    }

    #[test]
    fn a_body_is_as_long_as_it_says() {
        let post = |headers: &str, body: &str| {
            let text = format!("POST /api/weight HTTP/1.1\r\n{headers}\r\n{body}");
            let asked = read_request(&mut text.as_bytes()).unwrap();
            asked.map(|a| String::from_utf8(a.body).unwrap()).map_err(|wrong| wrong.1)
        };
        assert_eq!(post("Content-Length: 2\r\n", "{}"), Ok("{}".into()));
        assert_eq!(post("content-length: 2\r\n", "{}GET / HTTP/1.1"), Ok("{}".into()));
        assert_eq!(post("", "{}"), Ok(String::new()));
        let long = "x".repeat(BODY_BYTES_MAX);
        assert_eq!(post(&format!("Content-Length: {}\r\n", long.len()), &long), Ok(long.clone()));
        let one_more = format!("Content-Length: {}\r\n", long.len() + 1);
        assert_eq!(post(&one_more, &long), Err("a body of more than 16 KiB"));
        assert_eq!(post("Content-Length: 3\r\n", "{}"), Err("the request ends in the middle"));
        for wrong in ["+2", "-2", "2,2", "0x2", "99999999999999999999999"] {
            let answer = post(&format!("Content-Length: {wrong}\r\n"), "{}");
            assert_eq!(answer, Err("a Content-Length that is no number"), "{wrong}");
        }
        let twice = post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}");
        assert_eq!(twice, Err("a header that comes twice, or is no text"));
        let chunked = post("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n");
        assert_eq!(chunked, Err("a body needs a Content-Length"));
    }
}
