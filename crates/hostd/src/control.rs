//! The control protocol: JSON objects over a unix socket, one a line in both
//! directions (docs/json.md). Each client has a thread of its own that sleeps
//! while the client is silent; a client that is slow, or hostile, wastes its own
//! time only.
//!
//! A request is `{"command": "…", …}`; its answer is `{"result": …}` or
//! `{"error": "…"}`, in the order of the requests.

#[macro_use]
mod figures;

mod client;
pub mod counts;
pub mod history;
mod http;
mod metrics;
pub mod reasons;
mod recorder;
mod report;
mod web;

pub use client::{Client, ClientError};
pub use recorder::Recorder;
pub use report::{
    CacheReport, DeviceReport, DeviceResponses, DiskCacheReport, DiskReport, EmulationReport,
    FailedReport, FairnessReport, HostReport, Latency, OpReport, PendingReport, ProcessReport,
    ResponsesReport, SandboxReport, ServedReport, SlowReport, SlowRequestReport, ThreadsReport,
    UsageReport,
};
pub use web::{Page, Token, TokenError, serve_control, serve_metrics, serve_web};

use crate::config::{CacheSize, DiskConfig, limits_text};
use crate::host::{Attached, Host, HostError};
use seekway_stack::stack::limit::{DiskLimits, GroupName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Longest request, in bytes, with the line feed. Answers may be longer.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Error for a client that begins with something else.
const NO_OBJECT: &str = "a request is an object of JSON in a line, such as {\"command\": \"status\"}, \
                         or one of HTTP; the connection ends";
/// A line that has begun has to be there by then. Between lines a client may be idle.
const LINE_TIME: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });
/// Time after which a client that does not take an answer is hung up on.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// A client's request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// State of the whole daemon: a [`HostReport`].
    Status {},
    /// Response times, in full: a [`ResponsesReport`].
    Responses {},
    /// The last slow requests: a [`SlowReport`].
    Slow {
        /// Least time of a request to be listed, in milliseconds, 0 to 1e9.
        over_ms: f64,
        /// Of this disk; of all, if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
    },
    /// Take no requests of a disk for a time, unless it is thawed before.
    Freeze {
        disk: String,
        /// Seconds, up to a minute.
        timeout_s: f64,
    },
    /// Take requests of a frozen disk again.
    Thaw { disk: String },
    /// The metrics, as text.
    Metrics {},
    /// Give a device, or all of them, another policy.
    Policy {
        policy: String,
        /// For this device; for all, and for those to come, if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Give the cache of a device, or of all of them, another prefetcher.
    Prefetch {
        prefetcher: String,
        /// For this device; for all, and for those to come, if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Another size for the caches.
    Cache { size: CacheSize },
    /// Another share for a disk.
    Weight {
        disk: String,
        /// From 1; the share is relative to the weights of the other disks.
        weight: NonZeroU32,
    },
    /// Other limits for a disk or for a group.
    Limit(Box<LimitRequest>),
    /// Serve one more disk.
    Attach(Box<DiskConfig>),
    /// Try again to serve a disk of the configuration whose image could not be opened.
    Retry { disk: String },
    /// Stop serving a disk.
    Detach { disk: String },
    /// Give a disk another size.
    Resize {
        disk: String,
        /// New size in bytes; the image's present size, if not given.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "crate::config::amount_in_bytes"
        )]
        size_bytes: Option<u64>,
        /// Allow a smaller size.
        #[serde(default)]
        shrink: bool,
    },
}

/// The words of all commands.
pub const COMMANDS: [&str; 15] = [
    "status",
    "metrics",
    "responses",
    "slow",
    "policy",
    "prefetch",
    "cache",
    "weight",
    "limit",
    "attach",
    "retry",
    "detach",
    "resize",
    "freeze",
    "thaw",
];

/// A client's input: lines, one of which may come with an open image (SCM_RIGHTS).
struct Input<'s> {
    stream: &'s UnixStream,
    /// The line that has begun has to be there by then: its client has a place that others want.
    until: Option<Instant>,
    /// The last file that came, until the line that it came with has been carried out.
    handed: Option<File>,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(left)?;
        let received = self.stream.recv_with_fd(buffer);
        let (bytes, file) = received.map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        self.handed = file.or(self.handed.take());
        Ok(bytes)
    }
}

