//! Snapshots of tables and reports (`UPDATE_EXPECT=1 cargo test` renews them).

use std::io;

use expect_test::{Expect, expect};
use seekway_report::rank::Better;
use seekway_report::*;

fn table() -> Table {
    let mut table = Table::new(
        "What each scheduler gives",
        vec![
            Column::text("policy"),
            Column::number("bandwidth", "MiB/s"),
            Column::number("against cfq", ""),
            Column::number("requests", ""),
            Column::number("p99", "ms"),
            Column::number("waits paid", ""),
            Column::text("verdict"),
        ],
    );
    let mut push = |name: &str,
                    rate: f64,
                    change: f64,
                    requests: u64,
                    p99: f64,
                    paid: Option<f64>,
                    verdict: Cell| {
        let paid = paid.map_or(Cell::Absent, Cell::Share);
        table.push([
            name.into(),
            rate.into(),
            Cell::Change(change),
            requests.into(),
            p99.into(),
            paid,
            verdict,
        ]);
    };
    push("noop", 14.8123, -0.495, 786_432, 410.25, None, Cell::Absent);
    push("数据 | <b>", 0.5, 0.0, 7, f64::NAN, Some(0.5), Cell::badge("refuted", Tone::Bad));
    push(
        "pregather",
        46.3,
        0.58,
        1_000_000,
        1311.6,
        Some(0.906),
        Cell::badge("holds, on every seed that was tried", Tone::Good),
    );
    table.notes.push("Zero seeks are counted per dispatch.".into());
    table
}

fn check(shown: &str, expect: Expect) {
    expect.assert_eq(shown);
}

