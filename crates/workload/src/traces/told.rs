//! Units and operations of a table's columns, as its first rows tell them where the names do not.
//! Where the rows allow two readings, the error names both.

use super::fields::{Separator, split_to};
use super::figures::{RATE_MAX, REQUESTS_LEAST, TIMES, UPTIME_NS_MAX, time, within, year};
use super::names::{Role, has_other_unit, may_be_op, role};
use super::ops::{self, Named};
use seekway_core::request::Op;

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
                values.iter().filter_map(|(text, _)| ops::named(text.as_bytes())).collect();
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
