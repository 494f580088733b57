//! The files of one trace. Most have one; `blktrace` writes a file per CPU, `NAME.blktrace.0`,
//! `NAME.blktrace.1` and so on, and one CPU's file is a part of the load that looks like all of
//! it. So the name of any of them stands for all, as for `blkparse`; so do `NAME`,
//! `NAME.blktrace` and a pattern.

use super::blktrace;
use super::buffer;
use super::buffer::read_up_to;
use super::{Format, TraceError};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Most files of one trace, one per CPU; each needs a buffer of 128 KiB.
pub(super) const CPUS_MAX: usize = 1024;

/// Endings of packed files: all else about packing is told from the content.
const PACKED: [&str; 5] = [".gz", ".bz2", ".xz", ".zst", ".zstd"];

/// The file of one CPU, taken apart: `DIR/sda.blktrace.12.gz`.
struct CpuFile {
    folder: PathBuf,
    /// `sda.blktrace`.
    base: String,
    /// 12.
    cpu: u32,
}

impl CpuFile {
    fn of(path: &Path) -> Option<CpuFile> {
        let name = path.file_name()?.to_str()?;
        let (base, cpu) = base_and_cpu(name)?;
        Some(CpuFile { folder: folder_of(path), base: base.into(), cpu })
    }
}

/// `sda.blktrace` and 12 of `sda.blktrace.12.gz`.
fn base_and_cpu(name: &str) -> Option<(&str, u32)> {
    let name = PACKED.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let (base, digits) = name.rsplit_once('.')?;
    let is_number = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let cpu = digits.parse().ok().filter(|_| is_number)?;
    Some((base, cpu)).filter(|_| !base.is_empty())
}

/// As it is written, so that other files in it are called alike; may be empty.
fn folder_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

/// The files of one trace.
pub struct TraceFiles {
    /// In the order of their CPUs, if there are several.
    pub files: Vec<PathBuf>,
    /// Files of the same CPUs, which are not read.
    pub twins: Vec<PathBuf>,
    /// Is each of them one CPU's part of a blktrace?
    pub(super) of_cpus: bool,
    /// Facts about them that change what is read, for people.
    pub(super) notes: Vec<String>,
}

impl TraceFiles {
    fn one(path: &Path) -> TraceFiles {
        TraceFiles {
            files: vec![path.into()],
            twins: Vec::new(),
            of_cpus: false,
            notes: Vec::new(),
        }
    }

    /// The files of the trace at `path`: the file itself, or those of all CPUs of a blktrace.
    ///
    /// # Errors
    /// A pattern that stands for several traces, or more than 1,024 files of one.
    pub fn find(path: &Path, format: Option<Format>) -> Result<TraceFiles, TraceError> {
        let may_have_cpus = format.is_none_or(|format| format == Format::Blktrace);
        let found = if path.is_dir() || !path.exists() {
            match by_prefix(path) {
                Some(files) if may_have_cpus => files,
                Some(_) => {
                    let problem = "only a blktrace has a file per CPU: name one file".into();
                    return Err(TraceError::Replay { path: path.display().to_string(), problem });
                }
                None => return by_pattern(path, format),
            }
        } else {
            let by_name = if may_have_cpus { by_name(path) } else { None };
            by_name.unwrap_or_else(|| TraceFiles::one(path))
        };
        let count = found.files.len();
        if count > CPUS_MAX {
            let problem = format!("{count} files beside it: at most {CPUS_MAX} are merged");
            return Err(TraceError::Replay { path: path.display().to_string(), problem });
        }
        Ok(found)
    }
}

/// The paths that `path` stands for: those that a pattern matches, sorted, if no file has that
/// name, or else itself.
///
/// # Errors
/// The pattern is none, or matches nothing.
pub fn expand(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let shown = path.display().to_string();
    let is_pattern = shown.contains(['*', '?', '[']) && !path.exists();
    if !is_pattern {
        return Ok(vec![path.into()]);
    }
    let fault = |problem| TraceError::Replay { path: shown.clone(), problem };
    let paths = glob::glob(&shown).map_err(|e| fault(format!("not a pattern of names: {e}")))?;
    // Folders that cannot be read hold no trace that could be.
    let files: Vec<PathBuf> = paths.flatten().filter(|path| !path.is_dir()).collect();
    match files.is_empty() {
        true => Err(fault("no file has a name like this".into())),
        false => Ok(files),
    }
}

