//! Traces in forms that are not read, and what to do with each.

use super::blkparse;
use memchr::memmem::find;

/// Test of a file's beginning, and advice for such a file; `{path}` stands for the file.
type Form = (fn(&[u8]) -> bool, &'static str);

const FORMS: [Form; 6] = [
    (
        |head| head.starts_with(b"PAR1"),
        "Parquet, which the Python package makes a CSV of: python3 -c \"import seekway; \
         seekway.write_trace('{path}', '{path}.csv.gz')\"",
    ),
    (
        |head| head.starts_with(b"PERFILE2"),
        "the binary file of perf record: give what `perf script` prints of it",
    ),
    (
        |head| head.starts_with(b"\x17\x08\x44tracing"),
        "the binary file of trace-cmd: give what `trace-cmd report` prints of it",
    ),
    (
        |head| has(head, b"block:block_") && has(head, b"(dev: "),
        "the text of perf trace, which is not read: trace by `perf record -e block:block_rq_issue \
         -a`, and give what `perf script` prints",
    ),
    (
        |head| has(head, b"block_io_start: ") || has(head, b"block_io_done: "),
        "events block_io_start and block_io_done are not read, for they are no requests as they \
         were queued or issued: trace block:block_rq_issue",
    ),
    (
        |head| has(head, b"COMM") && has(head, b"LAT(ms)") && !has(head, b"SECTOR"),
        "a table of bpftrace's biosnoop, which has no sectors and sizes: use that of bcc",
    ),
];

fn has(head: &[u8], text: &[u8]) -> bool {
    find(head, text).is_some()
}

/// Advice for the text of `blkparse -f`.
const BLKPARSE_F: &str = "the text of blkparse -f, in another order than blkparse's own or without \
    the +: give its format by --columns, such as --columns '%T.%t %a %d %S %n'";

/// Advice for a file that no format takes, if it has one of these forms. `rows` are the first lines
/// of a file without a header.
pub(in super::super) fn unread(head: &[u8], rows: &[&[u8]]) -> Option<&'static str> {
    let found = FORMS.iter().find(|(is_it, _)| is_it(head)).map(|(_, what)| *what);
    let expected = |row: &[u8]| blkparse::event(row).err().map(|fault| fault.expected);
    let is_f = || rows.iter().any(|row| expected(row) == Some(blkparse::EXTENT));
    found.or_else(|| is_f().then_some(BLKPARSE_F))
}
