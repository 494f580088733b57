//! Where the fields of a table's request are: from its header, or from `--columns`.

use super::FormatPage;
use super::fields::{Field, Separator, split, split_to};
use super::names::{Role, role, words};
use super::told::{OpKind, Rows, both, is_comment};

/// Lines at the beginning among which a header is looked for, and rows that decide between units.
const LINES_LOOKED_AT: usize = 200;
/// Lines of prose that may stand in front of a header.
const PROSE_LINES: usize = 20;

/// End of [`Layout::units`] where no column says the operation.
pub(super) const ALL_READS: &str = ", all reads";

/// The columns of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) separator: Separator,
    /// Names as the header or the user has them; `-` for one of no interest.
    pub(super) names: Vec<String>,
    /// Lines up to the header, and with it.
    pub(super) lines_before: usize,
    /// A row has as many fields as there are names; else it may have more.
    pub(super) exact: bool,
    pub(super) time: usize,
    /// The power of ten that makes nanoseconds of the time.
    pub(super) time_scale: u32,
    /// Nanoseconds between which all times are, where the first rows told the unit.
    pub(super) time_within: (u64, u64),
    pub(super) start: usize,
    /// Bytes in one of the unit.
    pub(super) start_unit: u64,
    pub(super) length: usize,
    pub(super) length_unit: u64,
    /// The first rows told that these are bytes: all have to be whole sectors.
    pub(super) taken_as_bytes: Vec<usize>,
    /// Without one, all requests are reads.
    pub(super) op: Option<(usize, OpKind)>,
    /// Without one, its operation says whether somebody waits for a request.
    pub(super) sync: Option<usize>,
    /// Together they name the volume.
    pub(super) volumes: Vec<usize>,
    pub(super) process: Option<usize>,
    /// The one column that may hold blanks.
    pub(super) command: Option<usize>,
}

/// A header as it stands in the file.
pub(super) struct Header {
    separator: Separator,
    names: Vec<String>,
    roles: Vec<Role>,
    lines_before: usize,
}

/// The first lines of `head` that are not blank, without their ends; the last one, which may be
/// cut, only if `whole`.
pub(super) fn lines(head: &[u8], whole: bool) -> Vec<&[u8]> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let end = if whole { head.len() } else { memchr::memrchr(b'\n', head).unwrap_or(0) };
    let lines = head[..end].split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.take(LINES_LOOKED_AT).collect()
}

/// The name of a field of a header.
fn name(field: &Field<'_>) -> String {
    String::from_utf8_lossy(field.bytes).trim().to_string()
}

impl Header {
    /// The header among the first lines: one that names a time, an offset and a size; or two of
    /// them, in front of a row with as many fields. Prose has such words, too.
    pub(super) fn find(lines: &[&[u8]]) -> Option<Header> {
        let known = |separator, at: usize| {
            let line = lines[at].trim_ascii_start();
            let line = line.strip_prefix(b"#").unwrap_or(line);
            let mut fields = Vec::new();
            split(line, separator, &mut fields).ok()?;
            let names: Vec<String> = fields.iter().map(name).collect();
            let roles: Vec<Role> = names.iter().map(|name| role(name)).collect();
            let has = |is: fn(&Role) -> bool| usize::from(roles.iter().any(is));
            let found = has(|role| matches!(role, Role::Time(_)))
                + has(|role| matches!(role, Role::Start(_)))
                + has(|role| matches!(role, Role::Length(_)));
            let mut rows = lines[at + 1..].iter().filter(|row| !is_comment(row));
            let row = rows.next();
            let row = row.filter(|r| split_to(r, separator, names.len(), &mut fields).is_ok());
            let has = row.map(|_| fields.len());
            let is_header = match separator {
                // The names of processes have blanks, so rows have more fields.
                Separator::Blanks => {
                    let time = roles.iter().position(|role| matches!(role, Role::Time(_)));
                    let time = time.and_then(|at| fields.get(at));
                    let timed = time.is_some_and(|t| t.scaled((1, 9), true, "").is_ok());
                    found == 3 && (has.is_none() || timed)
                }
                Separator::Byte(_) if found == 3 => has.is_none_or(|n| n.abs_diff(names.len()) < 2),
                Separator::Byte(_) => found == 2 && has == Some(names.len()),
            };
            is_header.then_some(Header { separator, names, roles, lines_before: at + 1 })
        };
        let places = 0..lines.len().min(PROSE_LINES);
        places.flat_map(|at| Separator::ALL.map(|s| known(s, at))).flatten().next()
    }

