//! For any data, every figure is well-formed, of a bounded size, and names the values it left out.

use seekway_report::*;

const NAMES: [&str; 4] = [
    "",
    "<script>alert('1')</script>",
    "a & \"b\" \u{0}\u{1b}[31m\u{fffe}",
    "机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器机器",
];

fn data() -> Vec<Vec<(f64, f64)>> {
    let odd = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        5e-324,
        1e15,
        1e15 + 1.0,
    ];
    let mut sets = vec![vec![], vec![(f64::NAN, f64::NAN)], vec![(1.0, 1.0)], vec![(0.0, 0.0); 3]];
    sets.push(odd.iter().flat_map(|x| odd.iter().map(|y| (*x, *y))).collect());
    sets.extend(odd.iter().flat_map(|x| odd.iter().map(|y| vec![(*x, *y), (*y, *x)])));
    sets.push((0..4_000).map(|i| (f64::from(i), f64::from(i * 7919 % 10_007))).collect());
    sets
}

fn axes() -> Vec<Axis> {
    vec![
        Axis::linear("linear", "ms"),
        Axis::log("log", "s"),
        Axis::time("<time>", "&"),
        Axis::share("share"),
        Axis::nines("nines"),
        Axis::linear("zero", "").from_zero(),
        Axis::linear("given", "").range(f64::NAN, 3.0),
        Axis::log("given", "").range(-1.0, 3.0),
        Axis::linear("given", "").range(-2.0, 3.0),
    ]
}

/// A page with the figure alone.
fn page(figure: &Figure) -> String {
    let sections = vec![Section::new("A", vec![Block::figure(figure.clone(), "b")])];
    let mut html = Vec::new();
    let report = Report { sections, ..Report::default() };
    report.write_html(&mut html).expect("a vector takes all");
    let html = String::from_utf8(html).expect("UTF-8");
    let from = html.find("<figure").expect("a figure");
    html[from..html.find("</figure>").expect("its end")].to_owned()
}

#[track_caller]
fn check(figure: &Figure) {
    let html = page(figure);
    assert!(html.len() < 600_000, "{} bytes", html.len());
    assert!(!html.contains("<script>alert"), "{html}");
    let Some((_, rest)) = html.split_once(r#"<script type="application/json">"#) else {
        assert!(!html.contains("NaN") && !html.contains("inf%"), "{html}");
        return;
    };
    let (json, _) = rest.split_once("</script>").expect("its end");
    let data: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert!(data["kind"].is_string());
}

#[test]
fn scatter_and_lines_take_anything() {
    for points in data() {
        let series: Vec<Series> =
            NAMES.iter().map(|name| Series::new(*name, points.clone())).collect();
        let axes = axes();
        for (x, y) in axes.iter().zip(axes.iter().cycle().skip(1)).chain(axes.iter().zip(&axes)) {
            for panels in [Panels::Auto, Panels::Together, Panels::Apart] {
                check(
                    &Scatter { x: x.clone(), y: y.clone(), series: series.clone(), panels }
                        .render(),
                );
            }
            check(&Lines { x: x.clone(), y: y.clone(), series: series.clone() }.render());
        }
    }
}

#[test]
fn a_million_points_stay_small() {
    let points: Vec<(f64, f64)> = (0..250_000_u32)
        .map(|i| (f64::from(i), f64::from(i.wrapping_mul(2_654_435_761) >> 8)))
        .collect();
    let series: Vec<Series> = NAMES.iter().map(|name| Series::new(*name, points.clone())).collect();
    let (x, y) = (Axis::time("x", "s"), Axis::linear("y", ""));
    for panels in [Panels::Together, Panels::Apart] {
        check(&Scatter { x: x.clone(), y: y.clone(), series: series.clone(), panels }.render());
    }
    check(&Lines { x, y, series }.render());
}

#[test]
fn bars_take_anything() {
    for points in data().into_iter().filter(|points| points.len() < 1000) {
        let bars =
            points.iter().map(|(a, b)| Some(Bar { value: *a, range: Some((*b, *a)) })).collect();
        let series =
            vec![BarSeries { name: NAMES[2].into(), bars, reference: true }, BarSeries::default()];
        let groups = (0..points.len()).map(|i| NAMES[i % 4].to_owned()).collect();
        for axis in axes() {
            check(&Bars { axis, groups: Vec::clone(&groups), series: series.clone() }.render());
        }
    }
    check(&Bars { axis: Axis::linear("", ""), groups: vec![], series: vec![] }.render());
}

