//! One HTML file that says all: readable without a network, and on paper. Without scripts it has
//! all but the figures that one draws.
//!
//! The page is written block by block. Its content policy forbids it to load anything, even if a
//! script slips into it.

use std::collections::BTreeMap;
use std::io;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::number;
use crate::plot::Figure;
use crate::rank::EQUAL_WITHIN;
use crate::table::{Align, Column, Table, Tone};

const PAGE_STYLE: &str = include_str!("html/page.css");
/// Sorts a table by a column when its heading is clicked; the page is complete without it.
const SORT_SCRIPT: &str = include_str!("html/sort.js");
/// Draws figures; needs uPlot, which the daemon's web page has too.
const FIGURES_SCRIPT: &str = include_str!("html/figures.js");
const UPLOT_SCRIPT: &str = include_str!("../../../share/web/vendor/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../../../share/web/vendor/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("../../../share/web/vendor/LICENSE");
const CONTENT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// The content of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub title: String,
    /// One sentence with the result.
    pub subtitle: String,
    /// Facts of the run, at the end of the page: command line, device, seed, version.
    pub meta: Vec<(String, String)>,
    /// In this order, with a table of contents if there are several.
    pub sections: Vec<Section>,
}

/// A part of a report under a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Also its anchor: `Seek distance` → `#seek-distance`.
    pub heading: String,
    /// A paragraph below the heading; may be empty.
    pub intro: String,
    pub blocks: Vec<Block>,
}

/// One thing in a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// With a caption from its title and its notes below.
    Table(Table),
    /// A figure, numbered through the report.
    Figure {
        /// From one of [`crate::plot`]'s figures.
        figure: Figure,
        /// Text below the figure, after its number.
        caption: String,
    },
    /// A paragraph; blank lines separate several.
    Text(String),
    /// A paragraph that must not be overlooked.
    Warning(String),
    /// Blocks behind a line that opens them.
    Folded { summary: String, blocks: Vec<Block> },
}

impl Section {
    /// A part without an introduction.
    pub fn new(heading: impl Into<String>, blocks: Vec<Block>) -> Section {
        Section { heading: heading.into(), intro: String::new(), blocks }
    }
}

impl Block {
    fn is_drawn(&self) -> bool {
        match self {
            Block::Figure { figure, .. } => figure.drawn,
            Block::Folded { blocks, .. } => blocks.iter().any(Block::is_drawn),
            Block::Table(_) | Block::Text(_) | Block::Warning(_) => false,
        }
    }

    /// A figure with its caption.
    pub fn figure(figure: Figure, caption: impl Into<String>) -> Block {
        Block::Figure { figure, caption: caption.into() }
    }
}

impl Report {
    /// Writes the page and flushes.
    ///
    /// # Errors
    /// Those of the writer, such as a full disk.
    pub fn write_html(&self, mut writer: impl io::Write) -> io::Result<()> {
        let anchors = anchors(&self.sections);
        writer.write_all(self.head().0.as_bytes())?;
        writer.write_all(self.opening(&anchors).0.as_bytes())?;
        let (mut figure, mut table) = (0, 0);
        for (section, anchor) in self.sections.iter().zip(&anchors) {
            let opening = html! {
                h2 id=(anchor) { (section.heading) " " a.anchor href={ "#" (anchor) } aria-label="link to this section" { "#" } }
                (paragraphs(&section.intro))
            };
            writer.write_all(b"<section>\n")?;
            writer.write_all(opening.0.as_bytes())?;
            for block in &section.blocks {
                writer.write_all(render_block(block, &mut figure, &mut table).0.as_bytes())?;
                writer.write_all(b"\n")?;
            }
            writer.write_all(b"</section>\n")?;
        }
        writer.write_all(self.closing().0.as_bytes())?;
        writer.write_all(b"</main>\n")?;
        writer.write_all(self.scripts().0.as_bytes())?;
        writer.write_all(b"\n</body>\n</html>\n")?;
        writer.flush()
    }

