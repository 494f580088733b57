//! `seekway list`: policies, prefetchers, loads, trace formats and devices, as lists and pages.

use crate::args::{Format, ListArgs, Listed};
use crate::{Verdict, output};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::params::{Kind, ParamSpec};
use seekway_core::registry::{Registry, RegistryEntry};
use seekway_device::profile;
use seekway_policy::{prefetchers, schedulers};
use seekway_report::table::Table;
use seekway_vcpu as vcpu;
use seekway_workload::generators;
use seekway_workload::guest;
use seekway_workload::traces::Format as TraceFormat;
use serde::Serialize;

/// The load that is no generator's: what a VM itself takes.
const GUEST: &str = "vm";

pub fn run(args: &ListArgs) -> Result<Verdict> {
    let (what, name) = (args.what.as_deref(), args.name.as_deref());
    let kind = what.and_then(Listed::of_word);
    match (what, kind, name) {
        (None, ..) => {
            let all = Listed::ALL.into_iter().map(entries);
            let all = all.collect::<Result<Vec<_>>>()?.concat();
            list(&all, args.format)
        }
        (_, Some(Listed::Devices), None) => list_devices(args.format),
        (_, Some(kind), None) => list(&entries(kind)?, args.format),
        (_, Some(kind), Some(name)) => show_of(kind, name, args.format),
        (Some(name), None, None) => show_of(kind_of(name)?, name, args.format),
        (Some(what), None, Some(_)) => bail!("no kind '{what}'; there are {}", kinds()),
    }
}

fn kinds() -> String {
    Listed::WORDS.join(", ")
}

/// The kind of the only entry with this name.
fn kind_of(name: &str) -> Result<Listed> {
    let mut found = Vec::new();
    for kind in Listed::ALL {
        found.extend(entries(kind)?.iter().any(|entry| entry.name == name).then_some(kind));
    }
    match found[..] {
        [kind] => Ok(kind),
        [] => bail!("'{name}' is no kind ({}) and no name: `seekway list` has all", kinds()),
        _ => {
            let one = |kind: &Listed| format!("`seekway list {} {name}`", kind.word());
            let all: Vec<String> = found.iter().map(one).collect();
            bail!("there are several '{name}': type {}", all.join(" or "))
        }
    }
}

#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ListEntry {
    kind: &'static str,
    name: &'static str,
    summary: String,
    params: Vec<Param>,
}

#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Param {
    key: &'static str,
    takes: String,
    default: &'static str,
    help: &'static str,
}

fn params(specs: &'static [ParamSpec]) -> Vec<Param> {
    let param = |s: &'static ParamSpec| Param {
        key: s.key,
        takes: takes(s.kind),
        default: s.default,
        help: s.help,
    };
    specs.iter().map(param).collect()
}

fn takes(kind: Kind) -> String {
    match kind {
        Kind::Duration => "a time".into(),
        Kind::DurationOr(word) => format!("{word}, or a time"),
        Kind::Size => "a size".into(),
        Kind::Bytes(most) => format!("a size to {most} bytes"),
        Kind::Count(low, u64::MAX) => format!("a number from {low}"),
        Kind::Count(low, high) => format!("{low} to {high}"),
        Kind::Number(low, high) => format!("{low} to {high}"),
        Kind::NumberOr(low, high, word) => format!("{low} to {high}, or {word}"),
        Kind::Flag => "true or false".into(),
        Kind::Choice(words) => words.join(", "),
    }
}

fn entries(kind: Listed) -> Result<Vec<ListEntry>> {
    Ok(match kind {
        Listed::Policies => all(&schedulers::REGISTRY),
        Listed::Prefetchers => all(&prefetchers::REGISTRY),
        Listed::Vcpu => all(&vcpu::REGISTRY),
        Listed::Loads => [vec![the_guest()], all(&generators::REGISTRY)].concat(),
        Listed::Traces => all(TraceFormat::registry()),
        Listed::Devices => {
            let entry = |name| {
                let summary = profile::load(name)?.summary().to_string();
                Ok(ListEntry { kind: "device", name, summary, params: Vec::new() })
            };
            profile::names().map(entry).collect::<Result<_>>()?
        }
    })
}

