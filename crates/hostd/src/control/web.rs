//! The web page: its files, what it asks for, and what it may change. docs/web.md says how it is
//! reached and what it shows.
//!
//! | path | answer |
//! | :-- | :-- |
//! | `/`, `/app.js`, … | the page's files, which are in the program |
//! | `/api/status` | the last report, and why each disk waits |
//! | `/api/history` | what happened since: `since=SECONDS`, `whole=1`, `disk=NAME`, `brief=1` |
//! | `/api/slow` | the last slow requests: `over_ms=N`, `disk=NAME` |
//! | `POST /api/weight`, `limit`, `policy` | changes, for whoever has the token |

mod guard;
mod history;

pub use guard::{Token, TokenError};

use super::history::{History, find_disk};
use super::http::{self, Body, HttpAnswer, HttpRequest, Method};
use super::metrics::recent_metrics;
use super::recorder::Recorder;
use super::report::{self, HostReport};
use super::{Request, reasons};
use crate::config::check_host_name;
use crate::host::Host;
use crate::stream::Stream;
use history::Wanted;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Headers of all answers: nothing from elsewhere, nothing inline, in nobody's frame.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; \
    style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    X-Content-Type-Options: nosniff\r\n\
    Referrer-Policy: no-referrer\r\n\
    Cache-Control: no-cache\r\n";
/// Header of an answer to somebody without the token.
const BEARER: &str = "WWW-Authenticate: Bearer\r\n";
/// Most letters of a Host header that an answer repeats.
const SHOWN_HOST_MAX: usize = 100;
/// Requests slower than this are listed if no time is given, in milliseconds.
const SLOW_MS: f64 = 10.0;

/// State that the daemon keeps for its page.
pub struct Page {
    pub recorder: Recorder,
    /// Without one, the page changes nothing.
    pub token: Option<Token>,
}

