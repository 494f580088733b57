//! The registry of formats, how one is recognised, and a page for each.

use super::layout::Header;
use super::layout::is_comment;
use super::plausible::Figures;
use super::raw::Volumes;
use super::text::{Head, ParseLine};
use super::{
    LINE_BYTES_MAX, TraceError, TraceOptions, blktrace, columns, csv, events, fio, layout,
    plausible, records, table,
};
use seekway_core::registry::{Registry, RegistryEntry};
use std::fmt;
use std::sync::LazyLock;

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
    Blkparse,
    Perf,
    Biosnoop,
    FioLog,
    DisksimAscii,
    OracleGeneral,
    Cachesim,
    Csv,
}

struct Entry {
    format: Format,
    name: &'static str,
    about: &'static str,
    /// Of times, offsets and sizes.
    units: &'static str,
    /// The columns as `--columns` would list them, of a format that has nothing but columns: a file
    /// may have the same columns in other units.
    columns: Option<&'static str>,
    /// `None` for a binary format.
    parser: Option<fn() -> Box<dyn ParseLine>>,
}

type Parser = fn() -> Box<dyn ParseLine>;

impl Entry {
    const fn new(format: Format, name: &'static str, about: &'static str) -> Entry {
        Entry { format, name, about, units: "", columns: None, parser: None }
    }

    const fn units(self, units: &'static str) -> Entry {
        Entry { units, ..self }
    }

    /// Makes it a text format.
    const fn lines(self, parser: Parser) -> Entry {
        Entry { parser: Some(parser), ..self }
    }

    const fn columns(self, columns: &'static str) -> Entry {
        Entry { columns: Some(columns), ..self }
    }
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
static REGISTRY: Registry<Entry> = Registry::new("trace format", ENTRIES);

const ENTRIES: &[Entry] = &[
    Entry::new(
        Format::Blktrace,
        "blktrace",
        "Linux blktrace, binary: a file, one per CPU, or `blktrace -o -`",
    )
    .units("ns, sectors, bytes"),
    Entry::new(Format::Vscsi, "vscsi", "VMware vSCSI as of CloudPhysics, binary, versions 1 and 2")
        .units("µs, sectors, bytes"),
    Entry::new(Format::Fio, "fio", "fio iolog, versions 2 (no times) and 3")
        .units("bytes")
        .lines(|| Box::<fio::Fio>::default()),
    Entry::new(Format::Blkreplay, "blkreplay", "blkreplay .load: start ; sector ; sectors ; op")
        .units("s, sectors")
        .lines(|| Box::<columns::Blkreplay>::default()),
    Entry::new(Format::Msr, "msr", "MSR Cambridge CSV, FILETIME and bytes")
        .units("units of 100 ns, bytes")
        .columns("time_filetime,volume,volume,op,offset_bytes,size_bytes,-")
        .lines(|| Box::new(csv::Csv::new(csv::msr))),
    Entry::new(Format::Systor, "systor", "SYSTOR '17 CSV, seconds and bytes, unsorted")
        .units("s, bytes")
        .columns("time_s,-,op,volume,offset_bytes,size_bytes")
        .lines(|| Box::new(csv::Csv::new(csv::systor))),
    Entry::new(Format::Tencent, "tencent", "Tencent CBS CSV, whole seconds and sectors")
        .units("s, sectors")
        .columns("time_s,sector,sectors,is_write,volume")
        .lines(|| Box::new(csv::Csv::new(csv::tencent))),
    Entry::new(Format::Alibaba, "alibaba", "Alibaba block trace CSV, microseconds and bytes")
        .units("µs, bytes")
        .columns("volume,op,offset_bytes,size_bytes,time_us")
        .lines(|| Box::new(csv::Csv::new(csv::alibaba))),
    Entry::new(Format::Spc, "spc", "SPC as of UMass: ASU,LBA,bytes,op,seconds")
        .units("s, sectors, bytes")
        .columns("volume,sector,size_bytes,op,time_s")
        .lines(|| Box::new(csv::Csv::new(csv::spc))),
    Entry::new(Format::Fiu, "fiu", "FIU: ns pid process lba sectors op major minor md5")
        .units("ns, sectors")
        .columns("time_ns,pid,-,sector,sectors,op,volume,volume,-")
        .lines(|| Box::new(columns::Fiu)),
    Entry::new(Format::Mqsim, "mqsim", "MQSim ASCII: ns device lba sectors type")
        .units("ns, sectors")
        .columns("time_ns,volume,sector,sectors,is_read")
        .lines(|| Box::new(columns::Mqsim)),
    Entry::new(
        Format::Disksim,
        "disksim",
        "DiskSim validation: op Hit|Miss lbn sectors service gap",
    )
    .units("µs, sectors")
    .lines(|| Box::<columns::Disksim>::default()),
    Entry::new(
        Format::Blkparse,
        "blkparse",
        "text of blkparse or ftrace's blk; of -f by --columns '%T.%t …'",
    )
    .units("s, sectors")
    .lines(|| Box::new(events::Events::blkparse())),
    Entry::new(Format::Perf, "perf", "perf script, trace-cmd or ftrace: block_rq_issue and others")
        .units("s, sectors")
        .lines(|| Box::new(events::Events::perf())),
    Entry::new(
        Format::Biosnoop,
        "biosnoop",
        "biosnoop of bcc and of its libbpf tools, by its header",
    )
    .units("by the header, sectors, bytes")
    .lines(|| Box::new(table::Table::snoop())),
    Entry::new(Format::FioLog, "fio-log", "fio's log of latencies, with log_offset=1")
        .units("ms (when done) and ns, bytes")
        .lines(|| Box::new(fio::Latencies::new())),
    Entry::new(Format::DisksimAscii, "disksim-ascii", "DiskSim: ms device block blocks flags")
        .units("ms, sectors")
        .columns("time_ms,volume,sector,sectors,is_read")
        .lines(|| Box::new(columns::DisksimAscii)),
    Entry::new(
        Format::OracleGeneral,
        "oracle-general",
        "libCacheSim's oracleGeneral, binary; all are reads",
    )
    .units("s, sectors, bytes, all reads"),
    Entry::new(Format::Cachesim, "cachesim", "libCacheSim's CSV: version,time,op,size,lbn")
        .units("s, sectors, bytes")
        .lines(|| Box::new(table::Table::cachesim())),
    Entry::new(Format::Csv, "csv", "a table with a header (time_us,op,offset,…) or --columns")
        .units("by the header")
        .lines(|| Box::new(table::Table::named())),
];

impl Format {
    /// The registry of formats.
    pub fn registry() -> &'static Registry<impl RegistryEntry> {
        &REGISTRY
    }