/// Talk to a client until it goes. One that speaks HTTP is answered `by_http`.
///
/// # Errors
/// The connection broke.
pub fn serve(
    host: &Host,
    stream: UnixStream,
    by_http: impl FnOnce(&mut dyn Read, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIME))?;
    let mut out = &stream;
    let mut input = BufReader::new(Input { stream: &stream, until: None, handed: None });
    // What else a browser may send, with a method of its page's choice, is for nobody.
    match input.fill_buf()?.first() {
        Some(b'{') => {}
        Some(first) if first.is_ascii_uppercase() => {
            input.get_mut().until = Some(Instant::now() + http::REQUEST_TIME);
            return by_http(&mut input, &mut out);
        }
        Some(_) => return write_line(&mut out, &error(NO_OBJECT.into())),
        None => return Ok(()),
    }
    let mut line = Vec::new();
    loop {
        line.clear();
        input.get_mut().until = None;
        input.fill_buf()?;
        input.get_mut().until = Some(Instant::now() + LINE_TIME);
        let limit = LINE_BYTES_MAX as u64 + 1;
        if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.len() > LINE_BYTES_MAX {
            let text = format!("a line of more than {LINE_BYTES_MAX} bytes; the connection ends");
            return write_line(&mut out, &error(text));
        }
        if !line.trim_ascii().is_empty() {
            let handed = input.get_mut().handed.take();
            let value = match read_json(&line) {
                Ok(value) => value,
                // Who sends this does not speak this protocol: what follows may be anything.
                Err(text) => {
                    return write_line(&mut out, &error(format!("{text}; the connection ends")));
                }
            };
            write_line(&mut out, &answer(host, value, handed))?;
        }
    }
}

/// Tell a client that nobody will answer it.
pub fn refuse(stream: &UnixStream, text: &str) {
    let _ = stream.set_nonblocking(true);
    let _ = write_line(&mut &*stream, &error(text.into())); // it may be gone already
}

fn write_line(out: &mut impl Write, value: &Value) -> io::Result<()> {
    let mut line = value.to_string();
    line.push('\n');
    out.write_all(line.as_bytes())
}

fn error(text: String) -> Value {
    json!({ "error": text })
}

/// The answer to one line.
fn answer(host: &Host, value: Value, handed: Option<File>) -> Value {
    let done = request_of(value).and_then(|request| carry_out(host, request, handed));
    match done {
        Ok(result) => json!({ "result": result }),
        Err(text) => error(text),
    }
}

/// A request in a line. Public for `crates/fuzz`.
#[doc(hidden)]
pub fn parse(line: &[u8]) -> Result<Request, String> {
    read_json(line).and_then(request_of)
}

/// The error of serde without its position, which says nothing in a line; its list of words stays.
fn wrong(e: serde_json::Error) -> String {
    let text = e.to_string();
    text.split(" at line ").next().unwrap_or_default().to_string()
}

fn read_json(line: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(line).map_err(|e| format!("not JSON: {}", wrong(e)))
}

fn request_of(value: Value) -> Result<Request, String> {
    let Some(word) = value.get("command").and_then(Value::as_str) else {
        return Err(format!("no \"command\"; there are {}", COMMANDS.join(", ")));
    };
    if !COMMANDS.contains(&word) {
        let word: String = word.escape_debug().take(100).collect();
        return Err(format!("no command '{word}'; there are {}", COMMANDS.join(", ")));
    }
    let word = word.to_string();
    let request = serde_json::from_value(value).map_err(wrong).and_then(|request| match &request {
        Request::Limit(limit) => limit.check().map(|()| request),
        _ => Ok(request),
    });
    request.map_err(|text| format!("{word}: {text}"))
}

