//! `seekway doctor`: what stands in the way of `serve`, as a table or JSON.

use crate::args::{DoctorArgs, Format};
use crate::{Verdict, output};
use anyhow::Result;
use seekway_hostd::config::{self, Settings};
use seekway_hostd::doctor::{self, DoctorReport, Facts, Finding, Level, Root};
use seekway_report::table::{Cell, Column, Table, Tone};

pub fn run(args: &DoctorArgs) -> Result<Verdict> {
    let mut settings = args.config.as_deref().map(config::read).unwrap_or_default();
    let mut flags = Settings::default();
    args.disks.iter().for_each(|disk| flags.disk_flag(disk));
    settings.extend(flags);
    let config = settings.resolve()?;
    let report = doctor::examine(&Root::host(), &Facts::ask(&config), &config);
    output::print_as(args.format, &[table(&report, args.format)], &report)?;
    Ok(if report.level == Level::Problem { Verdict::NotAccepted } else { Verdict::Done })
}

/// Fixes are commands, which people copy: on a terminal they have lines of their own below the
/// table, elsewhere they have a column.
fn table(report: &DoctorReport, format: Format) -> Table {
    let is_text = format == Format::Table;
    let names = ["check", "about", "state", "found", "fix"];
    let columns = names[..if is_text { 4 } else { 5 }].iter().map(|name| Column::text(*name));
    let mut table = Table::new("", columns.collect());
    for finding in &report.findings {
        let text = |text: &Option<String>| text.clone().map_or(Cell::Absent, Cell::Text);
        let Finding { check, about, level, found, fix } = finding;
        let mut row = vec![
            Cell::Text((*check).into()),
            text(about),
            state(*level),
            Cell::Text(found.clone()),
        ];
        if !is_text {
            row.push(text(fix));
        }
        table.push(row);
    }
    if is_text {
        table.notes.extend(report.findings.iter().filter_map(fix));
        let DoctorReport { problems, warnings, user, .. } = report;
        table.notes.push(format!("{problems} problems, {warnings} warnings, as user {user}"));
    }
    table
}

fn state(level: Level) -> Cell {
    let (text, tone) = match level {
        Level::Ok => ("ok", Tone::Good),
        Level::Warning => ("warning", Tone::Fair),
        Level::Problem => ("problem", Tone::Bad),
    };
    Cell::Badge { text: text.into(), tone }
}

fn fix(finding: &Finding) -> Option<String> {
    let about = finding.about.as_ref().map_or(String::new(), |about| format!(" ({about})"));
    Some(format!("{}{about}: {}", finding.check, finding.fix.as_ref()?))
}