/// A pattern, or what is no file at all, for who opens it to say.
fn by_pattern(path: &Path, format: Option<Format>) -> Result<TraceFiles, TraceError> {
    let paths = expand(path)?;
    let Some(first) = paths.first().filter(|first| *first != path) else {
        return Ok(TraceFiles::one(path));
    };
    let found = TraceFiles::find(first, format)?;
    let others = paths.iter().filter(|p| !found.files.contains(p) && !found.twins.contains(p));
    match others.count() {
        0 => Ok(found),
        others => {
            let problem = format!(
                "{others} of the files with such names are not of the trace {}: name one trace",
                first.display()
            );
            Err(TraceError::Replay { path: path.display().to_string(), problem })
        }
    }
}

/// All files of the trace that the file `path` is one CPU's part of; `None` if it is a trace of
/// its own.
fn by_name(path: &Path) -> Option<TraceFiles> {
    let named = CpuFile::of(path).filter(|_| path.is_file())?;
    let mut files = files_of_cpus(&named.folder, |base| base == named.base);
    let head = head_of(path)?;
    if !(head.is_empty() || blktrace::is_blktrace(&head)) {
        return None;
    }
    if !is_blktraces(&named.base) {
        // Any trace may be called NAME.1. The records say whose they are.
        let is_of = |cpu: u32, file: &Path| {
            head_of(file).is_some_and(|head| blktrace::cpu(&head) == Some(cpu))
        };
        if !is_of(named.cpu, path) {
            return None;
        }
        for (cpu, files) in &mut files {
            files.retain(|file| is_of(*cpu, file));
        }
        files.retain(|_, files| !files.is_empty());
    }
    let mut found = taken(files, Some(path));
    let count = found.files.len();
    if count > 1 {
        found.notes.insert(0, format!("read with the other CPUs' files beside it, {count} in all"));
    }
    // None, if the folder cannot be read.
    (count > 0).then_some(found)
}

/// All files of the trace whose name begins with `path`.
fn by_prefix(path: &Path) -> Option<TraceFiles> {
    let name = path.file_name()?.to_str()?.trim_end_matches('.');
    let folder = folder_of(path);
    let blktraces = format!("{name}.blktrace");
    let found = [blktraces.as_str(), name].into_iter().find_map(|wanted| {
        let files = files_of_cpus(&folder, |base| base == wanted);
        (!files.is_empty()).then_some(files)
    });
    Some(taken(found?, None))
}

/// Only `blktrace` calls its files so.
fn is_blktraces(base: &str) -> bool {
    base.ends_with(".blktrace") || base == "blktrace"
}

/// The files in `folder` whose base is taken, by their CPU.
fn files_of_cpus(folder: &Path, takes: impl Fn(&str) -> bool) -> BTreeMap<u32, Vec<PathBuf>> {
    let mut files: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // A folder that cannot be read has no other files to show.
    for entry in here.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((base, cpu)) = name.to_str().and_then(base_and_cpu) else { continue };
        if takes(base) && entry.path().is_file() {
            files.entry(cpu).or_default().push(folder.join(name));
        }
    }
    files
}

/// One file for each CPU: the one that was named, else the shortest name, which is not packed.
fn taken(files: BTreeMap<u32, Vec<PathBuf>>, named: Option<&Path>) -> TraceFiles {
    let is_named = |file: &Path| named.is_some_and(|n| n.file_name() == file.file_name());
    let mut found =
        TraceFiles { files: Vec::new(), twins: Vec::new(), of_cpus: true, notes: Vec::new() };
    let mut missing = Vec::new();
    let mut expected = 0;
    for (cpu, mut files) in files {
        missing.extend(expected..cpu);
        expected = cpu + 1;
        files.sort_by_key(|file| (!is_named(file), file.as_os_str().len(), file.clone()));
        let mut files = files.into_iter();
        let Some(mut file) = files.next() else { continue };
        for twin in files {
            let (twin_shown, file) = (twin.display(), file.display());
            found.notes.push(format!("{twin_shown} is not read: {file} is the same CPU's file"));
            found.twins.push(twin);
        }
        if let Some(named) = named.filter(|_| is_named(&file)) {
            // As it was written, so that messages have it.
            file = named.into();
        }
        found.files.push(file);
    }
    if let Some((first, others)) = missing.split_first() {
        let more = match others.len() {
            0 => String::new(),
            count => format!(" and of {count} others"),
        };
        found.notes.push(format!("no file of CPU {first}{more}: its requests are missing"));
    }
    found
}

/// The first bytes of a file, unpacked; `None` if it cannot be read.
fn head_of(path: &Path) -> Option<Vec<u8>> {
    let input = Box::new(File::open(path).ok()?);
    let (mut input, _) = buffer::unpack(input, u64::MAX).ok()?;
    let mut head = vec![0; blktrace::RECORD_BYTES_MAX];
    let held = read_up_to(&mut *input, &mut head).ok()?;
    head.truncate(held);
    Some(head)
}