#[test]
fn wide_text() {
    check(
        &table().to_text(TextOptions::default()),
        expect![[r#"
        What each scheduler gives

        policy      bandwidth (MiB/s)  against cfq   requests  p99 (ms)  waits paid  verdict
        ────────────────────────────────────────────────────────────────────────────────────────────────────────────────
        noop                    14.81      -49.5 %    786,432       410           –  –
        数据 | <b>               0.50        0.0 %          7         –      50.0 %  refuted
        pregather               46.30      +58.0 %  1,000,000     1,312      90.6 %  holds, on every seed that was tried

        Zero seeks are counted per dispatch.
    "#]],
    );
}

#[test]
fn narrow_text_wraps_words() {
    let text = table().to_text(TextOptions { width: Some(80), colour: false });
    assert!(text.lines().all(|line| unicode_width::UnicodeWidthStr::width(line) <= 80), "{text}");
    check(
        &text,
        expect![[r#"
            What each scheduler gives

                        bandwidth  against               p99   waits
            policy        (MiB/s)      cfq   requests   (ms)    paid  verdict
            ────────────────────────────────────────────────────────────────────────────────
            noop            14.81  -49.5 %    786,432    410       –  –
            数据 | <b>       0.50    0.0 %          7      –  50.0 %  refuted
            pregather       46.30  +58.0 %  1,000,000  1,312  90.6 %  holds, on every seed
                                                                      that was tried

            Zero seeks are counted per dispatch.
        "#]],
    );
}

#[test]
fn very_narrow_text_is_cut_between_columns() {
    let text = table().to_text(TextOptions { width: Some(40), colour: false });
    assert!(text.lines().all(|line| unicode_width::UnicodeWidthStr::width(line) <= 40), "{text}");
    check(
        &text,
        expect![[r#"
            What each scheduler gives

                       bandwidth  against
            policy       (MiB/s)      cfq   requests
            ────────────────────────────────────────
            noop           14.81  -49.5 %    786,432
            数据 |          0.50    0.0 %          7
            <b>
            pregather      46.30  +58.0 %  1,000,000

                          p99   waits
            policy       (ms)    paid  verdict
            ────────────────────────────────────────
            noop          410       –  –
            数据 | <b>      –  50.0 %  refuted
            pregather   1,312  90.6 %  holds, on
                                       every seed
                                       that was
                                       tried

            Zero seeks are counted per dispatch.
        "#]],
    );
}

#[test]
fn each_part_says_what_its_rows_are_about() {
    let rows = [("a", "noop"), ("a", "cfq"), ("b", "noop")];
    let table = Table::of("", &rows)
        .text("VM", |row| row.0)
        .text("policy", |row| row.1)
        .each(1..=4, |table, n| table.number(format!("figure{n}"), "ms", move |_| f64::from(n)))
        .done();
    check(
        &table.to_text(TextOptions { width: Some(30), colour: false }),
        expect![[r#"
                         figure1   figure2
            VM  policy      (ms)      (ms)
            ──────────────────────────────
            a   noop           1         2
            a   cfq            1         2
            b   noop           1         2

                         figure3   figure4
            VM  policy      (ms)      (ms)
            ──────────────────────────────
            a   noop           3         4
            a   cfq            3         4
            b   noop           3         4
        "#]],
    );
    // Narrower than any part: a column each.
    let narrow = table.to_text(TextOptions { width: Some(20), colour: false });
    assert_eq!(narrow.matches("policy").count(), 4, "{narrow}");
}

/// Two VMs under three policies: the first answers sooner, the other moves as much within 2 %.
fn marked() -> Table {
    let rows = [
        ("a", "noop", 5.0, Some(10.0)),
        ("a", "cfq", 5.09, None),
        ("a", "look", 9.0, Some(f64::NAN)),
        ("b", "sstf", 0.0, Some(0.0)),
        ("b", "noop", 70.0, Some(3.0)),
        ("b", "cfq", 70.0, Some(2.0)),
        ("b", "look", 71.0, Some(3.0)),
    ];
    let mut table = Table::of("", &rows)
        .text("VM", |row| row.0)
        .text("policy", |row| row.1)
        .number("p99", "ms", |row| row.2)
        .number("rate", "", |row| row.3)
        .done();
    table.mark_best(|column| match column.name.as_str() {
        "p99" => Some(Better::Less),
        "rate" => Some(Better::More),
        _ => None,
    });
    table
}

#[test]
fn the_best_of_each_vm_are_marked() {
    let coloured = marked().to_text(TextOptions { width: None, colour: true });
    let green = coloured.split("\x1b[32m").skip(1).map(|of| of.split('\x1b').next().unwrap());
    // Neither the only rate of a VM is the best of several, nor are figures that are all equal, nor
    // those of a row with no rate.
    assert_eq!(green.collect::<Vec<_>>(), ["5.0", "5.1", "3", "3"]);
    let plain = marked().to_text(TextOptions::default());
    let lines: Vec<&str> = plain.lines().collect();
    assert_eq!(
        lines,
        [
            "VM  policy  p99 (ms)  rate",
            "──────────────────────────",
            "a   noop         5.0*   10",
            "a   cfq          5.1*    –",
            "a   look         9.0     –",
            "b   sstf         0.0     0",
            "b   noop        70.0     3*",
            "b   cfq         70.0     2",
            "b   look        71.0     3*",
            "",
            "* the best, or within 2 % of it.",
        ]
    );
    let sections = vec![Section::new("A", vec![Block::Table(marked())])];
    let html = html(&Report { sections, ..Report::default() });
    assert_eq!(html.matches(r#"class="n best""#).count(), 4);
    assert!(html.contains("within 2 %"));
}

#[test]
fn colour_only_if_asked() {
    let plain = table().to_text(TextOptions::default());
    let coloured = table().to_text(TextOptions { colour: true, ..TextOptions::default() });
    assert!(!plain.contains('\x1b'));
    assert!(coloured.contains("\x1b[31mrefuted\x1b[0m"));
}

#[test]
fn names_cannot_steer_a_terminal() {
    let mut table = Table::new("a\x1b[2J", vec![Column::text("b\r"), Column::text("c\u{202e}")]);
    table.push(["\x1b]0;owned\x07\n".into(), "\u{9b}31m".into()]);
    let text = table.to_text(TextOptions::default());
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(!text.contains('\u{202e}'));
}

#[test]
fn odd_shapes_do_not_panic() {
    let empty = Table::default();
    assert_eq!(empty.to_text(TextOptions::default()), "");
    let mut ragged = Table::new("", vec![Column::text("a"), Column::number("b", "s")]);
    ragged.rows = vec![vec![], vec![1.0.into(), 2.0.into(), 3.0.into()]];
    for width in [0, 1, 5, 1000] {
        let _ = ragged.to_text(TextOptions { width: Some(width), colour: true });
    }
    check(
        &ragged.to_text(TextOptions::default()),
        expect![[r#"
        a  b (s)
        ────────
        –      –
        1      2
    "#]],
    );
}

#[test]
fn csv_has_full_precision() {
    let mut csv = Vec::new();
    table().write_csv(&mut csv).expect("a vector takes all");
    check(
        &String::from_utf8(csv).expect("UTF-8"),
        expect![[r#"
        policy,bandwidth (MiB/s),against cfq,requests,p99 (ms),waits paid,verdict
        noop,14.8123,-0.495,786432,410.25,,
        数据 | <b>,0.5,0,7,,0.5,refuted
        pregather,46.3,0.58,1000000,1311.6,0.906,"holds, on every seed that was tried"
    "#]],
    );
}

#[test]
fn markdown() {
    check(
        &table().to_markdown(),
        expect![[r#"
        **What each scheduler gives**

        | policy | bandwidth (MiB/s) | against cfq | requests | p99 (ms) | waits paid | verdict |
        | :-- | --: | --: | --: | --: | --: | :-- |
        | noop | 14.81 | -49.5 % | 786,432 | 410 | – | – |
        | 数据 \| \<b\> | 0.50 | 0.0 % | 7 | – | 50.0 % | refuted |
        | pregather | 46.30 | +58.0 % | 1,000,000 | 1,312 | 90.6 % | holds, on every seed that was tried |

        Zero seeks are counted per dispatch.
    "#]],
    );
}

fn report() -> Report {
    let figure = Lines {
        x: Axis::time("Time", "s"),
        y: Axis::linear("Bandwidth", "MiB/s").from_zero(),
        series: vec![Series::new("</svg><script>alert(2)</script>", vec![(0.0, 1.0), (1.0, 3.0)])],
    };
    Report {
        title: "<script>alert(1)</script>".into(),
        subtitle: "a & b".into(),
        meta: vec![("Command".into(), "seekway compare --trace '\"><img src=x>'".into())],
        sections: vec![
            Section {
                heading: "Results & more".into(),
                intro: "First.\n\nSecond.".into(),
                blocks: vec![Block::Table(table()), Block::figure(figure.render(), "It <rises>.")],
            },
            Section {
                heading: "Results & more".into(),
                intro: String::new(),
                blocks: vec![Block::Text("x < y".into()), Block::Warning("1 record <lost>".into())],
            },
        ],
    }
}

fn html(report: &Report) -> String {
    let mut html = Vec::new();
    report.write_html(&mut html).expect("a vector takes all");
    String::from_utf8(html).expect("UTF-8")
}

#[test]
fn html_fragment() {
    let html = html(&report());
    let from = html.find("<header>").expect("a header");
    let figure = html.find("<div class=\"plot\"").expect("a figure");
    check(
        &html[from..figure].replace("</tr>", "</tr>\n"),
        expect![[r##"
            <header><h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1><p class="summary">a &amp; b</p></header><noscript><style>section:not(:has(.table,.bars)):has(.plot),figure:has(.plot),.hint{display:none}</style><p class="warning">A script, which is part of this file, draws some figures; they are left out.</p></noscript><p class="hint">In a figure, click a name to hide its line (Ctrl: to see it alone), drag to zoom in, and double-click to see all again.</p><nav aria-label="Contents"><ol><li><a href="#results-more">Results &amp; more</a></li><li><a href="#results-more-2">Results &amp; more</a></li></ol></nav>
            <section>
            <h2 id="results-more">Results &amp; more <a class="anchor" href="#results-more" aria-label="link to this section">#</a></h2><p>First.</p><p>Second.</p><div class="table wide" id="table-1"><style>#table-1 td:nth-child(1){--h:"policy"}#table-1 td:nth-child(2){--h:"bandwidth \28 MiB\2f s\29 "}#table-1 td:nth-child(3){--h:"against cfq"}#table-1 td:nth-child(4){--h:"requests"}#table-1 td:nth-child(5){--h:"p99 \28 ms\29 "}#table-1 td:nth-child(6){--h:"waits paid"}#table-1 td:nth-child(7){--h:"verdict"}</style><p class="caption"><b>Table 1.</b> What each scheduler gives</p><div class="scroll"><table><thead><tr><th scope="col">policy</th><th scope="col" class="n">bandwidth <span class="unit">MiB/s</span></th><th scope="col" class="n">against cfq</th><th scope="col" class="n">requests</th><th scope="col" class="n">p99 <span class="unit">ms</span></th><th scope="col" class="n">waits paid</th><th scope="col">verdict</th></tr>
            </thead><tbody><tr><td>noop</td><td class="n" data-v="14.8123">14.81</td><td class="n" data-v="-0.495">-49.5 %</td><td class="n" data-v="786432">786,432</td><td class="n" data-v="410.25">410</td><td class="n">–</td><td>–</td></tr>
            <tr><td>数据 | &lt;b&gt;</td><td class="n" data-v="0.5">0.50</td><td class="n" data-v="0">0.0 %</td><td class="n" data-v="7">7</td><td class="n">–</td><td class="n" data-v="0.5">50.0 %</td><td><span class="badge bad">refuted</span></td></tr>
            <tr><td>pregather</td><td class="n" data-v="46.3">46.30</td><td class="n" data-v="0.58">+58.0 %</td><td class="n" data-v="1000000">1,000,000</td><td class="n" data-v="1311.6">1,312</td><td class="n" data-v="0.906">90.6 %</td><td><span class="badge good">holds, on every seed that was tried</span></td></tr>
            </tbody></table></div><p class="note">Zero seeks are counted per dispatch.</p></div>
            <figure id="figure-1">"##]],
    );
}

#[test]
fn long_parts_are_folded_but_for_the_first_table() {
    let table = |rows: usize| {
        let mut table = Table::new("Long", vec![Column::text("a")]);
        (0..rows).for_each(|_| table.push(["x".into()]));
        Block::Table(table)
    };
    let bars = |groups: usize| {
        let names = (0..groups).map(|n| format!("vm{n}")).collect();
        let bars = BarSeries { bars: vec![Some(1.0.into()); groups], ..BarSeries::default() };
        let series = vec![bars.clone(), bars];
        Block::figure(Bars { axis: Axis::linear("a", ""), groups: names, series }.render(), "b")
    };
    let drawn = report().sections.remove(0).blocks.remove(1);
    let folded = Block::Folded { summary: "Each <VM>".into(), blocks: vec![table(1), drawn] };
    let blocks = vec![table(21), table(20), table(21), bars(30), bars(31), folded];
    let meta = vec![("Command".into(), "é".repeat(301)), ("Disk".into(), "é".repeat(300))];
    let sections = vec![Section::new("A", blocks)];
    let html = html(&Report { sections, meta, ..Report::default() });
    let summaries = html.split("<details><summary>").skip(1);
    let said: Vec<&str> = summaries.map(|s| s.split("</summary>").next().unwrap()).collect();
    let command = format!("{} …", "é".repeat(300));
    assert_eq!(said, ["<b>Table 3.</b> Long: 21 rows", "1 more", "Each &lt;VM&gt;", &command]);
    assert_eq!(html.matches("</details>").count(), said.len());
    assert!(html.contains("Table 4.") && html.contains("Figure 3."), "folded blocks count");
    assert!(html.contains("application/json") && html.contains("uPlot"), "and are drawn");
}

#[test]
fn sentences_are_no_wider_than_tables() {
    let said =
        |width| table::sentences("one two three\n\x1b[2Jfour", TextOptions { width, colour: true });
    assert_eq!(said(None), "one two three\n\u{fffd}[2Jfour");
    let long = "word ".repeat(20);
    let wrapped = table::sentences(&long, TextOptions { width: Some(30), colour: false });
    assert!(wrapped.lines().count() > 2 && wrapped.lines().all(|l| l.len() <= 30), "{wrapped}");
}

#[test]
fn html_escapes_and_loads_nothing() {
    let html = html(&report());
    for bad in [
        "<script>alert",
        "<img",
        "<rises>",
        "<lost>",
        "<b>Cmd",
        "http://",
        "https://",
        "src=\"",
        "@import",
        "url(",
    ] {
        // uPlot says where it is from.
        let html = html.replace("https://github.com/leeoniya/uPlot", "");
        assert!(!html.contains(bad), "{bad}");
    }
    // Of sorting, the figure's data, uPlot, and what draws with it.
    assert_eq!(html.matches("<script").count(), 4);
    let mut without = report();
    without.sections.remove(0);
    assert!(!self::html(&without).contains("uPlot"), "only where a figure is drawn");
    assert!(html.contains(r##"<a href="#results-more-2">"##));
    assert!(html.contains(r#"<h2 id="results-more-2">"#));
}

#[test]
fn a_full_disk_is_an_error() {
    let mut room = [0_u8; 4096];
    let error = report().write_html(&mut room[..]).expect_err("no room");
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    let error = table().write_csv(&mut room[..10]).expect_err("no room");
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}