    /// Every format, in the order of help texts.
    pub fn all() -> impl Iterator<Item = Format> {
        REGISTRY.iter().map(|entry| entry.format)
    }

    fn entry(self) -> &'static Entry {
        REGISTRY[self as usize]
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

    /// The units of times, offsets and sizes.
    pub(super) fn units(self) -> &'static str {
        self.entry().units
    }

    /// The columns, of a format that has nothing but columns.
    pub(super) fn columns(self) -> Option<&'static str> {
        self.entry().columns
    }

    /// The format of a stream that begins with `head`. `path` is for the message.
    pub(super) fn detect(
        head: Head<'_>,
        path: &str,
        options: &TraceOptions,
    ) -> Result<Format, TraceError> {
        if let Some(list) = &options.columns {
            return Ok(if list.contains('%') { Format::Blkparse } else { Format::Csv });
        }
        if blktrace::is_blktrace(head.bytes) {
            return Ok(Format::Blktrace);
        }
        if records::layout(head.bytes).is_some() {
            return Ok(Format::Vscsi);
        }
        if records::is_oracle(head) {
            return Ok(Format::OracleGeneral);
        }
        Format::detect_text(head, path)
    }

    fn detect_text(head: Head<'_>, path: &str) -> Result<Format, TraceError> {
        let unclear = |problem| TraceError::Unclear { path: path.into(), problem };
        let lines = layout::lines(head.bytes, head.whole);
        let header = Header::find(&lines);
        let mut candidates: Vec<(Format, Figures)> =
            Format::all().filter_map(|f| Some((f, f.recognises(head)?))).collect();
        let first = lines.iter().find(|line| !is_comment(line));
        let names_nothing = header.is_none() && first.is_some_and(|line| csv::is_table(line));
        // The order of the columns tells nothing beside their names, unless these are its own.
        candidates.retain(|(format, _)| match (&header, format.page()) {
            _ if format.columns().is_none() => true,
            (Some(header), Some(page)) => header.is_of(page),
            _ => !names_nothing,
        });
        let rows = if header.is_none() { &lines[..] } else { &[] };
        if candidates.is_empty()
            && let Some(what) = events::unread(head.bytes, rows)
        {
            return Err(unclear(what.replace("{path}", path)));
        }
        match (&candidates[..], header) {
            ([(format, figures)], _) => match plausible::other_units(*format, figures) {
                Some(problem) => Err(unclear(problem)),
                None => Ok(*format),
            },
            ([], Some(header)) if header.is_cachesim() => Ok(Format::Cachesim),
            ([], Some(header)) if header.is_of_snoop() => Ok(Format::Biosnoop),
            ([], Some(_)) => Ok(Format::Csv),
            ([], None) => Err(match fio::Latencies::of(&lines) {
                Some(Err(reason)) => unclear(reason),
                _ => TraceError::UnknownFormat { path: path.into() },
            }),
            _ => {
                let names: Vec<_> = candidates.iter().map(|(f, _)| f.name()).collect();
                let candidates = names.join(" or ");
                Err(TraceError::AmbiguousFormat { path: path.into(), candidates })
            }
        }
    }

    /// Does the text format's parser understand the beginning? It must find a
    /// request, and nine of ten lines must be sound: a trace with a damaged
    /// line shall be reported at that line, not as of unknown format.
    fn recognises(self, head: Head<'_>) -> Option<Figures> {
        const LINES: u64 = 2000;
        // Tables are told by their header.
        if matches!(self, Format::Csv | Format::Cachesim | Format::Biosnoop) {
            return None;
        }
        // Whole numbers in its columns are MQSim's nanoseconds.
        if self == Format::DisksimAscii && !head.bytes.contains(&b'.') {
            return None;
        }
        let mut parser = self.parser()?;
        parser.begin(&head, &TraceOptions::default()).ok()?;
        let mut volumes = Volumes::new("");
        let mut lines: Vec<&[u8]> = head.bytes.split(|b| *b == b'\n').collect();
        if !head.whole {
            lines.pop();
        }
        let mut figures = Figures::new(self.columns());
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
            if line.len() > LINE_BYTES_MAX || line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match parser.parse(line, &mut volumes) {
                Ok(Some(raw)) => figures.add(&raw),
                Ok(None) => {}
                Err(_) => figures.bad += 1,
            }
            if figures.requests + figures.bad >= LINES {
                break;
            }
        }
        (figures.requests > 0 && figures.bad * 10 <= figures.requests).then_some(figures)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// A page for each format: its columns with their units, and an example. They are written in