/// A parsed request.
#[derive(PartialEq, Debug)]
enum Asked {
    File(&'static Asset),
    Status,
    History(Wanted),
    Slow { over_ms: f64, disk: Option<String> },
    Change(Request),
}

/// Why a request is refused: status and sentence.
#[derive(PartialEq, Eq, Debug)]
struct Refused(&'static str, String);

const BAD: &str = "400 Bad Request";
const FORBIDDEN: &str = "403 Forbidden";

/// The answer to a request.
fn answer(host: &Arc<Host>, page: &Page, request: &HttpRequest) -> HttpAnswer {
    let asked = match foreign_host(request, &host.config().allow_host) {
        Some(text) => Err(Refused(FORBIDDEN, text)),
        None => route(request, page.token.as_ref()),
    };
    asked.and_then(|asked| carry_out(host, page, asked)).unwrap_or_else(|Refused(status, text)| {
        let answer = json_answer(status, &json!({ "error": text }));
        match status.starts_with("401") {
            true => HttpAnswer { headers: &[HEADERS, BEARER], ..answer },
            false => answer,
        }
    })
}

fn json_answer(status: &'static str, value: &Value) -> HttpAnswer {
    HttpAnswer { status, ..ok("application/json", Body::Text(value.to_string())) }
}

fn ok(kind: &'static str, body: Body) -> HttpAnswer {
    HttpAnswer { status: "200 OK", kind, headers: &[HEADERS], body }
}

fn carry_out(host: &Arc<Host>, page: &Page, asked: Asked) -> Result<HttpAnswer, Refused> {
    let unready = |text| Refused("503 Service Unavailable", text);
    let wrong = |text| Refused(BAD, text);
    match asked {
        Asked::File(Asset { kind, bytes, .. }) => Ok(ok(kind, Body::Static(bytes))),
        Asked::Status => {
            let looked = page
                .recorder
                .look(host, |report, history| (report.clone(), why_disks_wait(report, history)));
            let (report, reasons) = looked.map_err(unready)?;
            Ok(json_answer("200 OK", &status(report, &reasons, page.token.is_some())))
        }
        Asked::History(wanted) => {
            let looked =
                page.recorder.look(host, |report, history| history::text(report, history, &wanted));
            Ok(ok("application/json", Body::Text(looked.map_err(unready)?)))
        }
        Asked::Slow { over_ms, disk } => {
            let report = report::slow(host, over_ms, disk.as_deref()).map_err(wrong)?;
            Ok(json_answer("200 OK", &json!(report)))
        }
        Asked::Change(request) => {
            let result = super::carry_out(host, request, None).map_err(wrong)?;
            Ok(json_answer("200 OK", &json!({ "result": result })))
        }
    }
}

/// Says why a request is refused that came by a name which is neither localhost nor one of the
/// `allowed`; `None` for all others.
fn foreign_host(request: &HttpRequest, allowed: &[String]) -> Option<String> {
    let host = request.host.as_deref().unwrap_or_default();
    // Every browser names the host: a question without it is a probe of HTTP/1.0, not of a page.
    if request.host.is_none() && matches!(request.method, Method::Get | Method::Head) {
        return None;
    }
    if guard::is_own_host(host, allowed) {
        return None;
    }
    let shown: String = host.escape_debug().take(SHOWN_HOST_MAX).collect();
    let name = host.split(':').next().unwrap_or_default();
    let name = if check_host_name(name).is_ok() { name } else { "NAME" };
    Some(format!(
        "the request calls this host '{shown}' (Host header); another site's page could send that \
         through a browser (DNS rebinding). Call it by its address or as localhost, or start the \
         daemon with --allow-host {name} (allow_host in its file)"
    ))
}

/// Parses a request, and checks the rights of its sender.
fn route(request: &HttpRequest, token: Option<&Token>) -> Result<Asked, Refused> {
    let refused = |status, text: &str| Err(Refused(status, text.into()));
    let change = request.path.strip_prefix("/api/").filter(|word| CHANGES.contains(word));
    match (change, request.method) {
        (None, Method::Get | Method::Head) => {}
        (None, _) => return refused("405 Method Not Allowed", "GET is all here"),
        (Some(word), Method::Post) => return change_of(word, request, token).map(Asked::Change),
        (Some(_), _) => return refused("405 Method Not Allowed", "POST is all here"),
    }
    let value = |key: &str| {
        let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    };
    let number = |key: &str, default: f64| match value(key).map(str::parse::<f64>) {
        None => Ok(default),
        Some(Ok(number)) if number.is_finite() => Ok(number),
        Some(_) => Err(Refused(BAD, format!("{key}: expected a number"))),
    };
    let is_set = |key: &str| value(key) == Some("1");
    // Names of disks have no letter that needs an escape.
    let disk = value("disk").map(str::to_string);
    match request.path.as_str() {
        "/api/status" => Ok(Asked::Status),
        "/api/history" => Ok(Asked::History(Wanted {
            since_s: number("since", 0.0)?,
            whole: is_set("whole"),
            disk,
            brief: is_set("brief"),
        })),
        "/api/slow" => Ok(Asked::Slow { over_ms: number("over_ms", SLOW_MS)?, disk }),
        path => match find_asset(path) {
            Some(asset) => Ok(Asked::File(asset)),
            None => refused("404 Not Found", "there is no such page; / is the page"),
        },
    }
}

/// Commands of the control protocol that the page may send.
const CHANGES: [&str; 3] = ["weight", "limit", "policy"];

/// A change, if whoever asks for it has the token and comes from the page itself.
fn change_of(word: &str, request: &HttpRequest, token: Option<&Token>) -> Result<Request, Refused> {
    let Some(token) = token else {
        let text = "this page is read-only; start the daemon with --web-control TOKENFILE";
        return Err(Refused(FORBIDDEN, text.into()));
    };
    let host = request.host.as_deref().unwrap_or_default();
    if request.origin.as_deref().is_some_and(|origin| !guard::is_same(origin, host)) {
        return Err(Refused(FORBIDDEN, "another page sends this (Origin header)".into()));
    }
    if !request.authorization.as_deref().is_some_and(|given| token.is_in(given)) {
        return Err(Refused("401 Unauthorized", "this needs the token of --web-control".into()));
    }
    let kind = request.content_type.as_deref().unwrap_or_default();
    if kind.split(';').next().unwrap_or_default().trim() != "application/json" {
        let text = "expected Content-Type: application/json";
        return Err(Refused("415 Unsupported Media Type", text.into()));
    }
    let body: Value = serde_json::from_slice(&request.body)
        .map_err(|e| Refused(BAD, format!("not JSON: {e}")))?;
    let Value::Object(mut body) = body else {
        return Err(Refused(BAD, "expected an object of JSON".into()));
    };
    body.insert("command".into(), word.into());
    super::parse(Value::Object(body).to_string().as_bytes()).map_err(|text| Refused(BAD, text))
}

/// Why each disk waits, by name; disks that do not are left out.
fn why_disks_wait(report: &HostReport, history: &History) -> BTreeMap<String, Vec<String>> {
    let Some(sample) = history.recent.back() else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for device in &report.devices {
        let Some(on) = sample.devices.iter().find(|d| d.name == device.name) else { continue };
        for (at, disk) in device.disks.iter().enumerate() {
            let Some(now) = find_disk(&on.disks, at, &disk.name) else { continue };
            let why = reasons::of(disk, now, on, sample.seconds());
            if !why.is_empty() {
                all.insert(disk.name.clone(), why);
            }
        }
    }
    all
}

/// The report for the page. What it has by the history is left out.
fn status(mut report: HostReport, reasons: &BTreeMap<String, Vec<String>>, control: bool) -> Value {
    for device in &mut report.devices {
        device.regions.clear();
        for disk in &mut device.disks {
            disk.responses.clear();
            disk.sockets.clear();
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "now_unix_s": now.as_secs_f64(),
        "control": control,
        "reasons": reasons,
        "report": report,
    })
}

// The page's files, in the program: `share/web`.

/// A file of the page.
#[derive(PartialEq, Eq, Debug)]
struct Asset {
    pub path: &'static str,
    /// Value of the header Content-Type.
    pub kind: &'static str,
    pub bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../../../share/web/", $file)),
        }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", HTML, "index.html"),
    asset!("/app.css", STYLE, "app.css"),
    asset!("/app.js", SCRIPT, "app.js"),
    asset!("/charts.js", SCRIPT, "charts.js"),
    asset!("/data.js", SCRIPT, "data.js"),
    asset!("/parts.js", SCRIPT, "parts.js"),
    asset!("/views.js", SCRIPT, "views.js"),
    asset!("/icon.svg", "image/svg+xml", "icon.svg"),
    asset!("/vendor/uPlot.iife.min.js", SCRIPT, "vendor/uPlot.iife.min.js"),
    asset!("/vendor/uPlot.min.css", STYLE, "vendor/uPlot.min.css"),
    asset!("/vendor/LICENSE", "text/plain; charset=utf-8", "vendor/LICENSE"),
];

/// The file at a path.
fn find_asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

// Answers over HTTP: metrics, and the web page.

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
            body: Body::Shared(recent_metrics(host)),
        },
        _ => HttpAnswer::text("405 Method Not Allowed", "GET /metrics is all."),
    })
}

#[cfg(test)]
mod tests;
