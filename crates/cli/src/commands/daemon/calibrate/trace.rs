//! Measured traces, told from disks by their content.

use super::{MeasuredRequests, shown};
use anyhow::{Context, Result, anyhow, bail};
use seekway_device::fit;
use seekway_device::validate::{self, TraceError};
use seekway_workload::traces::{Format, TraceOptions, TraceReader};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Largest measured trace that is read, in bytes: it is held whole.
const BYTES_MAX: u64 = 256 << 20;
/// First bytes that tell text from an image.
const HEAD_BYTES: u64 = 4096;

/// Is it a trace rather than a disk or a file to measure? The standard input
/// and pipes are, block devices are not, and a file is when it begins as text.
pub fn is_trace(what: &Path) -> Result<bool> {
    if what.as_os_str() == "-" {
        return Ok(true);
    }
    let about = || what.display().to_string();
    let kind = std::fs::metadata(what).with_context(about)?;
    if kind.file_type().is_fifo() {
        return Ok(true);
    }
    if !kind.is_file() {
        // What is neither is told by who opens it as a disk.
        return Ok(false);
    }
    let mut head = Vec::new();
    File::open(what).and_then(|f| f.take(HEAD_BYTES).read_to_end(&mut head)).with_context(about)?;
    if head.is_empty() {
        bail!("{}: empty: neither a measured trace nor a file on a disk to measure", about());
    }
    if is_text(&head) {
        return Ok(true);
    }
    // A trace in another format, or compressed, is seldom meant as a file to read at random.
    if let Ok(reader) = TraceReader::open(what, &TraceOptions::default()) {
        bail!(
            "{}: {}; if it is the disk below this file that you want measured, say --as disk",
            about(),
            refusal(reader.format())
        );
    }
    Ok(false)
}

/// Printable ASCII with line ends.
fn is_text(head: &[u8]) -> bool {
    head.iter().all(|&b| (b' '..=b'~').contains(&b) || matches!(b, b'\n' | b'\r' | b'\t'))
}

/// Reads a measured trace.
pub fn read(what: &Path) -> Result<MeasuredRequests> {
    let name = shown(what);
    let input: Box<dyn Read> = if what.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(what).with_context(|| name.clone())?)
    };
    let mut bytes = Vec::new();
    input.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| name.clone())?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{name}: a measured trace has at most {BYTES_MAX} bytes");
    }
    let text = std::str::from_utf8(&bytes).map_err(|e| {
        anyhow!("{name}: not text from byte {} on; a compressed trace has to be unpacked first: `zcat FILE | seekway calibrate -`", e.valid_up_to())
    })?;
    let records = validate::parse(text).map_err(|error| match (&error, other_format(text)) {
        (TraceError::Line { line: 1, .. }, Some(format)) => anyhow!("{name}: {}", refusal(format)),
        _ => anyhow!(error).context(name.clone()),
    })?;
    Ok(MeasuredRequests {
        source: format!("the measured trace {name}"),
        samples: fit::samples(&records),
        capacity: None,
        hit_ms: None,
        notes: Vec::new(),
    })
}

/// Which other format the text is in, if any.
fn other_format(text: &str) -> Option<Format> {
    let head: Vec<u8> = text.bytes().take(1 << 16).collect();
    let read = Box::new(std::io::Cursor::new(head));
    let reader = TraceReader::from_read("", read, &TraceOptions::default()).ok()?;
    Some(reader.format()).filter(|&f| f != Format::Disksim)
}

/// Why a trace of another format calibrates nothing.
fn refusal(format: Format) -> String {
    let why = match format {
        Format::Disksim => {
            return "a compressed trace has to be unpacked first: `zcat FILE | seekway calibrate -`"
                .into();
        }
        Format::Msr | Format::Systor | Format::Blkreplay => {
            "its times are responses under load: they hold the queue before the disk too, of which \
             nobody knows how long it was"
        }
        Format::Blktrace => {
            "its times from issue to completion are of requests that share the disk with others"
        }
        _ => "it says when requests came and not how long the disk took",
    };
    format!(
        "a trace in the format {} ({}), and {why}; to calibrate takes requests that were served \
         one at a time: `R|W Hit|Miss lbn sectors service_us gap_us`",
        format.name(),
        format.about()
    )
}