    /// Is it one of biosnoop's or iosnoop's?
    pub(super) fn is_of_snoop(&self) -> bool {
        self.separator == Separator::Blanks && self.roles.contains(&Role::Command)
    }

    /// Is it libCacheSim's?
    pub(super) fn is_cachesim(&self) -> bool {
        self.names == ["version", "time", "op", "size", "lbn"]
    }

    /// Are its columns those of `page`, by their names? Case and signs do not matter.
    pub(super) fn is_of(&self, page: &FormatPage) -> bool {
        let own = page.columns.iter().map(|column| words(column.name).concat());
        let names = self.names.iter().map(|name| words(name).concat());
        self.separator != Separator::Blanks && names.filter(|name| !name.is_empty()).eq(own)
    }

    /// The columns that it names; what `lines` hold decides what it does not say.
    pub(super) fn layout(&self, lines: &[&[u8]], fixed: &Fixed) -> Result<Layout, String> {
        let rows = lines.get(self.lines_before..).unwrap_or_default();
        resolve(self.separator, &self.names, self.lines_before, rows, fixed)
    }
}

/// Units that a format has by definition, where its header does not name them.
#[derive(Clone, Copy, Default)]
pub(super) struct Fixed {
    pub(super) time: Option<u32>,
    pub(super) start: Option<u64>,
    pub(super) length: Option<u64>,
}

/// Why a list of columns, as of `--columns`, is none.
pub fn check_columns(list: &str) -> Result<(), String> {
    let names = listed(list);
    for name in names.iter().filter(|name| *name != "-") {
        if matches!(role(name), Role::Other | Role::Command | Role::Action) {
            return Err(format!(
                "{name}: no column; there are time_s, time_ms, time_us, time_ns, time_filetime, \
                 op, is_write, is_read, offset_bytes, offset_kib, sector, size_bytes, size_kib, \
                 sectors, volume, pid, sync, and - for one to be left alone"
            ));
        }
    }
    places(&names).map(|_| ())
}

fn listed(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_string()).collect()
}

/// The layout of a table that the user lists the columns of, and whether a header stands first.
pub(super) fn given(list: &str, lines: &[&[u8]]) -> Result<Layout, String> {
    check_columns(list)?;
    let names = listed(list);
    let at = places(&names)?;
    let fits = |line: &&[u8], separator| {
        let mut fields = Vec::new();
        split_to(line, separator, names.len(), &mut fields).is_ok() && fields.len() >= names.len()
    };
    let rows: Vec<&[u8]> = lines.iter().copied().filter(|line| !is_comment(line)).collect();
    let Some(separator) = Separator::ALL.into_iter().max_by_key(|separator| {
        // The first of those that split most lines.
        let order = Separator::ALL.iter().position(|s| s == separator).unwrap_or(0);
        (rows.iter().filter(|row| fits(row, *separator)).count(), std::cmp::Reverse(order))
    }) else {
        return Err("no line".into());
    };
    // A first line in which no number is where numbers should be is a header.
    let is_header = |line: &&[u8]| {
        let mut fields = Vec::new();
        let split = split_to(line, separator, names.len(), &mut fields).is_ok();
        let number = |at: usize| fields[at].scaled((1, 0), true, "").is_ok();
        split
            && fields.len() >= names.len()
            && ![at.time, at.start, at.length].map(number).contains(&true)
    };
    let comments = lines.iter().take_while(|line| is_comment(line)).count();
    let before = comments + usize::from(rows.first().is_some_and(is_header));
    let layout = resolve(separator, &names, before, &lines[before..], &Fixed::default())?;
    Ok(Layout { exact: false, ..layout })
}

/// Columns by what they hold.
struct Places {
    time: usize,
    start: usize,
    length: usize,
    op: Option<usize>,
    sync: Option<usize>,
    volumes: Vec<usize>,
    process: Option<usize>,
    command: Option<usize>,
}

