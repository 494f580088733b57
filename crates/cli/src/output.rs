//! Standard output and files, so that a full disk or a closed pipe is noticed.

use crate::args::Format;
use anyhow::{Context, Result};
use seekway_report::html::{Report, Section};
use seekway_report::table::{self, Table};
use serde::Serialize;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

thread_local! {
    /// Output of this thread, while somebody captures it.
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work` on this thread; what it prints to standard output comes back instead.
pub fn captured<T>(work: impl FnOnce() -> T) -> (String, T) {
    CAPTURED.set(Some(String::new()));
    let result = work();
    (CAPTURED.take().unwrap_or_default(), result)
}

/// Print a result to standard output and flush it.
pub fn print(text: &str) -> Result<()> {
    let captured = CAPTURED.with_borrow_mut(|to| to.as_mut().map(|to| to.push_str(text)));
    if captured.is_some() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")
}

/// The text with its first letter in upper case.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |c| c.to_uppercase().chain(letters).collect())
}

/// The command as somebody would type it again.
pub fn command_line() -> String {
    let quoted = |arg: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=:,./+@%".contains(c);
        if !arg.is_empty() && arg.chars().all(plain) {
            return arg;
        }
        format!("'{}'", arg.replace('\'', "'\\''"))
    };
    let args = std::env::args_os().skip(1).map(|a| quoted(a.to_string_lossy().into_owned()));
    std::iter::once("seekway".to_string()).chain(args).collect::<Vec<_>>().join(" ")
}

/// A page: `about` says what it is of, between the command line and the version.
pub fn report(
    title: impl Into<String>,
    subtitle: impl Into<String>,
    about: impl IntoIterator<Item = (&'static str, String)>,
    sections: Vec<Section>,
) -> Report {
    let command = [("Command", command_line())];
    let version = [("Version", env!("CARGO_PKG_VERSION").to_string())];
    let meta = command.into_iter().chain(about).chain(version);
    let meta = meta.map(|(name, value)| (name.to_string(), value)).collect();
    Report { title: title.into(), subtitle: subtitle.into(), meta, sections }
}

/// Writes the page if somebody wants it, and says so.
pub fn write_report(path: Option<&Path>, report: impl FnOnce() -> Report) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let report = report();
    write_file(path, |out| report.write_html(out))?;
    eprintln!("report: {}", path.display());
    Ok(())
}

/// Print tables as text, Markdown or CSV, and `json` as JSON.
pub fn print_as<T: Serialize + ?Sized>(format: Format, tables: &[Table], json: &T) -> Result<()> {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(json)? + "\n",
        Format::Csv => {
            let mut csv = Vec::new();
            for table in tables {
                table.write_csv(&mut csv)?;
            }
            String::from_utf8_lossy(&csv).into_owned()
        }
        Format::Markdown => tables.iter().map(|t| t.to_markdown() + "\n").collect(),
        Format::Table => {
            let options = table_options();
            let texts: Vec<String> = tables.iter().map(|t| t.to_text(options)).collect();
            texts.join("\n")
        }
    };
    print(&text)
}

/// Sentences for people, wrapped as tables are in this format.
pub fn sentences(format: Format, text: &str) -> String {
    match format {
        Format::Table => table::sentences(text, table_options()),
        _ => text.to_string(),
    }
}

/// Is the root of the error a pipe whose reader has gone?
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |e: &(dyn std::error::Error + 'static)| Some(e.downcast_ref::<io::Error>()?.kind());
    error.chain().any(|e| kind(e) == Some(io::ErrorKind::BrokenPipe))
}

/// Width for tables on standard output: the terminal's, by COLUMNS if that is set; none when the
/// output goes elsewhere.
pub fn table_options() -> seekway_report::table::TextOptions {
    let terminal = io::stdout().is_terminal();
    let given = || std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let width = terminal.then(|| given().or_else(terminal_width)).flatten();
    seekway_report::table::TextOptions { width, colour: terminal && may_colour() }
}

/// Does the user want colours? NO_COLOR that is not empty says no (<https://no-color.org>).
pub fn may_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Is `path` a place for a result? Told before the work, not after it.
pub fn check_place(path: &Path) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    if !path.parent().is_none_or(|p| p.as_os_str().is_empty() || p.is_dir()) {
        anyhow::bail!("{}: its folder does not exist", what());
    }
    if path.metadata().is_ok_and(|about| about.file_type().is_block_device()) {
        anyhow::bail!("{}: it is a disk, and would be overwritten", what());
    }
    Ok(())
}

/// Do both paths lead to one file?
pub fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|about| (about.dev(), about.ino())).ok();
    id(one).is_some_and(|one| id(other) == Some(one))
}

/// Write a file whole or not at all: beside its place first, then renamed.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    check_place(path)?;
    if path.exists() && !path.is_file() {
        // A pipe or a character device: nothing to rename.
        let mut out = BufWriter::new(File::create(path).with_context(what)?);
        return write(&mut out).and_then(|()| out.flush()).with_context(what);
    }
    let mut name = path.file_name().with_context(what)?.to_os_string();
    name.push(format!(".tmp{}", std::process::id()));
    let beside = path.with_file_name(name);
    let written = File::create(&beside).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()
    });
    let renamed = written.and_then(|()| std::fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&beside); // it may not exist; the first error is the one to tell
    }
    renamed.with_context(what)
}
