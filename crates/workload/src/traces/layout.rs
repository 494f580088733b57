//! Where the fields of a table's request are: from its header, or from `--columns`.

use super::fields::{Field, Separator, split};
use super::names::{Role, role};
use super::ops;

/// Lines at the beginning among which a header is looked for, and rows that decide between units.
const LINES_LOOKED_AT: usize = 200;
/// Lines of prose that may stand in front of a header.
const PROSE_LINES: usize = 20;

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
    pub(super) start: usize,
    /// Bytes in one of the unit.
    pub(super) start_unit: u64,
    pub(super) length: usize,
    pub(super) length_unit: u64,
    /// Without one, all requests are reads.
    pub(super) op: Option<(usize, OpKind)>,
    /// Together they name the volume.
    pub(super) volumes: Vec<usize>,
    pub(super) process: Option<usize>,
    /// The one column that may hold blanks.
    pub(super) command: Option<usize>,
}

/// How a column says the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpKind {
    Named,
    /// One or true is a write, or else a read.
    Bool {
        write: bool,
    },
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
            let row = lines.get(at + 1).filter(|row| split(row, separator, &mut fields).is_ok());
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

    /// Does it name the unit of the time or of an extent?
    pub(super) fn names_units(&self) -> bool {
        let names = self.names.iter().zip(&self.roles);
        names.into_iter().any(|(name, role)| match role {
            Role::Time(unit) => unit.is_some(),
            // `lba` is a unit by custom only.
            Role::Start(unit) => unit.is_some() && !name.to_ascii_lowercase().contains("lb"),
            Role::Length(unit) => unit.is_some(),
            _ => false,
        })
    }

    /// Are its columns in another order than those of `other`, a list as of `--columns`?
    pub(super) fn contradicts(&self, other: &str) -> bool {
        let kind = |role: &Role| match role {
            Role::Time(_) => Some(0),
            Role::Start(_) => Some(1),
            Role::Length(_) => Some(2),
            Role::Op | Role::IsRead | Role::IsWrite => Some(3),
            _ => None,
        };
        let others: Vec<_> = other.split(',').map(|name| kind(&role(name))).collect();
        let differs = |(at, role)| {
            kind(role).is_some_and(|kind| others.get(at).is_none_or(|other| *other != Some(kind)))
        };
        self.roles.iter().enumerate().any(differs)
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
                 sectors, volume, process, and - for one to be left alone"
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
        split(line, separator, &mut fields).is_ok_and(|()| fields.len() >= names.len())
    };
    let rows: Vec<&[u8]> = lines.iter().copied().filter(|line| line[0] != b'#').collect();
    let Some(separator) = Separator::ALL.into_iter().max_by_key(|separator| {
        // The first of those that split most lines.
        let order = Separator::ALL.iter().position(|s| s == separator).unwrap_or(0);
        (rows.iter().filter(|row| fits(row, *separator)).count(), std::cmp::Reverse(order))
    }) else {
        return Err("no line".into());
    };
    // A first line whose time is no number is a header.
    let is_header = |line: &[u8]| {
        let mut fields = Vec::new();
        let split = split(line, separator, &mut fields);
        let time = fields.get(at.time).map(|f| f.scaled((1, 9), true, "").is_err());
        line.first() == Some(&b'#') || (split.is_ok() && time == Some(true))
    };
    let before = usize::from(lines.first().is_some_and(|line| is_header(line)));
    let layout = resolve(separator, &names, before, &lines[before..], &Fixed::default())?;
    Ok(Layout { exact: false, ..layout })
}

/// Columns by what they hold.
struct Places {
    time: usize,
    start: usize,
    length: usize,
    op: Option<usize>,
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
        [a, b, ..] => Err(format!(
            "columns {} `{}` and {} `{}` could both be {holds}: list the columns with --columns, \
             and - for those to be left alone",
            a + 1,
            names[a],
            b + 1,
            names[b]
        )),
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
        op: one("the operation", &|r| matches!(r, Role::Op | Role::IsRead | Role::IsWrite))?,
        volumes: all(&|r| *r == Role::Volume),
        process: one("the process", &|r| *r == Role::Process)?,
        command: one("the process's name", &|r| *r == Role::Command)?,
    })
}

/// The rows that tell what names do not say.
struct Rows<'a> {
    separator: Separator,
    names: &'a [String],
    rows: &'a [&'a [u8]],
}