fn carry_out(host: &Host, request: Request, handed: Option<File>) -> Result<Value, String> {
    match request {
        Request::Status {} => answer_of(report::report(host)),
        Request::Responses {} => answer_of(report::responses(host)),
        Request::Slow { over_ms, disk } => answer_of(report::slow(host, over_ms, disk.as_deref())?),
        Request::Metrics {} => Ok(json!({ "text": metrics::metrics(host) })),
        Request::Freeze { disk, timeout_s } => {
            // Too long a time is as wrong as one that is none.
            let time = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
            changed(host.freeze(&disk, time))
        }
        Request::Thaw { disk } => changed(host.thaw(&disk)),
        Request::Policy { policy, device } => changed(host.set_policy(&policy, device.as_deref())),
        Request::Prefetch { prefetcher, device } => {
            changed(host.set_prefetcher(&prefetcher, device.as_deref()))
        }
        Request::Cache { size } => changed(host.set_cache(size)),
        Request::Weight { disk, weight } => changed(host.set_weight(&disk, weight)),
        Request::Limit(request) => {
            let LimitRequest { disk, group, limits } = *request;
            changed(match (disk, group) {
                (Some(disk), _) => host.set_limits(&disk, &limits),
                (None, group) => {
                    let group = GroupName::new(&group.unwrap_or_default());
                    host.set_group_limits(&group.map_err(|e| e.to_string())?, &limits.limits)
                }
            })
        }
        Request::Attach(disk) => attached(host.attach_handed(&disk, handed)),
        Request::Retry { disk } => attached(host.retry(&disk, handed)),
        Request::Detach { disk } => changed(host.detach(&disk)),
        Request::Resize { disk, size_bytes, shrink } => {
            let resized = host.resize(&disk, size_bytes, shrink);
            let capacity_bytes = resized.map_err(|e| e.to_string())?;
            answer_of(ResizeReport { capacity_bytes })
        }
    }
}

fn answer_of(report: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(report).map_err(|e| e.to_string())
}

fn changed(changed: Result<(), HostError>) -> Result<Value, String> {
    changed.map_err(|e| e.to_string())?;
    answer_of(ChangeReport {})
}

fn attached(attached: Result<Attached, HostError>) -> Result<Value, String> {
    let Attached { capacity_bytes, sockets, warnings } = attached.map_err(|e| e.to_string())?;
    answer_of(AttachReport { capacity_bytes, sockets, warnings })
}

/// The answer to `attach`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AttachReport {
    capacity_bytes: u64,
    /// Where it can be reached: kind and address.
    sockets: Vec<String>,
    /// Warnings about its image, for the operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The answer to `resize`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ResizeReport {
    capacity_bytes: u64,
}

/// The answer to a command that changes something and has nothing to tell.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ChangeReport {}

// Changes of limits, of a disk or of a group.

/// Other limits for a disk or for a group, instead of all that it has:
/// `{"disk": "db", "limits": "iops=2000,group=tenant1"}` or
/// `{"group": "tenant1", "limits": "bandwidth=300MiB"}`; `none` lifts them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// Limits, and of a disk the group: without one it leaves its group.
    #[serde(with = "limits_text")]
    limits: DiskLimits,
}

impl LimitRequest {
    /// Limits as text, for a disk or for a group.
    ///
    /// # Errors
    /// The fault in them, or in the names.
    pub fn new(
        disk: Option<&str>,
        group: Option<&str>,
        limits: &str,
    ) -> Result<LimitRequest, String> {
        let limits = DiskLimits::parse(limits).map_err(|e| e.to_string())?;
        let [disk, group] = [disk, group].map(|name| name.map(str::to_string));
        let request = LimitRequest { disk, group, limits };
        request.check().map(|()| request)
    }

