//! Answers over HTTP: metrics, and the web page.

use super::{FORBIDDEN, Page, answer, foreign_host};
use crate::control::http::{self, Body, HttpAnswer, HttpRequest, Method};
use crate::host::Host;
use crate::stream::Stream;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// HTTP content type of metrics.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answer one request for metrics and hang up. `asked` is called when the request is there.
///
/// # Errors
/// The connection broke, or the client was too slow.
pub fn serve_metrics(host: &Host, stream: &Stream, asked: impl FnOnce()) -> io::Result<()> {
    http::exchange_by(stream, |request| {
        asked();
        let none = || HttpAnswer::text("404 Not Found", "There is /metrics only.");
        answer_metrics(host, request).unwrap_or_else(none)
    })
}

/// Answer one request for the web page, or by it, and hang up. `asked` is called when the request is
/// there.
///
/// # Errors
/// The connection broke, or the client was too slow.
pub fn serve_web(
    host: &Arc<Host>,
    page: &Page,
    stream: &Stream,
    asked: impl FnOnce(),
) -> io::Result<()> {
    http::exchange_by(stream, |request| {
        asked();
        answer(host, page, request)
    })
}

/// Answer the request that a client of the control socket begins with: metrics, or the page.
pub fn serve_control(
    host: &Arc<Host>,
    page: &Page,
    input: &mut dyn Read,
    out: &mut dyn Write,
) -> io::Result<()> {
    http::exchange(input, out, |request| {
        answer_metrics(host, request).unwrap_or_else(|| answer(host, page, request))
    })
}

/// The answer to a request for `/metrics`; `None` if it is for something else.
fn answer_metrics(host: &Host, request: &HttpRequest) -> Option<HttpAnswer> {
    if request.path != "/metrics" {
        return None;
    }
    if let Some(text) = foreign_host(request, &host.config().allow_host) {
        return Some(HttpAnswer::text(FORBIDDEN, &text));
    }
    Some(match request.method {
        Method::Get | Method::Head => HttpAnswer {
            status: "200 OK",
            kind: METRICS_TYPE,
            headers: &[],
            body: Body::Shared(host.recent_metrics()),
        },
        _ => HttpAnswer::text("405 Method Not Allowed", "GET /metrics is all."),
    })
}
