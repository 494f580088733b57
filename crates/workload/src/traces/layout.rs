//! Where the fields of a table's request are: from its header, or from `--columns`; and
//! their units and operations, by names of columns and by the first rows.

use super::cursor::{Field, Separator, split, split_to};
use super::figures::{RATE_MAX, REQUESTS_LEAST, TIMES, UPTIME_NS_MAX, time, within, year};
use super::raw::Named;
use super::{FormatPage, raw};
use seekway_core::request::Op;

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

// Names of columns: what a header, or `--columns`, says a column holds, and in which unit.

/// Content of a column. A unit that its name does not tell is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// The power of ten that makes nanoseconds of it: 9 for seconds.
    Time(Option<u32>),
    /// Bytes in one of it.
    Start(Option<u64>),
    /// Bytes in one of it.
    Length(Option<u64>),
    /// Words, RWBS letters or SCSI commands.
    Op,
    /// One or true for a write.
    IsWrite,
    /// One or true for a read.
    IsRead,
    /// One or true if somebody waits for the request.
    Sync,
    Volume,
    Process,
    /// The name of a process: the one column that may hold blanks in a table of blanks.
    Command,
    /// Of a request's life, as blkparse has it: Q, D, C.
    Action,
    /// Of no interest.
    Other,
}

impl Role {
    pub(super) fn is_op(self) -> bool {
        matches!(self, Role::Op | Role::IsRead | Role::IsWrite)
    }
}

const SECTOR: u64 = 512;

/// Words that say a time is not the request's arrival.
const DURATIONS: &str = "latency lat response resp rt service duration delay wait queue que think gap \
                         interarrival next end ends complete completed completion finish ttl";
const SIZES: &str = "size len length nbytes count bytes sectors nsectors blocks nr bs";
const STARTS: &str = "offset off lba lbn lsn sector block blkno blockno address addr position pos slba \
                      startlba";

const TIME_NAMES: &str =
    "time timestamp ts clock arrival epoch issue issued submit submitted elapsed starts";
const VOLUMES: &str = "volume vol disk device dev lun asu vm host hostname drive file filename volumeid \
                       deviceid diskid disknumber node";
/// Words of units that are not read, in the singular.
const OTHER_UNITS: &str = "block page bit cluster chunk extent stripe pb pib min minute h hr hour day \
                           cycle tsc jiffie p psec";

