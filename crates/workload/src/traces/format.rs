//! The registry of formats, and how one is recognised.

use super::raw::Volumes;
use super::text::ParseLine;
use super::{LINE_BYTES_MAX, TraceError, blktrace, columns, csv, fio, vscsi};
use seekway_policy::registry::{Registry, RegistryEntry};
use std::fmt;

/// A trace format. [`Format::all`] lists them; all else derives from one table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)] // The registry describes each.
pub enum Format {
    Blktrace,
    Vscsi,
    Fio,
    Blkreplay,
    Msr,
    Systor,
    Tencent,
    Alibaba,
    Spc,
    Fiu,
    Mqsim,
    Disksim,
    #[cfg(feature = "parquet")]
    Parquet,
}

struct Entry {
    format: Format,
    name: &'static str,
    about: &'static str,
    /// `None` for a binary format.
    parser: Option<fn() -> Box<dyn ParseLine>>,
}

const fn text(
    format: Format,
    name: &'static str,
    about: &'static str,
    parser: fn() -> Box<dyn ParseLine>,
) -> Entry {
    Entry { format, name, about, parser: Some(parser) }
}

const fn binary(format: Format, name: &'static str, about: &'static str) -> Entry {
    Entry { format, name, about, parser: None }
}

impl RegistryEntry for Entry {
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        self.about
    }
}

/// In the order of the enum.
static REGISTRY: Registry<Entry> = Registry::new(
    "trace format",
    &[
        binary(
            Format::Blktrace,
            "blktrace",
            "Linux blktrace, binary: a file, one per CPU, or `blktrace -o -`",
        ),
        binary(Format::Vscsi, "vscsi", "VMware vSCSI as of CloudPhysics, binary, versions 1 and 2"),
        text(Format::Fio, "fio", "fio iolog, versions 2 (no times) and 3", || {
            Box::<fio::Fio>::default()
        }),
        text(
            Format::Blkreplay,
            "blkreplay",
            "blkreplay .load: start ; sector ; sectors ; op",
            || Box::<columns::Blkreplay>::default(),
        ),
        text(Format::Msr, "msr", "MSR Cambridge CSV, FILETIME and bytes", || {
            Box::new(csv::Csv(csv::msr))
        }),
        text(Format::Systor, "systor", "SYSTOR '17 CSV, seconds and bytes, unsorted", || {
            Box::new(csv::Csv(csv::systor))
        }),
        text(Format::Tencent, "tencent", "Tencent CBS CSV, whole seconds and sectors", || {
            Box::new(csv::Csv(csv::tencent))
        }),
        text(Format::Alibaba, "alibaba", "Alibaba block trace CSV, microseconds and bytes", || {
            Box::new(csv::Csv(csv::alibaba))
        }),
        text(Format::Spc, "spc", "SPC as of UMass: ASU,LBA,bytes,op,seconds", || {
            Box::new(csv::Csv(csv::spc))
        }),
        text(Format::Fiu, "fiu", "FIU: ns pid process lba sectors op major minor md5", || {
            Box::new(columns::Fiu)
        }),
        text(Format::Mqsim, "mqsim", "MQSim ASCII: ns device lba sectors type", || {
            Box::new(columns::Mqsim)
        }),
        text(
            Format::Disksim,
            "disksim",
            "DiskSim validation: op Hit|Miss lbn sectors service gap",
            || Box::<columns::Disksim>::default(),
        ),
        #[cfg(feature = "parquet")]
        binary(
            Format::Parquet,
            "parquet",
            "Parquet: time_ns, op, start_sector, sectors, volume, …",
        ),
    ],
);

impl Format {
    /// The registry of formats.
    pub fn registry() -> Registry<impl RegistryEntry> {
        REGISTRY
    }

    /// Every format, in the order of help texts.
    pub fn all() -> impl Iterator<Item = Format> {
        REGISTRY.iter().map(|entry| entry.format)
    }

    fn entry(self) -> &'static Entry {
        &REGISTRY[self as usize]
    }

    /// The name that `--input-format` takes.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// One line for help texts.
    pub fn about(self) -> &'static str {
        self.entry().about
    }

    /// Its columns and an example; every format has a page.
    pub fn page(self) -> Option<&'static super::FormatPage> {
        super::FormatPage::of(self.name())
    }

    /// The format called `name`.
    pub fn from_name(name: &str) -> Option<Format> {
        REGISTRY.find(name).ok().map(|entry| entry.format)
    }

    /// All names, separated by commas.
    pub fn names() -> String {
        REGISTRY.names().collect::<Vec<_>>().join(", ")
    }

    /// A parser for a text format.
    pub(super) fn parser(self) -> Option<Box<dyn ParseLine>> {
        self.entry().parser.map(|make| make())
    }

    /// The format of a stream that begins with `head`; `whole` when that is
    /// all of it. `path` is for the message.
    pub(super) fn detect(head: &[u8], whole: bool, path: &str) -> Result<Format, TraceError> {
        if blktrace::is_blktrace(head) {
            return Ok(Format::Blktrace);
        }
        #[cfg(feature = "parquet")]
        if head.starts_with(super::parquet::MAGIC) {
            return Ok(Format::Parquet);
        }
        if vscsi::layout(head).is_some() {
            return Ok(Format::Vscsi);
        }
        let candidates: Vec<Format> = Format::all().filter(|f| f.recognises(head, whole)).collect();
        match candidates[..] {
            [format] => Ok(format),
            [] => Err(TraceError::UnknownFormat { path: path.into() }),
            _ => {
                let names: Vec<_> = candidates.iter().map(|f| f.name()).collect();
                Err(TraceError::AmbiguousFormat {
                    path: path.into(),
                    candidates: names.join(" or "),
                })
            }
        }
    }

    /// Does the text format's parser understand the beginning? It must find a
    /// request, and nine of ten lines must be sound: a trace with a damaged
    /// line shall be reported at that line, not as of unknown format.
    fn recognises(self, head: &[u8], whole: bool) -> bool {
        const LINES: usize = 200;
        let Some(mut parser) = self.parser() else { return false };
        let mut volumes = Volumes::new("");
        let mut lines: Vec<&[u8]> = head.split(|b| *b == b'\n').collect();
        if !whole {
            lines.pop();
        }
        let (mut requests, mut bad) = (0, 0);
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
            if line.len() > LINE_BYTES_MAX || line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match parser.parse(line, &mut volumes) {
                Ok(Some(_)) => requests += 1,
                Ok(None) => {}
                Err(_) => bad += 1,
            }
            if requests + bad >= LINES {
                break;
            }
        }
        requests > 0 && bad * 10 <= requests
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_in_the_order_of_the_enum() {
        for (index, entry) in REGISTRY.iter().enumerate() {
            assert_eq!(entry.format as usize, index);
            assert_eq!(Format::from_name(entry.name), Some(entry.format));
        }
    }
}