    fn head(&self) -> Markup {
        html! {
            (DOCTYPE)
            (PreEscaped("<html lang=\"en\">\n"))
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(CONTENT_POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("seekway-report ", env!("CARGO_PKG_VERSION")));
                meta name="color-scheme" content="light dark";
                title { (self.title) }
                style { @if self.is_drawn() { (PreEscaped(UPLOT_STYLE)) } (PreEscaped(PAGE_STYLE)) }
            }
            (PreEscaped("\n<body>\n<main>\n"))
        }
    }

    fn scripts(&self) -> Markup {
        html! {
            script { (PreEscaped(SORT_SCRIPT)) }
            @if self.is_drawn() {
                script { "/*" (PreEscaped(UPLOT_LICENSE)) "*/\n" (PreEscaped(UPLOT_SCRIPT)) }
                script { (PreEscaped(FIGURES_SCRIPT)) }
            }
        }
    }

    /// Does a figure need the script?
    fn is_drawn(&self) -> bool {
        self.sections.iter().flat_map(|section| &section.blocks).any(Block::is_drawn)
    }

    fn opening(&self, anchors: &[String]) -> Markup {
        html! {
            header {
                h1 { (self.title) }
                @if !self.subtitle.is_empty() { p.summary { (self.subtitle) } }
            }
            @if self.is_drawn() {
                noscript {
                    style { "section:not(:has(.table,.bars)):has(.plot),figure:has(.plot),.hint{display:none}" }
                    p.warning { "A script, which is part of this file, draws some figures; they are left out." }
                }
                p.hint { "In a figure, click a name to hide its line (Ctrl: to see it alone), drag to zoom in, and double-click to see all again." }
            }
            @if self.sections.len() > 1 {
                nav aria-label="Contents" {
                    ol {
                        @for (section, anchor) in self.sections.iter().zip(anchors) {
                            li { a href={ "#" (anchor) } { (section.heading) } }
                        }
                    }
                }
            }
            (PreEscaped("\n"))
        }
    }

    fn closing(&self) -> Markup {
        html! {
            @if !self.meta.is_empty() {
                footer { dl.meta {
                    @for (name, value) in &self.meta { div { dt { (name) } dd { (fact(value)) } } }
                } }
            }
        }
    }
}

/// Characters of a fact that are shown before the rest is unfolded.
const FACT_OPEN: usize = 300;

/// A fact of the run; a long command line is folded.
fn fact(value: &str) -> Markup {
    match value.char_indices().nth(FACT_OPEN) {
        None => html! { (value) },
        Some((end, _)) => html! { details { summary { (value[..end]) " …" } (value) } },
    }
}

/// Tables of more columns are written row by row on a narrow screen.
const COLUMNS_NARROW: usize = 4;
/// Tables of more rows are folded, but for the first of a page.
const ROWS_OPEN: usize = 20;

fn render_block(block: &Block, figures: &mut usize, tables: &mut usize) -> Markup {
    match block {
        Block::Table(table) => {
            *tables += 1;
            render_table(table, *tables)
        }
        Block::Figure { figure, caption } => {
            *figures += 1;
            html! {
                figure id={ "figure-" (figures) } {
                    (PreEscaped(&figure.html))
                    figcaption { b { "Figure " (figures) "." } " " (caption) }
                }
            }
        }
        Block::Text(text) => paragraphs(text),
        Block::Warning(text) => {
            html! { div.warning role="note" { b { "Warning" } (paragraphs(text)) } }
        }
        Block::Folded { summary, blocks } => html! {
            details { summary { (summary) } @for one in blocks { (render_block(one, figures, tables)) } }
        },
    }
}

fn render_table(table: &Table, number: usize) -> Markup {
    let is_wide = table.columns.len() > COLUMNS_NARROW;
    let is_folded = number > 1 && table.rows.len() > ROWS_OPEN;
    let caption = html! { b { "Table " (number) "." } " " (table.title) };
    html! {
        div.table.wide[is_wide] id={ "table-" (number) } {
            @if is_wide { style { (PreEscaped(labels(table, number))) } }
            @if is_folded {
                details { summary { (caption) ": " (table.rows.len()) " rows" } (rows(table)) }
            } @else {
                p.caption { (caption) }
                (rows(table))
            }
        }
    }
}