fn places(names: &[String]) -> Result<Places, String> {
    let roles: Vec<Role> = names.iter().map(|name| role(name)).collect();
    let all = |is: &dyn Fn(&Role) -> bool| -> Vec<usize> {
        (0..roles.len()).filter(|at| is(&roles[*at])).collect()
    };
    let one = |holds: &str, is: &dyn Fn(&Role) -> bool| match all(is)[..] {
        [] => Ok(None),
        [at] => Ok(Some(at)),
        [a, b, ..] => Err(both(names, (a, b), holds)),
    };
    let needed = |holds: &str, such_as: &str, is: &dyn Fn(&Role) -> bool| {
        one(holds, is)?.ok_or_else(|| {
            format!(
                "no column is {holds} among `{}`; list the columns with --columns, such as {such_as}",
                names.join(",")
            )
        })
    };
    const EXAMPLE: &str = "time_us,op,offset_bytes,size_bytes,volume";
    Ok(Places {
        time: needed("the time", EXAMPLE, &|r| matches!(r, Role::Time(_)))?,
        start: needed("the offset", EXAMPLE, &|r| matches!(r, Role::Start(_)))?,
        length: needed("the size", EXAMPLE, &|r| matches!(r, Role::Length(_)))?,
        op: one("the operation", &|r| r.is_op())?,
        sync: one("sync", &|r| *r == Role::Sync)?,
        volumes: all(&|r| *r == Role::Volume),
        process: one("the process", &|r| *r == Role::Process)?,
        command: one("the process's name", &|r| *r == Role::Command)?,
    })
}

/// The layout, with all units: those of the names, then `fixed`, then what `rows` tell.
fn resolve(
    separator: Separator,
    names: &[String],
    lines_before: usize,
    rows: &[&[u8]],
    fixed: &Fixed,
) -> Result<Layout, String> {
    let at = places(names)?;
    let mut rows = Rows { separator, names, rows, op: at.op };
    if at.op.is_none() {
        rows.op = rows.unnamed_op()?;
    }
    let kind = |n: usize| role(&names[n]);
    let (Role::Time(time), Role::Start(start), Role::Length(length)) =
        (kind(at.time), kind(at.start), kind(at.length))
    else {
        return Err("no time or extent".into());
    };
    let (time_scale, time_within) = match time.or(fixed.time) {
        Some(scale) => (scale, (0, u64::MAX)),
        None => rows.time(at.time)?,
    };
    let (start, length) = (start.or(fixed.start), length.or(fixed.length));
    let taken = [(start, at.start), (length, at.length)];
    let other_length = if start == Some(1024) { "size_kib" } else { "sectors" };
    Ok(Layout {
        separator,
        names: names.to_vec(),
        lines_before,
        exact: true,
        time: at.time,
        time_scale,
        time_within,
        start: at.start,
        start_unit: rows.unit(at.start, (start, length), ("offset_bytes", "sector"))?,
        length: at.length,
        length_unit: rows.unit(at.length, (length, start), ("size_bytes", other_length))?,
        taken_as_bytes: taken
            .iter()
            .filter(|(told, _)| told.is_none())
            .map(|(_, at)| *at)
            .collect(),
        op: rows.op.map(|n| Ok::<_, String>((n, rows.op(n)?))).transpose()?,
        sync: at.sync,
        volumes: at.volumes,
        process: at.process,
        command: at.command,
    })
}

impl Layout {
    /// The units, for the user.
    pub(super) fn units(&self) -> String {
        let time = match self.time_scale {
            9 => "s",
            6 => "ms",
            3 => "µs",
            2 => "100 ns",
            _ => "ns",
        };
        let size = |unit: u64| match unit {
            1 => "bytes".to_string(),
            512 => "sectors".to_string(),
            1_024 => "KiB".into(),
            1_048_576 => "MiB".into(),
            1_073_741_824 => "GiB".into(),
            unit => format!("blocks of {unit} bytes"),
        };
        let op = match self.op {
            None => ALL_READS.into(),
            Some((at, _)) if role(&self.names[at]).is_op() => String::new(),
            Some((at, _)) => format!(", operations in `{}`", self.names[at]),
        };
        let (start, length) = (size(self.start_unit), size(self.length_unit));
        format!("times in {time}, offsets in {start}, sizes in {length}{op}")
    }
}