// `pages.md`; a test reads the examples.

/// A column of a text format, or a field of a binary one.
pub struct Column {
    /// As the format's own description calls it.
    pub name: &'static str,
    /// Its unit, or the values that it may have.
    pub unit: &'static str,
}

/// Description of a format, for users.
pub struct FormatPage {
    /// The format's name.
    pub(super) format: &'static str,
    /// In the order of the file.
    pub columns: &'static [Column],
    /// The beginning of such a trace; for binary formats a command.
    pub example: &'static str,
    /// Further facts that a user needs, in whole sentences; may be empty.
    pub more: &'static str,
}

static PAGES: LazyLock<Vec<FormatPage>> = LazyLock::new(|| {
    let sections = include_str!("pages.md").split("\n### ").skip(1);
    sections
        .map(|text| FormatPage::read(text).expect("a page has a table and an example"))
        .collect()
});

impl FormatPage {
    pub(super) fn of(format: &str) -> Option<&'static FormatPage> {
        PAGES.iter().find(|page| page.format == format)
    }

    /// Takes a section apart: name, table of columns, example, the rest.
    fn read(section: &'static str) -> Option<FormatPage> {
        let (format, rest) = section.split_once("\n\n")?;
        let (table, rest) = rest.split_once("\n\n```text\n")?;
        let (example, more) = rest.split_once("\n```\n")?;
        let rows = table.lines().skip(2).map(|row| {
            let (name, unit) = row.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
            Some(Column { name, unit })
        });
        // They live as long as the program: no page is made twice.
        let columns = rows.collect::<Option<Vec<_>>>()?.leak();
        Some(FormatPage { format, columns, example, more: more.trim() })
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

#[cfg(test)]
mod pages_tests {
    use super::super::{Format, TraceOptions, TraceReader};
    use super::FormatPage;
    use std::io::Cursor;

    #[test]
    fn every_format_has_a_page_and_its_example_is_read() {
        for format in Format::all() {
            let page = FormatPage::of(format.name()).unwrap_or_else(|| panic!("{format}: no page"));
            assert!(!page.columns.is_empty() && !page.example.is_empty(), "{format}");
            if format.parser().is_none() {
                continue;
            }
            let text = format!("{}\n", page.example).into_bytes();
            let options = TraceOptions { format: Some(format), ..TraceOptions::default() };
            let reader =
                TraceReader::from_read(format.name(), Box::new(Cursor::new(text)), &options);
            let requests = reader.unwrap().map(Result::unwrap).count();
            assert!(requests >= 2, "{format}: {requests} requests");
        }
    }
}