/// Is the word one of the list?
fn is_in(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

/// Finds the content of the column called `name`: `time_us`, `TIME(s)`, `offset_bytes`, `lenKiB`,
/// `lba`.
pub(super) fn role(name: &str) -> Role {
    let words = words(name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let has = |list: &str| words.iter().any(|word| is_in(list, word));
    if words.is_empty() || has(DURATIONS) {
        return Role::Other;
    }
    let plain = words.concat();
    match plain.as_str() {
        "op" | "ops" | "rw" | "rwbs" | "type" | "iotype" | "opcode" | "operation" | "optype"
        | "t" | "dir" | "direction" | "ddir" | "cmd" | "kind" | "request" | "requesttype"
        | "reqtype" | "accesstype" | "readwrite" | "command" => return Role::Op,
        "sync" => return Role::Sync,
        "iswrite" | "write" => return Role::IsWrite,
        "isread" | "read" => return Role::IsRead,
        "comm" | "process" | "processname" | "pname" => return Role::Command,
        "action" | "event" => return Role::Action,
        "pid" | "processid" | "tid" | "tgid" => return Role::Process,
        "name" | "version" | "index" | "id" | "id0" | "hash" => return Role::Other,
        _ => {}
    }
    let is_start = has(STARTS) || (has("start") && size_unit(&words).is_some());
    if is_start && !has("size len length count nr num") {
        let fixed = has("lba lbn lsn sector sectors slba startlba");
        return Role::Start(size_unit(&words).or(fixed.then_some(SECTOR)));
    }
    if has(SIZES) {
        return Role::Length(size_unit(&words));
    }
    if has(TIME_NAMES) || (words.len() == 2 && matches!(words[0], "t" | "at" | "start" | "begin")) {
        let unit = if plain == "starts" { Some(9) } else { time_unit(&words) };
        return Role::Time(unit);
    }
    if has(VOLUMES) { Role::Volume } else { Role::Other }
}

/// The power of ten that makes nanoseconds of the unit among `words`.
fn time_unit(words: &[&str]) -> Option<u32> {
    words.iter().find_map(|word| match *word {
        "s" | "sec" | "secs" | "second" | "seconds" => Some(9),
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => Some(6),
        "us" | "usec" | "usecs" | "micros" | "microsecond" | "microseconds" => Some(3),
        "ns" | "nsec" | "nsecs" | "nanos" | "nanosecond" | "nanoseconds" => Some(0),
        "filetime" | "ticks" | "100ns" => Some(2),
        _ => None,
    })
}

/// Bytes in one of the unit among `words`; there may be a number in front of it, `4k`.
fn size_unit(words: &[&str]) -> Option<u64> {
    words.iter().find_map(|word| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let bytes = match unit {
            "b" | "byte" | "bytes" | "nbytes" => 1,
            "sector" | "sectors" | "nsectors" => SECTOR,
            "k" | "kb" | "kib" | "ki" => 1 << 10,
            "m" | "mb" | "mib" | "mi" => 1 << 20,
            "g" | "gb" | "gib" | "gi" => 1 << 30,
            "tb" | "tib" | "ti" => 1 << 40,
            "" if matches!(*word, "512" | "4096") => 1,
            _ => return None,
        };
        match &word[..word.len() - unit.len()] {
            "" => Some(bytes),
            number => number.parse::<u64>().ok()?.checked_mul(bytes).filter(|bytes| *bytes > 0),
        }
    })
}

/// Does the column's name have a unit that is not read? Then no other is guessed.
pub(super) fn has_other_unit(name: &str) -> bool {
    words(name).iter().any(|word| is_in(OTHER_UNITS, word.strip_suffix('s').unwrap_or(word)))
}

/// Does the name tell of operations, though it is none of those that are known?
pub(super) fn may_be_op(name: &str) -> bool {
    const BEGINNINGS: [&str; 6] = ["rw", "read", "writ", "direction", "operation", "access"];
    words(name).iter().any(|word| {
        matches!(word.as_str(), "op" | "io" | "mode" | "dir" | "rd" | "wr" | "iotype" | "type")
            || BEGINNINGS.iter().any(|begins| word.starts_with(begins))
    })
}

/// The words of a name, in small letters: at signs, capitals behind small letters, and small
/// letters behind two capitals (`LATms`, `STARTs`) one ends and another begins.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    let letters: Vec<char> = name.replace(['µ', 'μ'], "u").chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        if !letter.is_alphanumeric() {
            open = false;
            continue;
        }
        let before = at.checked_sub(1).map_or(' ', |at| letters[at]);
        let capital = letter.is_uppercase() && before.is_lowercase();
        let unit = letter.is_lowercase()
            && at >= 2
            && before.is_uppercase()
            && letters[at - 2].is_uppercase()
            && matches!(
                letters[at..].iter().collect::<String>().as_str(),
                "s" | "ms" | "us" | "ns"
            );
        // `KiB` stays one word.
        let kib = before == 'i' && *letter == 'B';
        if !open || (capital && !kib) || unit {
            words.push(String::new());
        }
        open = true;
        words.last_mut().expect("one is open").extend(letter.to_lowercase());
    }
    words
}

// Units and operations of a table's columns, as its first rows tell them where the names do not.
// Where the rows allow two readings, the error names both.

/// Form in which a column says the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpKind {
    Named,
    /// One or true is a write, or else a read.
    Bool {
        write: bool,
    },
}

pub(super) fn is_comment(line: &[u8]) -> bool {
    line.trim_ascii_start().first() == Some(&b'#')
}

/// Two columns that could both be the one that is looked for.
pub(super) fn both(names: &[String], (a, b): (usize, usize), holds: &str) -> String {
    format!(
        "columns {} `{}` and {} `{}` could both be {holds}: list the columns with --columns, \
         and - for those to be left alone",
        a + 1,
        names[a],
        b + 1,
        names[b]
    )
}

/// The rows that tell what names do not say.
pub(super) struct Rows<'a> {
    pub(super) separator: Separator,
    pub(super) names: &'a [String],
    pub(super) rows: &'a [&'a [u8]],
    /// The column of operations.
    pub(super) op: Option<usize>,
}

