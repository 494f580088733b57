//! The client's end of the control protocol.

use super::report::{FailedReport, HostReport};
use super::{LINE_BYTES_MAX, Request};
use crate::host::connect_at_once;
use crate::images::{self, ImageError, OpenOptions, PATIENCE};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Longest wait for an answer. Detaching a disk waits for its outstanding requests, on an emulated
/// disk too, but not longer than the hard limit.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection to the control socket: its path, and what the system says.
    #[error(
        "{path}: {1}; is `seekway serve` running, with --listen or --control?",
        path = .0.display()
    )]
    Connect(PathBuf, io::Error),
    /// The daemon says no.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, or the answer took too long.
    #[error("{path}: {1}", path = .0.display())]
    Broken(PathBuf, io::Error),
    /// The bytes that came are no answer.
    #[error("{path}: not an answer of seekway's: {1}", path = .0.display())]
    Strange(PathBuf, String),
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connect to a daemon's control socket.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        Client::over(path, UnixStream::connect(path), ANSWER_TIME)
    }

    /// Connect to a daemon that is expected to answer within `time`, also when it is busy: who
    /// only wants to know something must not wait for a daemon that hangs.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect_within(path: &Path, time: Duration) -> Result<Client, ClientError> {
        Client::over(path, connect_at_once(path), time)
    }

    fn over(
        path: &Path,
        stream: io::Result<UnixStream>,
        time: Duration,
    ) -> Result<Client, ClientError> {
        let in_time = |stream: UnixStream| {
            stream.set_read_timeout(Some(time))?;
            stream.set_write_timeout(Some(time))?;
            Ok(BufReader::new(stream))
        };
        let path = path.to_path_buf();
        match stream.and_then(in_time) {
            Ok(stream) => Ok(Client { path, stream }),
            Err(e) => Err(ClientError::Connect(path, e)),
        }
    }

    /// Ask, and wait for the result.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the daemon's text, or a broken connection.
    pub fn ask(&mut self, request: &Request) -> Result<Value, ClientError> {
        let image = self.image_of(request)?;
        let strange = |text: String| ClientError::Strange(self.path.clone(), text);
        let mut line = serde_json::to_vec(request).map_err(|e| strange(e.to_string()))?;
        line.push(b'\n');
        let broken = |e| ClientError::Broken(self.path.clone(), e);
        // A daemon that has no room says so without reading the request.
        let sent = send(self.stream.get_ref(), &line, image.as_ref());
        line.clear();
        // An answer may be longer than a request: metrics of many disks are.
        let limit = 64 * LINE_BYTES_MAX as u64;
        self.stream.by_ref().take(limit).read_until(b'\n', &mut line).map_err(broken)?;
        if line.last() != Some(&b'\n') {
            sent.map_err(broken)?;
            let ended = io::Error::other("the daemon ended the connection without an answer");
            return Err(broken(ended));
        }
        let mut answer: Value =
            serde_json::from_slice(&line).map_err(|e| strange(e.to_string()))?;
        if let Some(text) = answer.get("error").and_then(Value::as_str) {
            return Err(ClientError::Refused(text.to_string()));
        }
        let result = answer.get_mut("result").map(Value::take);
        result.ok_or_else(|| strange("neither result nor error".into()))
    }

    /// The image that a request is about: it is opened here, with the rights of whoever manages the
    /// daemon, and handed over. One that cannot be opened here the daemon tries itself.
    fn image_of(&mut self, request: &Request) -> Result<Option<File>, ClientError> {
        let (name, path, options) = match request {
            Request::Attach(disk) => {
                let options = open_options(disk.read_only, disk.incoming);
                (disk.name.clone(), disk.path.clone(), options)
            }
            Request::Retry { disk } => {
                let status: HostReport = serde_json::from_value(self.ask(&Request::Status {})?)
                    .map_err(|e| ClientError::Strange(self.path.clone(), e.to_string()))?;
                match status.failed.into_iter().find(|failed| failed.name == *disk) {
                    Some(FailedReport { name, path, read_only, incoming, .. }) => {
                        (name, PathBuf::from(path), open_options(read_only, incoming))
                    }
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        if !path.is_absolute() {
            return Ok(None); // relative to the daemon
        }
        let until = Instant::now() + PATIENCE;
        match images::patiently(until, || images::open_file(&path, &options)) {
            // By its name: the daemon may have served it meanwhile, and knows.
            Err(ImageError::Busy { .. }) if matches!(request, Request::Retry { .. }) => Ok(None),
            Err(e @ ImageError::Busy { .. }) => {
                Err(ClientError::Refused(format!("disk {name}: {e}")))
            }
            opened => Ok(opened.ok()),
        }
    }
}

fn open_options(read_only: bool, incoming: bool) -> OpenOptions {
    OpenOptions { read_only, incoming, ..OpenOptions::writing() }
}

/// Send a line, and a file with it.
fn send(stream: &UnixStream, line: &[u8], file: Option<&File>) -> io::Result<()> {
    let Some(file) = file else { return (&*stream).write_all(line) };
    let sent = stream.send_with_fd(line, file.as_raw_fd());
    let sent = sent.map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
    (&*stream).write_all(&line[sent..])
}