impl Rows<'_> {
    /// The values of column `at`, as text and as numbers.
    fn column(&self, at: usize) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for row in self.rows {
            let mut fields = Vec::new();
            if split(row, self.separator, &mut fields).is_ok()
                && fields.len() >= self.names.len()
                && let Some(field) = fields.get(at)
            {
                let text = String::from_utf8_lossy(field.bytes).into_owned();
                let value = text.parse().unwrap_or(f64::NAN);
                values.push((text, value));
            }
        }
        values
    }

    /// The columns, with column `at` called `name`.
    fn renamed(&self, at: usize, name: &str) -> String {
        let listed = self.names.iter().enumerate().map(|(n, own)| match role(own) {
            _ if n == at => name,
            Role::Other | Role::Command | Role::Action => "-",
            _ => own.as_str(),
        });
        listed.collect::<Vec<_>>().join(",")
    }

    /// The refusal of a column with two readings.
    fn either(&self, at: usize, what: &str, first: &str, second: &str) -> String {
        format!(
            "column {} `{}` does not say {what}: --columns {}, or {}",
            at + 1,
            self.names[at],
            self.renamed(at, first),
            self.renamed(at, second)
        )
    }

    /// Bytes in one of column `at`: those that its name says or that are fixed, else one, if the
    /// values can be bytes. `names` are those for bytes and for sectors.
    fn unit(&self, at: usize, told: Option<u64>, names: (&str, &str)) -> Result<u64, String> {
        let is_block = self.names[at].to_ascii_lowercase().contains("block");
        let is_whole = |value: f64| !value.is_finite() || value % 512.0 == 0.0;
        match told {
            Some(unit) => Ok(unit),
            None if !is_block && self.column(at).iter().all(|(_, value)| is_whole(*value)) => Ok(1),
            None => Err(self.either(at, "bytes or sectors", names.0, names.1)),
        }
    }

    /// How column `at` says the operation.
    fn op(&self, at: usize) -> Result<OpKind, String> {
        match role(&self.names[at]) {
            Role::IsWrite => Ok(OpKind::Bool { write: true }),
            Role::IsRead => Ok(OpKind::Bool { write: false }),
            _ => {
                let values = self.column(at);
                let unnamed = |(text, value): &(String, f64)| {
                    value.is_finite() && ops::named(text.as_bytes()).is_none()
                };
                if values.is_empty() || !values.iter().all(unnamed) {
                    return Ok(OpKind::Named);
                }
                Err(self.either(at, "what is a write", "is_write", "is_read"))
            }
        }
    }
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
    let rows = Rows { separator, names, rows };
    let kind = |n: usize| role(&names[n]);
    let (Role::Time(time), Role::Start(start), Role::Length(length)) =
        (kind(at.time), kind(at.start), kind(at.length))
    else {
        return Err("no time or extent".into());
    };
    let epoch = || epoch(&rows.column(at.time));
    let time_scale = time
        .or(fixed.time)
        .or_else(epoch)
        .ok_or_else(|| rows.either(at.time, "in which unit times are", "time_s", "time_us"))?;
    Ok(Layout {
        separator,
        names: names.to_vec(),
        lines_before,
        exact: true,
        time: at.time,
        time_scale,
        start: at.start,
        start_unit: rows.unit(at.start, start.or(fixed.start), ("offset_bytes", "sector"))?,
        length: at.length,
        length_unit: rows.unit(at.length, length.or(fixed.length), ("size_bytes", "sectors"))?,
        op: at.op.map(|n| Ok::<_, String>((n, rows.op(n)?))).transpose()?,
        volumes: at.volumes,
        process: at.process,
        command: at.command,
    })
}

/// The unit of times that are all wall-clock times of the years 2000 to 2040: no other unit makes
/// such numbers.
fn epoch(times: &[(String, f64)]) -> Option<u32> {
    const UNITS: [(u32, f64, f64); 5] = [
        (9, 0.94e9, 2.3e9),
        (6, 0.94e12, 2.3e12),
        (3, 0.94e15, 2.3e15),
        (0, 0.94e18, 2.3e18),
        // Since 1601, in units of 100 ns.
        (2, 1.25e17, 1.39e17),
    ];
    let fits = |&&(_, low, high): &&(u32, f64, f64)| {
        !times.is_empty() && times.iter().all(|(_, time)| (low..high).contains(time))
    };
    UNITS.iter().find(fits).map(|(scale, ..)| *scale)
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
            unit => format!("blocks of {unit} bytes"),
        };
        let op = if self.op.is_none() { ", all reads" } else { "" };
        let (start, length) = (size(self.start_unit), size(self.length_unit));
        format!("times in {time}, offsets in {start}, sizes in {length}{op}")
    }
}