/// A table below its caption.
fn rows(table: &Table) -> Markup {
    let shown = table.shown();
    let side = |column: usize| (table.columns[column].align == Align::Right).then_some("n");
    let class = |row: usize, column: usize| {
        let best = table.best.contains(&(row, column)).then_some("best");
        [side(column), best].into_iter().flatten().reduce(|_, _| "n best")
    };
    let percent = number::short(EQUAL_WITHIN * 100.0, 2);
    html! {
        div.scroll { table {
            thead { tr {
                @for (i, column) in table.columns.iter().enumerate() {
                    th scope="col" class=[side(i)] {
                        (column.name)
                        @if !column.unit.is_empty() { " " span.unit { (column.unit) } }
                    }
                }
            } }
            tbody {
                @for (row, cells) in shown.iter().enumerate() {
                    tr {
                        @for (i, cell) in cells.iter().enumerate() {
                            td class=[class(row, i)] data-v=[table.cell(row, i).number()] {
                                @match badge(table.cell(row, i).tone()) {
                                    Some(class) => span class=(class) { (cell) },
                                    None => (cell),
                                }
                            }
                        }
                    }
                }
            }
        } }
        @if table.rows.is_empty() { p.note { "No rows." } }
        @if !table.best.is_empty() {
            p.note { "Bold: the best, and what is equal to it within " (percent) " %." }
        }
        @for note in &table.notes { p.note { (note) } }
    }
}

/// Style that writes each cell's heading before it, where rows stand for themselves.
fn labels(table: &Table, number: usize) -> String {
    let escaped = |c: char| match c.is_alphanumeric() || c == ' ' {
        true => c.to_string(),
        false => format!("\\{:x} ", c as u32),
    };
    let label = |(n, column): (usize, &Column)| {
        let heading: String = column.heading().chars().map(escaped).collect();
        format!("#table-{number} td:nth-child({}){{--h:\"{heading}\"}}", n + 1)
    };
    table.columns.iter().enumerate().map(label).collect()
}

fn badge(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Good => Some("badge good"),
        Tone::Fair => Some("badge fair"),
        Tone::Bad => Some("badge bad"),
    }
}

fn paragraphs(text: &str) -> Markup {
    let parts = text.split("\n\n").map(str::trim).filter(|part| !part.is_empty());
    html! { @for part in parts { p { (part) } } }
}

/// Unique names of the sections, for links.
fn anchors(sections: &[Section]) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut unique = |slug: String| loop {
        let times = seen.entry(slug.clone()).or_insert(0);
        *times += 1;
        let candidate = if *times == 1 { slug.clone() } else { format!("{slug}-{times}") };
        // "a-2" may be another section's own name.
        if *times == 1 || !seen.contains_key(&candidate) {
            seen.entry(candidate.clone()).or_insert(1);
            return candidate;
        }
    };
    sections.iter().map(|section| unique(slug(&section.heading))).collect()
}

fn slug(heading: &str) -> String {
    let words = heading.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.map(str::to_lowercase).collect::<Vec<_>>().join("-");
    // The page's own ids end in a number; a section's may not be one of them.
    let taken = ["figure-", "table-"].iter().any(|own| slug.starts_with(own));
    if slug.is_empty() || taken { format!("section-{slug}") } else { slug }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_unique() {
        let sections: Vec<Section> = ["A b", "a-b", "a b 2", "a b", "", "Figure 1"]
            .into_iter()
            .map(|heading| Section { heading: heading.to_owned(), ..Section::default() })
            .collect();
        assert_eq!(
            anchors(&sections),
            ["a-b", "a-b-2", "a-b-2-2", "a-b-3", "section-", "section-figure-1"]
        );
    }
}
