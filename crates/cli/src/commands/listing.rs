//! `seekway policy`, `prefetcher`, `vcpu` and `workload`: the registries, as lists and pages.

use crate::args::{Format, PolicyCommand, PrefetcherCommand, VcpuCommand, WorkloadCommand};
use crate::{Verdict, output};
use anyhow::{Context, Result};
use seekway_policy::params::{Kind, ParamSpec};
use seekway_policy::prefetchers;
use seekway_policy::schedulers::{self, REGISTRY};
use seekway_policy::vcpu;
use seekway_report::table::{Cell, Column, Table};
use seekway_workload::generators;
use seekway_workload::guest;
use seekway_workload::traces::Format as TraceFormat;
use serde::Serialize;

#[derive(Serialize)]
struct Listed {
    kind: &'static str,
    name: &'static str,
    summary: &'static str,
    params: Vec<Param>,
}

#[derive(Serialize)]
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

/// `seekway policy`.
pub fn policy(command: &PolicyCommand) -> Result<Verdict> {
    match command {
        PolicyCommand::List { format } => {
            let entry = |e: &'static schedulers::Entry| Listed {
                kind: "policy",
                name: e.name,
                summary: e.summary,
                params: params(e.params),
            };
            list(REGISTRY.iter().map(entry).collect(), *format)
        }
        PolicyCommand::Show { name } => {
            let entry = schedulers::find(name)?;
            show(entry.name, entry.summary, entry.source, entry.params)
        }
    }
}

/// `seekway prefetcher`.
pub fn prefetcher(command: &PrefetcherCommand) -> Result<Verdict> {
    match command {
        PrefetcherCommand::List { format } => {
            let entry = |e: &'static prefetchers::Entry| Listed {
                kind: "prefetcher",
                name: e.name,
                summary: e.summary,
                params: params(e.params),
            };
            list(prefetchers::REGISTRY.iter().map(entry).collect(), *format)
        }
        PrefetcherCommand::Show { name } => {
            let entry = prefetchers::find(name)?;
            show(entry.name, entry.summary, entry.source, entry.params)
        }
    }
}

/// `seekway vcpu`.
pub fn vcpu(command: &VcpuCommand) -> Result<Verdict> {
    match command {
        VcpuCommand::List { format } => {
            let entry = |e: &'static vcpu::Entry| Listed {
                kind: "vCPU policy",
                name: e.name,
                summary: e.summary,
                params: params(e.params),
            };
            list(vcpu::REGISTRY.iter().map(entry).collect(), *format)
        }
        VcpuCommand::Show { name } => {
            let entry = vcpu::find(name)?;
            show(entry.name, entry.summary, entry.source, entry.params)
        }
    }
}

/// The page of an entry of a registry.
fn show(name: &str, summary: &str, source: &str, params: &'static [ParamSpec]) -> Result<Verdict> {
    let mut page = format!("# {name}\n\n{}.\n\nSource: {source}.\n\n", capital(summary));
    page += &param_page(params);
    output::print(&page)?;
    Ok(Verdict::Done)
}

/// `seekway workload`.
pub fn workload(command: &WorkloadCommand) -> Result<Verdict> {
    match command {
        WorkloadCommand::List { format } => {
            let generator = |g: &'static generators::Generator| Listed {
                kind: "generator",
                name: g.name,
                summary: g.summary,
                params: params(g.params),
            };
            let mut listed: Vec<Listed> = generators::REGISTRY.iter().map(generator).collect();
            listed.extend(TraceFormat::all().map(|f| Listed {
                kind: "trace format",
                name: f.name(),
                summary: f.about(),
                params: Vec::new(),
            }));
            list(listed, *format)
        }
        WorkloadCommand::Show { name } => {
            let (summary, specs) = if name == "vm" {
                ("a guest: its image, memory and Linux page cache", guest::params::SPECS)
            } else {
                let generator = generators::find(name).context("(or `vm` for the guest)")?;
                (generator.summary, generator.params)
            };
            let page = format!("# {name}\n\n{}.\n\n{}", capital(summary), param_page(specs));
            output::print(&page)?;
            Ok(Verdict::Done)
        }
        WorkloadCommand::Run(args) => super::workload_run::run(args),
    }
}

fn list(listed: Vec<Listed>, format: Format) -> Result<Verdict> {
    let columns = ["name", "kind", "what it is"].map(Column::text);
    let mut table = Table::new("", columns.into());
    for l in &listed {
        table.push([l.name, l.kind, l.summary].map(|t| Cell::Text(t.into())));
    }
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

fn capital(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