fn all(registry: &'static Registry<impl RegistryEntry>) -> Vec<ListEntry> {
    registry.iter().map(|e| entry(registry.kind(), *e)).collect()
}

fn entry(kind: &'static str, e: &impl RegistryEntry) -> ListEntry {
    let summary = e.summary().to_string();
    ListEntry { kind, name: e.name(), summary, params: params(e.params()) }
}

fn the_guest() -> ListEntry {
    let summary = "a guest: its image, memory and Linux page cache".into();
    ListEntry { kind: "guest", name: GUEST, summary, params: params(guest::params::SPECS) }
}

/// Describes one entry of a kind.
fn show_of(kind: Listed, name: &str, format: Option<Format>) -> Result<Verdict> {
    match kind {
        Listed::Policies => show(&schedulers::REGISTRY, name, |e| Some(e.source), format),
        Listed::Prefetchers => show(&prefetchers::REGISTRY, name, |e| Some(e.source), format),
        Listed::Vcpu => show(&vcpu::REGISTRY, name, |e| Some(e.source), format),
        Listed::Loads if name == GUEST => {
            let more = "\nMore disks: `disk=NAME:SIZE`, followed by that disk's rate limits. \
                        `disk=NAME` behind an application puts its files there.\n";
            show_entry(the_guest(), None, more, format)
        }
        Listed::Loads => show(&generators::REGISTRY, name, |_| None, format)
            .map_err(|e| anyhow!("{e:#}; or {GUEST}, the guest itself")),
        Listed::Traces => show_trace_format(name, format),
        Listed::Devices => show_device(name, format),
    }
}

/// `source` is the paper or kernel that an entry comes from.
fn show<E: RegistryEntry>(
    registry: &'static Registry<E>,
    name: &str,
    source: fn(&E) -> Option<&'static str>,
    format: Option<Format>,
) -> Result<Verdict> {
    let found = registry.find(name)?;
    show_entry(entry(registry.kind(), found), source(found), "", format)
}

/// An entry with all that is known of it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ShownEntry {
    #[serde(flatten)]
    entry: ListEntry,
    /// The paper or kernel that it comes from; absent for generators.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
}

/// A trace format with all that is known of it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ShownFormat {
    #[serde(flatten)]
    entry: ListEntry,
    /// In the order of the file.
    columns: Vec<ShownColumn>,
    /// The beginning of such a trace, or a command that makes or takes one.
    example: &'static str,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShownColumn {
    name: &'static str,
    /// Its unit, or the values that it may have.
    unit: &'static str,
}

/// The page of an entry, which ends with `more`, is Markdown; tables have the parameters.
fn show_entry(
    entry: ListEntry,
    source: Option<&'static str>,
    more: &str,
    format: Option<Format>,
) -> Result<Verdict> {
    let format = format.unwrap_or(Format::Markdown);
    if format == Format::Markdown {
        let (name, summary) = (entry.name, output::capital(entry.summary.trim_end_matches('.')));
        let source = source.map_or(String::new(), |source| format!("Source: {source}.\n\n"));
        let params = param_page(&entry.params);
        output::print(&format!("# {name}\n\n{summary}.\n\n{source}{params}{more}"))?;
        return Ok(Verdict::Done);
    }
    let table = Table::of("", &entry.params)
        .text("parameter", |param| param.key)
        .text("takes", |param| &param.takes)
        .text("default", |param| param.default)
        .text("what it does", |param| param.help)
        .done();
    output::print_as(format, &[table], &ShownEntry { entry, source })?;
    Ok(Verdict::Done)
}

