//! `seekway policy`, `prefetcher`, `vcpu` and `workload`: the registries, as lists and pages.

use crate::args::{Format, ListArgs, RegistryCommand, WorkloadCommand};
use crate::{Verdict, output};
use anyhow::{Context, Result};
use seekway_core::params::{Kind, ParamSpec};
use seekway_core::registry::{Registry, RegistryEntry};
use seekway_report::table::Table;
use seekway_workload::generators;
use seekway_workload::guest;
use seekway_workload::traces::Format as TraceFormat;
use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ListEntry {
    kind: &'static str,
    name: &'static str,
    summary: &'static str,
    params: Vec<Param>,
}

#[derive(Serialize)]
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

/// `seekway policy`, `prefetcher` and `vcpu`: lists the entries, or shows the page of one.
/// `source` is the paper or kernel that an entry comes from.
pub fn registry<E: RegistryEntry>(
    registry: &'static Registry<E>,
    source: fn(&E) -> &'static str,
    command: &RegistryCommand,
) -> Result<Verdict> {
    match command {
        RegistryCommand::List(ListArgs { format }) => list(&listed(registry), *format),
        RegistryCommand::Show { name, format } => {
            let found = registry.find(name)?;
            show(entry(registry.kind(), found), Some(source(found)), "", *format)
        }
    }
}

/// `seekway workload`: lists generators and trace formats, or shows the page of one.
pub fn workload(command: &WorkloadCommand) -> Result<Verdict> {
    match command {
        WorkloadCommand::Registry(RegistryCommand::List(ListArgs { format })) => {
            let mut all = listed(&generators::REGISTRY);
            all.extend(listed(TraceFormat::registry()));
            list(&all, *format)
        }
        WorkloadCommand::Registry(RegistryCommand::Show { name, format }) if name == "vm" => {
            let summary = "a guest: its image, memory and Linux page cache";
            let params = params(guest::params::SPECS);
            let more = "\nMore disks: `disk=NAME:SIZE`, followed by that disk's rate limits. \
                        `disk=NAME` behind an application puts its files there.\n";
            show(ListEntry { kind: "guest", name: "vm", summary, params }, None, more, *format)
        }
        WorkloadCommand::Registry(RegistryCommand::Show { name, format }) => {
            if let Some(of) = TraceFormat::from_name(name) {
                return show_trace_format(of, *format);
            }
            let formats = TraceFormat::names();
            let found = generators::REGISTRY.find(name).with_context(|| {
                format!("(or `vm` for the guest, or a trace format: {formats})")
            })?;
            show(entry(generators::REGISTRY.kind(), found), None, "", *format)
        }
        WorkloadCommand::Run(args) => super::workload_run::run(args),
    }
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

fn listed(registry: &'static Registry<impl RegistryEntry>) -> Vec<ListEntry> {
    registry.iter().map(|e| entry(registry.kind(), *e)).collect()
}

fn entry(kind: &'static str, e: &impl RegistryEntry) -> ListEntry {
    ListEntry { kind, name: e.name(), summary: e.summary(), params: params(e.params()) }
}

/// The page of an entry, which ends with `more`, is Markdown; tables have the parameters.
fn show(
    entry: ListEntry,
    source: Option<&'static str>,
    more: &str,
    format: Format,
) -> Result<Verdict> {
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
fn show_trace_format(of: TraceFormat, format: Format) -> Result<Verdict> {
    let registry = TraceFormat::registry();
    let entry = entry(registry.kind(), registry.find(of.name())?);
    let page = of.page();
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

fn list(listed: &[ListEntry], format: Format) -> Result<Verdict> {
    let table = Table::of("", listed)
        .text("name", |l| l.name)
        .text("kind", |l| l.kind)
        .text("what it is", |l| l.summary)
        .done();
    output::print_as(format, &[table], &listed)?;
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