impl Rows<'_> {
    /// The values of column `at`, as text and as numbers.
    fn column(&self, at: usize) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for row in self.rows {
            let mut fields = Vec::new();
            if !is_comment(row)
                && split_to(row, self.separator, self.names.len(), &mut fields).is_ok()
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
            Role::Other | Role::Command | Role::Action if self.op == Some(n) => "op",
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
    /// values can be bytes and `other`, the unit of the other end of the request, is no longer one.
    /// `names` are those for bytes and for sectors.
    pub(super) fn unit(
        &self,
        at: usize,
        (told, other): (Option<u64>, Option<u64>),
        names: (&str, &str),
    ) -> Result<u64, String> {
        let is_told = has_other_unit(&self.names[at]) || other.is_some_and(|other| other > 1);
        let is_whole = |value: f64| !value.is_finite() || value % 512.0 == 0.0;
        match told {
            Some(unit) => Ok(unit),
            None if !is_told && self.column(at).iter().all(|(_, value)| is_whole(*value)) => Ok(1),
            None => Err(self.either(at, "bytes or sectors", names.0, names.1)),
        }
    }

    /// The unit of the times in column `at`, and between which nanoseconds it holds: the only one
    /// in which they are wall-clock times, or times since a start, at a rate that can be. Nobody
    /// writes fractions of another unit beside numbers that are wall-clock times.
    pub(super) fn time(&self, at: usize) -> Result<(u32, (u64, u64)), String> {
        let column = self.column(at);
        let what = format!("column {} `{}`", at + 1, self.names[at]);
        if column.iter().any(|(text, _)| text.contains(':') || text.matches('-').count() == 2) {
            return Err(format!(
                "{what} has dates or times of day, which are not read: write them as seconds, \
                 such as those since 1970"
            ));
        }
        if has_other_unit(&self.names[at]) {
            return Err(format!(
                "{what} is in a unit that is not read: write it in s, ms, us or ns, and name it so"
            ));
        }
        let values = column.iter().map(|(_, value)| *value).filter(|value| value.is_finite());
        if values.clone().count() == 0 {
            return Err(self.either(at, "in which unit times are", "time_s", "time_us"));
        }
        let (low, high) =
            (values.clone().fold(f64::MAX, f64::min), values.clone().fold(0.0, f64::max));
        let has_fraction = values.clone().any(|value| value.fract() != 0.0);
        let readings = TIMES.iter().filter_map(|&(name, scale, from, to)| {
            let ns = 10_f64.powi(scale as i32);
            let span_s = (high - low) * ns / 1e9;
            let is_wall = from <= low && high < to;
            let is_uptime = name != "time_filetime" && high * ns <= UPTIME_NS_MAX;
            let count = column.len() as u64;
            let too_fast = count >= REQUESTS_LEAST && (count - 1) as f64 > RATE_MAX * span_s;
            let can_be = is_wall || (is_uptime && !(scale == 0 && has_fraction));
            let bounds = if is_wall { (from * ns, to * ns) } else { (0.0, UPTIME_NS_MAX) };
            let since = if is_wall { year(name, low * ns) } else { time(low * ns / 1e9) };
            let told = || format!("from {since} on, {}", within(count, span_s));
            (can_be && !(too_fast && span_s > 0.0)).then(|| (name, is_wall, scale, bounds, told()))
        });
        let mut readings: Vec<_> = readings.collect();
        if has_fraction && readings.iter().any(|(_, is_wall, ..)| *is_wall) {
            readings.retain(|(_, is_wall, ..)| *is_wall);
        }
        match &readings[..] {
            [(_, _, scale, (from, to), _)] => Ok((*scale, (*from as u64, *to as u64))),
            [] => Err(self.either(at, "in which unit times are", "time_s", "time_us")),
            _ => {
                let told = |(name, .., told): &(&str, bool, u32, (f64, f64), String)| {
                    format!("--columns {} ({told})", self.renamed(at, name))
                };
                let told: Vec<String> = readings.iter().map(told).collect();
                Err(format!("{what} does not say in which unit times are: {}", told.join(", or ")))
            }
        }
    }

    /// A column of operations whose name is none that is known: in words, or else in numbers that
    /// do not say what is a write.
    pub(super) fn unnamed_op(&self) -> Result<Option<usize>, String> {
        let is_left = |at: &usize| {
            let role = role(&self.names[*at]);
            self.names[*at] != "-" && matches!(role, Role::Other | Role::Command | Role::Action)
        };
        let left: Vec<_> =
            (0..self.names.len()).filter(is_left).map(|at| (at, self.column(at))).collect();
        // One of other words stops the reading at its line: no column of operations is passed over.
        let are_words = |values: &[(String, f64)]| {
            let text = values.iter().filter(|(_, value)| !value.is_finite()).count();
            let named: Vec<_> =
                values.iter().filter_map(|(text, _)| raw::named(text.as_bytes())).collect();
            let moves = |named: &Named| matches!(named.op, Some(Op::Read | Op::Write));
            text > 0 && named.len() * 2 >= values.len() && named.iter().any(moves)
        };
        let mut words = left.iter().filter(|(_, values)| are_words(values)).map(|(at, _)| *at);
        match (words.next(), words.next()) {
            (Some(a), Some(b)) => Err(both(self.names, (a, b), "the operation")),
            (Some(at), None) => Ok(Some(at)),
            _ => {
                let is_flag = |text: &str| {
                    let small = text.to_ascii_lowercase();
                    matches!(small.as_str(), "0" | "1" | "0.0" | "1.0" | "true" | "false")
                };
                let flags = left.iter().find(|(at, values)| {
                    let all = !values.is_empty() && values.iter().all(|(text, _)| is_flag(text));
                    all && may_be_op(&self.names[*at])
                });
                match flags {
                    Some((at, _)) => {
                        Err(self.either(*at, "what is a write", "is_write", "is_read"))
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Finds the form in which column `at` says the operation.
    pub(super) fn op(&self, at: usize) -> Result<OpKind, String> {
        match role(&self.names[at]) {
            Role::IsWrite => Ok(OpKind::Bool { write: true }),
            Role::IsRead => Ok(OpKind::Bool { write: false }),
            _ => {
                let values = self.column(at);
                let unnamed = |(text, value): &(String, f64)| {
                    value.is_finite() && raw::named(text.as_bytes()).is_none()
                };
                if values.is_empty() || !values.iter().all(unnamed) {
                    return Ok(OpKind::Named);
                }
                Err(self.either(at, "what is a write", "is_write", "is_read"))
            }
        }
    }
}

#[cfg(test)]
mod names_tests {
    use super::*;

    #[test]
    fn names_say_what_a_column_holds_and_in_which_unit() {
        for (names, role_of) in [
            ("time_s TIME(s) TimeSec time.seconds STARTs t_s start_s", Role::Time(Some(9))),
            ("time_ms ts[ms] arrivalMs", Role::Time(Some(6))),
            ("time_us timestamp(µs) issue_us ts-usec elapsed_us begin_us", Role::Time(Some(3))),
            ("time_ns ts_ns Timestamp_ns", Role::Time(Some(0))),
            ("time_filetime time_100ns", Role::Time(Some(2))),
            ("time Timestamp ts", Role::Time(None)),
            ("offset_bytes offset_b start_bytes", Role::Start(Some(1))),
            ("offset Offset address", Role::Start(None)),
            ("lba lbn sector SECTOR start_sector offset_sectors LBA", Role::Start(Some(512))),
            ("offset_kib offsetKiB", Role::Start(Some(1024))),
            ("block", Role::Start(None)),
            ("block_4k", Role::Start(Some(4096))),
            ("bytes size_bytes BYTES nbytes len_b", Role::Length(Some(1))),
            ("size len length Size", Role::Length(None)),
            ("sectors nr_sectors nsectors sector_count size_sectors", Role::Length(Some(512))),
            ("len_kib size_kb sizeKiB", Role::Length(Some(1024))),
            ("op rw Type IOType io_type opcode T rwbs", Role::Op),
            ("is_write write", Role::IsWrite),
            ("is_read", Role::IsRead),
            ("disk volume DISK DiskNumber Hostname device_id VolumeID lun", Role::Volume),
            ("pid PID process_id", Role::Process),
            ("COMM", Role::Command),
            (
                "ResponseTime LAT(ms) QUE(ms) latency_us ENDs complete_time_us service_time \
                 version md5 P next_access_vtime",
                Role::Other,
            ),
        ] {
            for name in names.split(' ') {
                assert_eq!(role(name), role_of, "{name}");
            }
        }
        assert_eq!(role("Time (microseconds)"), Role::Time(Some(3)));
        assert_eq!(role("Transfer length [bytes]"), Role::Length(Some(1)));
        assert_eq!(role("Start LBA"), Role::Start(Some(512)));
        assert_eq!(role("R/W"), Role::Op);
        assert_eq!(role("Unnamed: 0"), Role::Other);
        assert_eq!(role(""), Role::Other);
    }
}