/// The page of a trace format: its columns and an example.
fn show_trace_format(name: &str, format: Option<Format>) -> Result<Verdict> {
    let format = format.unwrap_or(Format::Markdown);
    let registry = TraceFormat::registry();
    let entry = entry(registry.kind(), registry.find(name)?);
    let page = TraceFormat::from_name(name).and_then(|of| of.page());
    let columns: Vec<ShownColumn> = page
        .iter()
        .flat_map(|page| page.columns)
        .map(|column| ShownColumn { name: column.name, unit: column.unit })
        .collect();
    let (example, more) = page.map_or(("", ""), |page| (page.example, page.more));
    if format == Format::Markdown {
        let summary = output::capital(entry.summary.trim_end_matches('.'));
        let mut text = format!("# {}\n\n{summary}.\n\n", entry.name);
        text += "| column | unit or values |\n| :-- | :-- |\n";
        for column in &columns {
            text += &format!("| `{}` | {} |\n", column.name, in_cell(column.unit));
        }
        text += &format!("\n```text\n{example}\n```\n");
        if !more.is_empty() {
            text += &format!("\n{more}\n");
        }
        output::print(&text)?;
        return Ok(Verdict::Done);
    }
    let table = Table::of("", &columns)
        .text("column", |column| column.name)
        .text("unit or values", |column| column.unit)
        .done();
    let shown = ShownFormat { entry, columns, example };
    output::print_as(format, &[table], &shown)?;
    Ok(Verdict::Done)
}

fn list(listed: &[ListEntry], format: Option<Format>) -> Result<Verdict> {
    let table = Table::of("", listed)
        .text("name", |l| l.name)
        .text("kind", |l| l.kind)
        .text("what it is", |l| &l.summary)
        .done();
    output::print_as(format.unwrap_or(Format::Table), &[table], listed)?;
    Ok(Verdict::Done)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct DeviceEntry {
    name: &'static str,
    summary: String,
    capacity_sectors: u64,
    rotation_ms: Option<f64>,
    queue_depth: u32,
}

fn list_devices(format: Option<Format>) -> Result<Verdict> {
    let entry = |name| {
        let profile = profile::load(name)?;
        let device = profile.build();
        Ok(DeviceEntry {
            name,
            summary: profile.summary().to_string(),
            capacity_sectors: profile.capacity_sectors(),
            rotation_ms: device.profile().rotation.map(|r| r.as_millis_f64()),
            queue_depth: device.queue_depth(),
        })
    };
    let listed = profile::names().map(entry).collect::<Result<Vec<DeviceEntry>>>()?;
    let table = Table::of("", &listed)
        .text("profile", |l| l.name)
        .number("size", "GiB", |l| l.capacity_sectors as f64 / f64::from(1 << 21))
        .number("revolution", "ms", |l| l.rotation_ms)
        .number("queue depth", "", |l| l.queue_depth)
        .text("what it is", |l| &l.summary)
        .done();
    output::print_as(format.unwrap_or(Format::Table), &[table], &listed)?;
    Ok(Verdict::Done)
}

/// Prints a profile as its file has it.
fn show_device(name: &str, format: Option<Format>) -> Result<Verdict> {
    let what = || format!("device {name}");
    let text = profile::text(name).with_context(what)?;
    match format {
        None => output::print(text)?,
        Some(Format::Json) => {
            let profile: serde_json::Value = toml::from_str(text).with_context(what)?;
            output::print(&(serde_json::to_string_pretty(&profile)? + "\n"))?;
        }
        Some(_) => bail!("{}: a profile is TOML, or JSON: --format json, or none", what()),
    }
    Ok(Verdict::Done)
}

/// A Markdown table of parameters.
fn param_page(params: &[Param]) -> String {
    if params.is_empty() {
        return "It has no parameters.\n".into();
    }
    let mut page = String::from("| parameter | takes | default | what it does |\n");
    page += "| :-- | :-- | :-- | :-- |\n";
    for p in params {
        let (takes, help) = (in_cell(&p.takes), in_cell(p.help));
        page += &format!("| `{}` | {takes} | `{}` | {help} |\n", p.key, p.default);
    }
    page
}

/// Words as they stand in a cell of a Markdown table.
fn in_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}
