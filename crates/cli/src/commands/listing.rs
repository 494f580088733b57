//! `seekway policy`, `prefetcher`, `vcpu` and `workload`: the registries, as lists and pages.

use crate::args::{
    Format, ListArgs, PolicyCommand, PrefetcherCommand, VcpuCommand, WorkloadCommand,
};
use crate::{Verdict, output};
use anyhow::{Context, Result};
use seekway_policy::params::{Kind, ParamSpec};
use seekway_policy::prefetchers;
use seekway_policy::registry::{Registry, RegistryEntry};
use seekway_policy::schedulers;
use seekway_policy::vcpu;
use seekway_report::table::Table;
use seekway_workload::generators;
use seekway_workload::guest;
use seekway_workload::traces::Format as TraceFormat;
use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ListEntry {
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
        Kind::Size => "sectors, or bytes with a unit".into(),
        Kind::Count(low, u64::MAX) => format!("a number from {low}"),
        Kind::Count(low, high) => format!("{low} to {high}"),
        Kind::Number(low, high) => format!("{low} to {high}"),
        Kind::NumberOr(low, high, word) => format!("{low} to {high}, or {word}"),
        Kind::Flag => "true or false".into(),
        Kind::Choice(words) => words.join(", "),
    }
}

/// `seekway policy`: lists the policies, or shows the page of one.
pub fn policy(command: &PolicyCommand) -> Result<Verdict> {
    match command {
        PolicyCommand::List(ListArgs { format }) => list(&listed(schedulers::REGISTRY), *format),
        PolicyCommand::Show { name, format } => {
            let entry = schedulers::REGISTRY.find(name)?;
            show(schedulers::REGISTRY.kind(), entry, entry.source, *format)
        }
    }
}

/// `seekway prefetcher`: lists the prefetchers, or shows the page of one.
pub fn prefetcher(command: &PrefetcherCommand) -> Result<Verdict> {
    match command {
        PrefetcherCommand::List(ListArgs { format }) => {
            list(&listed(prefetchers::REGISTRY), *format)
        }
        PrefetcherCommand::Show { name, format } => {
            let entry = prefetchers::REGISTRY.find(name)?;
            show(prefetchers::REGISTRY.kind(), entry, entry.source, *format)
        }
    }
}

/// `seekway vcpu`: lists the policies for vCPUs, or shows the page of one.
pub fn vcpu(command: &VcpuCommand) -> Result<Verdict> {
    match command {
        VcpuCommand::List(ListArgs { format }) => list(&listed(vcpu::REGISTRY), *format),
        VcpuCommand::Show { name, format } => {
            let entry = vcpu::REGISTRY.find(name)?;
            show(vcpu::REGISTRY.kind(), entry, entry.source, *format)
        }
    }
}

/// An entry with all that is known of it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShownEntry {
    #[serde(flatten)]
    entry: ListEntry,
    /// The paper or kernel that it comes from; absent for generators.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
}

fn listed(registry: Registry<impl RegistryEntry>) -> Vec<ListEntry> {
    let entry = |e: &dyn RegistryEntry| ListEntry {
        kind: registry.kind(),
        name: e.name(),
        summary: e.summary(),
        params: params(e.params()),
    };
    registry.into_iter().map(|e| entry(e)).collect()
}

/// The page of an entry of a registry.
fn show(
    kind: &'static str,
    entry: &dyn RegistryEntry,
    source: &str,
    format: Format,
) -> Result<Verdict> {
    let (name, summary) = (entry.name(), output::capital(entry.summary().trim_end_matches('.')));
    let mut page = format!("# {name}\n\n{summary}.\n\nSource: {source}.\n\n");
    page += &param_page(entry.params());
    let (summary, params) = (entry.summary(), params(entry.params()));
    let entry = ListEntry { kind, name, summary, params };
    print_entry(&page, &ShownEntry { entry, source: Some(source.into()) }, format)
}

/// Markdown is a page; tables have the parameters.
fn print_entry(page: &str, shown: &ShownEntry, format: Format) -> Result<Verdict> {
    if format == Format::Markdown {
        output::print(page)?;
        return Ok(Verdict::Done);
    }
    let table = Table::of("", &shown.entry.params)
        .text("parameter", |param| param.key)
        .text("takes", |param| &param.takes)
        .text("default", |param| param.default)
        .text("what it does", |param| param.help)
        .done();
    output::print_as(format, &[table], shown)?;
    Ok(Verdict::Done)
}

/// `seekway workload`: lists generators and trace formats, or shows the page of one.
pub fn workload(command: &WorkloadCommand) -> Result<Verdict> {
    match command {
        WorkloadCommand::List(ListArgs { format }) => {
            let mut all = listed(generators::REGISTRY);
            all.extend(listed(TraceFormat::registry()));
            list(&all, *format)
        }
        WorkloadCommand::Show { name, format } => {
            let (kind, name, summary, specs) = if name == "vm" {
                let summary = "a guest: its image, memory and Linux page cache";
                ("guest", "vm", summary, guest::params::SPECS)
            } else {
                let generator =
                    generators::REGISTRY.find(name).context("(or `vm` for the guest)")?;
                let (name, summary) = (generator.name, generator.summary);
                (generators::REGISTRY.kind(), name, summary, generator.params)
            };
            let mut page = format!(
                "# {name}\n\n{}.\n\n{}",
                output::capital(summary.trim_end_matches('.')),
                param_page(specs)
            );
            if name == "vm" {
                page += "\nMore disks: `disk=NAME:SIZE`, followed by that disk's rate limits. `disk=NAME` \
                         behind an application puts its files there.\n";
            }
            let entry = ListEntry { kind, name, summary, params: params(specs) };
            print_entry(&page, &ShownEntry { entry, source: None }, *format)
        }
        WorkloadCommand::Run(args) => super::workload_run::run(args),
    }
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
pub fn param_page(specs: &'static [ParamSpec]) -> String {
    if specs.is_empty() {
        return "It has no parameters.\n".into();
    }
    let mut page = String::from("| parameter | takes | default | what it does |\n");
    page += "| :-- | :-- | :-- | :-- |\n";
    for p in params(specs) {
        let (takes, help) = (in_cell(&p.takes), in_cell(p.help));
        page += &format!("| `{}` | {takes} | `{}` | {help} |\n", p.key, p.default);
    }
    page
}

/// Words as they stand in a cell of a Markdown table.
fn in_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_in_share_are_of_what_is_printed() {
        use seekway_testing::schema;
        for name in ["policy", "prefetcher", "vcpu", "workload"] {
            let command = |word| format!("seekway {name} {word} --format json");
            schema::<Vec<ListEntry>>(&format!("{name}-list"), &command("list"));
            schema::<ShownEntry>(&format!("{name}-show"), &command("show"));
        }
    }
}