#[test]
fn histograms_take_anything() {
    let mut all = SeekBins::default();
    for distance in [0, 1, -1, i64::MAX, i64::MIN, 12_345] {
        all.record_n(distance, 1);
    }
    let mut full = SeekBins::default();
    full.record_n(0, u64::MAX);
    full.record_n(7, u64::MAX);
    full.record_n(-7, u64::MAX);
    for sets in [
        vec![],
        vec![SeekBins::default()],
        vec![all.clone()],
        vec![full, all.clone()],
        vec![all; 30],
    ] {
        let series =
            sets.into_iter().enumerate().map(|(i, bins)| (NAMES[i % 4].to_owned(), bins)).collect();
        check(&Histogram { label: "<l>".into(), unit: "&".into(), series }.render());
    }
}

#[test]
fn heat_maps_take_anything() {
    for points in data() {
        let values: Vec<f64> = points.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let outlines = points
            .iter()
            .map(|p| Outline { x: *p, y: (p.1, p.0), label: NAMES[1].into() })
            .collect();
        let map = HeatMap {
            x: Axis::linear("x", "s"),
            y: Axis::log("y", ""),
            x_range: *points.first().unwrap_or(&(0.0, 1.0)),
            y_range: (1.0, 10.0),
            columns: 0,
            values,
            value_label: NAMES[2].into(),
            outlines,
        };
        for columns in [0, 1, 3, 300, 100_000] {
            check(&HeatMap { columns, x_range: (0.0, 1.0), ..map.clone() }.render());
        }
        check(&map.render());
    }
}

#[test]
fn a_map_of_one_time_has_an_axis() {
    let drawn = |x_range| {
        let map = HeatMap {
            x: Axis::time("time", "s"),
            y: Axis::linear("LBA", "sectors"),
            x_range,
            y_range: (0.0, 8.0),
            columns: 2,
            values: vec![0.0, 1.0],
            value_label: "density".into(),
            outlines: vec![],
        };
        page(&map.render())
    };
    let range = |low, high| format!("\"range\":[{low:?},{high:?}]");
    // The last column is filled: at one time it is no later than the first.
    let mark = format!("\"cells\":\"-{}\"", ".".repeat(39));
    for (given, shown, cells) in [
        ((0.0, f64::MIN_POSITIVE), range(0.0, 1.0), &*mark),
        ((4.0, 4.000_000_000_000_001), range(4.0, 8.0), &*mark),
        ((0.0, 1e-6), range(0.0, 1e-6), "\"cells\":\".-\""),
    ] {
        let html = drawn(given);
        assert!(html.contains(&shown) && html.contains(cells), "{shown}, {cells}: {html}");
    }
}

#[test]
fn what_is_left_out_is_counted() {
    let lines = |points| Lines {
        x: Axis::log("x", ""),
        y: Axis::linear("y", ""),
        series: vec![Series::new("a", points)],
    };
    let text = page(&lines(vec![(0.0, 1.0), (-1.0, 1.0), (1.0, f64::INFINITY)]).render());
    assert!(text.contains("No data") && text.contains("Left out: 3 values"), "{text}");
    // A gap is meant, so it is not counted.
    let text = page(&lines(vec![(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0)]).render());
    assert!(!text.contains("Left out") && text.contains("[1.0,null,2.0]"), "{text}");
}

#[test]
fn the_same_data_give_the_same_bytes() {
    let points: Vec<(f64, f64)> =
        (0..30_000).map(|i| (f64::from(i), f64::from(i * 31 % 977))).collect();
    let scatter = Scatter {
        x: Axis::time("t", "s"),
        y: Axis::linear("y", ""),
        series: vec![Series::new("a", points)],
        panels: Panels::Auto,
    };
    assert_eq!(scatter.render(), scatter.render());
}

#[test]
fn a_reference_that_is_the_same_for_all_groups_is_a_line() {
    let drawn = |reference: [f64; 2]| {
        let series = |values: [f64; 2], reference| BarSeries {
            bars: values.map(|value| Some(value.into())).to_vec(),
            reference,
            ..BarSeries::default()
        };
        let bars = Bars {
            axis: Axis::linear("progress", ""),
            groups: vec!["a".into(), "b".into()],
            series: vec![series([0.5, 2.0], false), series(reference, true)],
        };
        let figure = bars.render();
        check(&figure);
        [r#"class="line""#, r#"class="bar ref""#].map(|class| page(&figure).matches(class).count())
    };
    // A line across each group, or a bar in each.
    assert_eq!(drawn([1.0, 1.0]), [2, 0]);
    assert_eq!(drawn([1.0, 1.5]), [0, 2]);
}

#[test]
fn of_more_bars_than_colours_each_says_its_name() {
    let drawn = |series: usize| {
        let one = |n| BarSeries {
            name: format!("policy{n}"),
            bars: vec![Some(1.0.into())],
            reference: false,
        };
        let series = (0..series).map(one).collect();
        let bars = Bars { axis: Axis::linear("p", ""), groups: vec!["a".into()], series };
        let html = page(&bars.render());
        (html.contains(">1 policy7</b>"), html.contains("class=\"legend\""))
    };
    assert_eq!(drawn(8), (false, true));
    assert_eq!(drawn(9), (true, false));
}
