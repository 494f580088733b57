//! The configuration file: TOML with the settings of the command line.
//!
//! Paths in it are relative to its own folder, so that a file means the same
//! wherever the daemon is started.

use super::disk::DiskDraft;
use super::keys;
use super::{ConfigError, GroupConfig, Origin, Setting, Settings};
use seekway_stack::stack::limit::{GroupName, LimitsDraft, new_group};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Longest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Read a file. What is wrong with it is in [`Settings::errors`].
pub fn read(path: &Path) -> Settings {
    let text = std::fs::metadata(path).and_then(|about| match about.len() {
        bytes if bytes > FILE_BYTES_MAX => {
            Err(std::io::Error::other(format!("{bytes} bytes; at most {FILE_BYTES_MAX}")))
        }
        _ => std::fs::read_to_string(path),
    });
    match text {
        Ok(text) => parse(path, &text),
        Err(e) => {
            let origin = Origin::Flag(format!("--config {}", path.display()));
            let error = ConfigError { origin, message: e.to_string() };
            Settings { errors: vec![error], ..Settings::default() }
        }
    }
}

/// Take a file's text apart.
pub(super) fn parse(path: &Path, text: &str) -> Settings {
    let mut reader = Reader { path, text, found: Settings::default() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for e in &errors {
        let at = e.span().map_or(0, |span| span.start);
        reader.error(at, e.message().to_string());
    }
    if errors.is_empty() {
        reader.table(table.get_ref());
    }
    // Keys come in alphabetical order: put disks and groups back into the file's.
    reader.found.disks.sort_by(|a, b| a.1.cmp(&b.1));
    reader.found.groups.sort_by(|a, b| a.1.cmp(&b.1));
    reader.found
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    found: Settings,
}

type Entry<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn origin(&self, at: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
        Origin::Line(self.path.to_path_buf(), before + 1)
    }

    fn error(&mut self, at: usize, message: String) {
        let origin = self.origin(at);
        self.found.errors.push(ConfigError { origin, message });
    }

    fn table(&mut self, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("disk", DeValue::Array(disks)) => disks.iter().for_each(|disk| self.disk(disk)),
                ("disk", _) => self.error(at, "write each disk as [[disk]]".into()),
                ("group", DeValue::Array(groups)) => groups.iter().for_each(|g| self.group(g)),
                ("group", _) => self.error(at, "write each group as [[group]]".into()),
                ("tls", DeValue::Table(tls)) => {
                    for (key, value) in tls.iter() {
                        let name = format!("tls.{}", key.get_ref());
                        self.setting(&name, key.span().start, value);
                    }
                }
                (name, _) => self.setting(name, at, value),
            }
        }
    }

    fn setting(&mut self, name: &str, at: usize, value: &Entry<'_>) {
        let key = match keys::find(name) {
            Ok(key) => key,
            Err(message) => return self.error(at, message),
        };
        if let (true, DeValue::Array(values)) = (key.is_list(), value.get_ref()) {
            return values.iter().for_each(|value| self.setting(name, at, value));
        }
        let Some(mut text) = scalar(value.get_ref()) else {
            return self.error(at, format!("{name}: expected a text or a number"));
        };
        if key.is_path() && !text.is_empty() {
            text = self.beside(&text).display().to_string();
        }
        let origin = self.origin(at);
        self.found.settings.push(Setting { key: key.name, text, origin });
    }

    fn disk(&mut self, value: &Entry<'_>) {
        let at = value.span().start;
        let DeValue::Table(table) = value.get_ref() else {
            return self.error(at, "write each disk as [[disk]] with name and path".into());
        };
        let text = |key: &str| table.get(key).and_then(|v| v.get_ref().as_str());
        let (Some(name), Some(path)) = (text("name"), text("path")) else {
            return self.error(at, "a disk needs name = \"…\" and path = \"…\"".into());
        };
        let path = if path.is_empty() { PathBuf::new() } else { self.beside(path) };
        let mut disk = DiskDraft::new(name, path);
        self.options(table, &["name", "path"], |key, value| disk.set(key, Some(value)));
        let (mut disk, checked) = disk.finish();
        disk.on = disk.on.map(|on| self.beside(on));
        if let Err(message) = checked {
            self.error(at, message);
        }
        let origin = self.origin(at);
        self.found.disks.push((disk, origin));
    }

    fn group(&mut self, value: &Entry<'_>) {
        let at = value.span().start;
        let table = value.get_ref().as_table();
        let name = table.and_then(|t| t.get("name")?.get_ref().as_str());
        let (Some(table), Some(name)) = (table, name) else {
            let needs = "write each group as [[group]] with name = \"…\" and its limits";
            return self.error(at, needs.into());
        };
        let (mut limits, errors_before) = (LimitsDraft::default(), self.found.errors.len());
        self.options(table, &["name"], |key, value| {
            limits.set_known(key, value).map_err(|e| e.to_string())
        });
        let group_name = match GroupName::new(name) {
            Ok(name) => name,
            Err(e) => return self.error(at, e.to_string()),
        };
        let mut group = GroupConfig::without_limits(group_name);
        // Where some of the limits could not be read, what the others lack is not known.
        if self.found.errors.len() == errors_before {
            match new_group(name, limits) {
                Ok((_, limits)) => group.limits = limits,
                Err(e) => self.error(at, e.to_string()),
            }
        }
        self.found.groups.push((group, self.origin(at)));
    }

    /// Set each pair of a table but those with these keys. A pair of a table inside has both keys:
    /// `throttling.iops-total`.
    fn options(
        &mut self,
        table: &DeTable<'_>,
        but: &[&str],
        mut set: impl FnMut(&str, &str) -> Result<(), String>,
    ) {
        let mut pairs = Vec::new();
        for (key, value) in table.iter().filter(|(k, _)| !but.contains(&k.get_ref().as_ref())) {
            let name = key.get_ref();
            match value.get_ref() {
                DeValue::Table(inner) if !inner.is_empty() => {
                    pairs.extend(inner.iter().map(|(key, value)| {
                        (key.span().start, format!("{name}.{}", key.get_ref()), value)
                    }))
                }
                _ => pairs.push((key.span().start, name.to_string(), value)),
            }
        }
        for (key_at, name, value) in pairs {
            let values = match value.get_ref() {
                // No names would be no restriction.
                DeValue::Array(values) if values.is_empty() && name == "allow" => {
                    vec![Some(String::new())]
                }
                DeValue::Array(values) if name == "allow" => {
                    values.iter().map(|value| scalar(value.get_ref())).collect()
                }
                value => vec![scalar(value)],
            };
            for value in values {
                let done = match value {
                    Some(text) => set(&name, &text),
                    None => Err(format!("{name}: expected a text or a number")),
                };
                if let Err(message) = done {
                    self.error(key_at, message);
                }
            }
        }
    }

    fn beside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }
}

/// A value as it would be written on the command line.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(n) => Some(i64::from_str_radix(n.as_str(), n.radix()).ok()?.to_string()),
        DeValue::Float(n) => Some(n.to_string()),
        DeValue::Boolean(b) => Some(b.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}