    fn check(&self) -> Result<(), String> {
        match (&self.disk, &self.group) {
            (Some(_), None) => Ok(()),
            (None, Some(group)) => {
                self.limits.clone().of_group().map_err(|e| e.to_string())?;
                GroupName::new(group).map(drop).map_err(|e| e.to_string())
            }
            (Some(_), Some(_)) => Err("disk and group contradict: to put a disk into a group, \
                                       write it in limits, as in \"iops=2000,group=tenant1\""
                .into()),
            (None, None) => Err("whose limits? give disk or group".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_made_of_these_answers() {
        use seekway_testing::schema;
        schema::<HostReport>("ctl-status", "seekway ctl status --format json");
        schema::<SlowReport>("ctl-slow", "seekway ctl slow --format json");
        schema::<AttachReport>("ctl-attach", "seekway ctl attach --format json");
        schema::<ResizeReport>("ctl-resize", "seekway ctl resize --format json");
        for name in ["policy", "prefetch", "cache", "weight", "limit", "detach", "freeze", "thaw"] {
            let command = format!("seekway ctl {name} --format json");
            schema::<ChangeReport>(&format!("ctl-{name}"), &command);
        }
    }

    #[test]
    fn requests_are_read() {
        let read = |text: &str| parse(text.as_bytes());
        assert_eq!(read(r#"{"command":"status"}"#), Ok(Request::Status {}));
        let policy = Request::Policy { policy: "cfq:quantum=4".into(), device: None };
        assert_eq!(read(r#"{"command":"policy","policy":"cfq:quantum=4"}"#), Ok(policy));
        let prefetch = Request::Prefetch { prefetcher: "none".into(), device: Some("sda".into()) };
        let line = r#"{"command":"prefetch","prefetcher":"none","device":"sda"}"#;
        assert_eq!(read(line), Ok(prefetch));
        for size in ["\"2GiB\"", "2147483648"] {
            let line = format!(r#"{{"command":"cache","size":{size}}}"#);
            assert_eq!(read(&line), Ok(Request::Cache { size: CacheSize::Bytes(2 << 30) }));
            let line = format!(r#"{{"command":"resize","disk":"a","size_bytes":{size}}}"#);
            let grown = Some(2 << 30);
            let disk = "a".to_string();
            assert_eq!(read(&line), Ok(Request::Resize { disk, size_bytes: grown, shrink: false }));
        }
        assert!(read(r#"{"command":"resize","disk":"a","size_bytes":"2GB"}"#).is_err());
        let line =
            r#"{"command":"attach","name":"a","path":"/a","lba":"1MiB","guest_memory":"1GiB"}"#;
        let mut placed = DiskConfig::new("a", "/a");
        (placed.lba, placed.guest_memory) = (Some(2048), Some(1 << 30));
        assert_eq!(read(line), Ok(Request::Attach(Box::new(placed))));
        let line = r#"{"command":"cache","size":"2GiB"}"#;
        assert_eq!(read(line), Ok(Request::Cache { size: CacheSize::Bytes(2 << 30) }));
        let disk = DiskConfig { read_only: true, ..DiskConfig::new("web", "/web.img") };
        let attach = r#"{"command":"attach","name":"web","path":"/web.img","read_only":true}"#;
        assert_eq!(read(attach), Ok(Request::Attach(Box::new(disk))));
        let limit = LimitRequest::new(Some("web"), None, "iops=5").unwrap();
        let line = r#"{"command":"limit","disk":"web","limits":"iops=5"}"#;
        assert_eq!(read(line), Ok(Request::Limit(Box::new(limit.clone()))));
        assert_eq!(serde_json::to_string(&Request::Limit(Box::new(limit))).unwrap(), line);
        let resize = Request::Resize { disk: "web".into(), size_bytes: Some(512), shrink: false };
        assert_eq!(read(r#"{"command":"resize","disk":"web","size_bytes":512}"#), Ok(resize));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, part) in [
            ("", "not JSON"),
            ("{\"command\":", "not JSON"),
            ("[1]", "no \"command\"; there are status, metrics"),
            ("{\"command\":3}", "no \"command\""),
            ("{\"command\":\"reboot\"}", "no command 'reboot'; there are status, metrics"),
            ("{\"command\":\"status\",\"verbose\":true}", "status: unknown field `verbose`"),
            (
                "{\"command\":\"cache\",\"size\":\"2\"}",
                "cache: 2: expected auto, off, or 1MiB to 8TiB",
            ),
            ("{\"command\":\"weight\",\"disk\":\"a\"}", "weight: missing field `weight`"),
            ("{\"command\":\"weight\",\"disk\":\"a\",\"weight\":0}", "weight: invalid value"),
            ("{\"command\":\"limit\",\"limits\":\"iops=1\"}", "limit: whose limits?"),
            (
                "{\"command\":\"resize\",\"disk\":\"a\",\"size_bytes\":-1}",
                "resize: expected a number",
            ),
            ("{\"command\":\"attach\",\"name\":\"a\"}", "attach: missing field `path`"),
            ("{\"command\":\"attach\",\"name\":\"a\",\"path\":\"b\",\"c\":1}", "unknown field `c`"),
            (
                "{\"command\":\"attach\",\"name\":\"a\",\"path\":\"b\",\"allow\":[]}",
                "attach: allow: expected names in clients' certificates",
            ),
            ("{\"command\":\"\u{1b}[2J\"}", "not JSON"),
            ("\u{0}\u{ff}", "not JSON"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
            assert!(!error.contains("at line"), "{error}");
        }
        assert!(parse(&[0xff, 0xfe]).is_err());
        // Deep nesting is refused, not recursed into.
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn who_does_not_end_a_line_loses_the_place() {
        let config = crate::config::Config::default();
        let options = crate::daemon::StartOptions::default();
        let daemon = crate::daemon::Daemon::start(config, options).unwrap();
        for lines in ["", "{\"command\":\"status\"}\n"] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(format!("{lines}{{\"comm").as_bytes()).unwrap();
            let ended = serve(daemon.host(), ours, |_, _| Ok(())).unwrap_err();
            let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
            assert!(kinds.contains(&ended.kind()), "{ended}");
        }
    }

    #[test]
    fn every_command_is_listed() {
        for word in COMMANDS {
            let error =
                parse(format!("{{\"command\":\"{word}\",\"x\":1}}").as_bytes()).unwrap_err();
            assert!(error.starts_with(word), "{error}");
        }
    }

    #[test]
    fn limits_are_asked_for() {
        for (line, request) in [
            (
                r#"{"disk":"db","limits":"iops=2000,group=tenant1"}"#,
                LimitRequest::new(Some("db"), None, "iops=2000,group=tenant1"),
            ),
            (r#"{"disk":"db","limits":"none"}"#, LimitRequest::new(Some("db"), None, "none")),
            (
                r#"{"group":"tenant1","limits":"bandwidth=300MiB"}"#,
                LimitRequest::new(None, Some("tenant1"), "bandwidth=314572800"),
            ),
        ] {
            let request = request.unwrap();
            assert_eq!(serde_json::from_str::<LimitRequest>(line).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
        }
    }

    #[test]
    fn what_is_wrong_with_limits_is_said() {
        for (line, part) in [
            (r#"{"limits":"iops=1"}"#, "give disk or group"),
            (r#"{"disk":"a","group":"b","limits":"iops=1"}"#, "disk and group contradict"),
            (r#"{"disk":"a"}"#, "missing field `limits`"),
            (r#"{"disk":"a","limits":"iops=0"}"#, "leave it out for no limit"),
            (r#"{"disk":"a","limits":""}"#, "write none to lift all"),
            (r#"{"disk":"a","limits":"iops=1,read_iops=1"}"#, "iops and read_iops contradict"),
            (r#"{"group":"a","limits":"iops=1,group=b"}"#, "cannot be in a group"),
            (r#"{"group":"../a","limits":"iops=1"}"#, "cannot be a group's name"),
            (r#"{"disk":"a","limits":"iops=1","c":1}"#, "unknown field `c`"),
        ] {
            let line = line.replacen('{', r#"{"command":"limit","#, 1);
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let error = LimitRequest::new(Some("db"), None, "ro").unwrap_err();
        assert_eq!(error, "'ro' is not key=value, as in iops=2000");
        assert!(
            LimitRequest::new(None, Some("a"), "oips=1").unwrap_err().contains("no limit 'oips'")
        );
    }
}
