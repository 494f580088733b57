//! `seekway doctor`: what stands in the way of `serve`, as a table or JSON.

use crate::args::{DoctorArgs, Format};
use crate::{Verdict, output};
use anyhow::Result;
use seekway_hostd::config::{self, Settings};
use seekway_hostd::doctor::{self, DoctorReport, Facts, Finding, Level, Root};
use seekway_report::table::{Cell, Table, Tone};

pub fn run(args: &DoctorArgs) -> Result<Verdict> {
    let mut settings = args.config.as_deref().map(config::read).unwrap_or_default();
    let mut flags = Settings::default();
    args.disks.iter().for_each(|disk| flags.disk_flag(disk));
    settings.extend(flags);
    let config = settings.resolve()?;
    let report = doctor::examine(&Root::host(), &Facts::ask(&config), &config);
    let table = table(&report, args.out.format);
    match args.out.format {
        Format::Table => {
            output::print(&(table.to_text(output::table_options()) + &below(&report)))?
        }
        other => output::print_as(other, &[table], &report)?,
    }
    Ok(if report.level == Level::Problem { Verdict::NotAccepted } else { Verdict::Done })
}

/// The findings. In text, fixes have lines of their own below; elsewhere they have a column.
fn table(report: &DoctorReport, format: Format) -> Table {
    Table::of("", &report.findings)
        .text("check", |finding| finding.check)
        .text("about", |finding| finding.about.as_ref())
        .text("state", |finding| state(finding.level))
        .text("found", |finding| &finding.found)
        .when(format != Format::Table, |table| table.text("fix", |f| f.fix.as_ref()))
        .done()
}

/// `1 problem`, `2 problems`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn state(level: Level) -> Cell {
    let (text, tone) = match level {
        Level::Ok => ("ok", Tone::Good),
        Level::Warning => ("warning", Tone::Fair),
        Level::Problem => ("problem", Tone::Bad),
    };
    Cell::Badge { text: text.into(), tone }
}

/// The fixes, a line each, which is not wrapped: people copy it.
fn below(report: &DoctorReport) -> String {
    let mut text = String::from("\n");
    for Finding { check, about, fix, .. } in &report.findings {
        let about = about.as_ref().map_or(String::new(), |about| format!(" ({about})"));
        if let Some(fix) = fix {
            text += &format!("{check}{about}: {fix}\n");
        }
    }
    let DoctorReport { problems, warnings, user, .. } = report;
    let (problems, warnings) = (counted(*problems, "problem"), counted(*warnings, "warning"));
    text + &format!("{problems}, {warnings}, as user {user}\n")
}
