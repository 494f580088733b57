//! QMP, QEMU's control protocol: JSON, one object a line.

use crate::stream::Stream;
use serde_json::{Value, json};
use std::io;
use std::time::{Duration, Instant};

/// How long QEMU may take to answer. Its main loop waits for nobody, but the
/// machine may be busy.
const ANSWER: Duration = Duration::from_secs(300);

/// A connection on which capabilities have been negotiated.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: Stream,
}

impl Qmp {
    pub(crate) fn new(stream: Stream) -> io::Result<Qmp> {
        let mut qmp = Qmp { stream };
        qmp.stream.line(Instant::now() + ANSWER)?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Run a command and return what it returns. Events are passed over.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.stream.send(&format!("{request}\n"))?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let line = self.stream.line(deadline)?;
            let mut answer: Value = serde_json::from_str(&line)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{line}: {e}")))?;
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(format!("QMP {command}: {error}")));
            }
        }
    }
}
