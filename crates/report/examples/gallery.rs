//! Every kind of table and figure, with made-up but life-like data, as one report on stdout:
//! `cargo run -p seekway-report --example gallery > gallery.html`.

use std::io;

use seekway_report::plot::cdf;
use seekway_report::*;

fn main() -> io::Result<()> {
    let report = Report {
        title: "Three machines on one Seagate 1 TB disk: pregather against four schedulers".into(),
        subtitle: "pregather gives the three machines 1.58 times what CFQ gives them, and waits pay off nine times in ten; \
                   the random readers of VM3 pay with a p99.9 that is a quarter longer."
            .into(),
        meta: meta(),
        sections: vec![summary(), machines(), patterns(), edge_cases()],
    };
    report.write_html(io::BufWriter::new(io::stdout().lock()))
}

fn meta() -> Vec<(String, String)> {
    [
        ("Command", "seekway compare --trace cloudPhysicsIO.vscsi --trace linux-mysql.load.gz --device seagate-1tb-7200 --policies all --report out.html"),
        ("Device", "seagate-1tb-7200 (disk model, 7200 rpm)"),
        ("Seeds", "1, 2, 3, 4, 5"),
        ("Version", "seekway 0.1.0 (46b3971)"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

fn summary() -> Section {
    let ours = ["noop", "deadline", "anticipatory", "cfq", "pregather"];
    let bars = |name: &str, values: [f64; 5], reference: bool| BarSeries {
        name: name.into(),
        bars: values
            .iter()
            .map(|v| Some(Bar { value: *v, range: (!reference).then_some((v * 0.94, v * 1.05)) }))
            .collect(),
        reference,
    };
    let figure = Bars {
        title: "Total bandwidth, ours beside the paper's".into(),
        axis: Axis::linear("Bandwidth", "MiB/s"),
        groups: ours.map(String::from).to_vec(),
        series: vec![
            bars("ours (five seeds)", [14.8, 16.1, 16.9, 29.3, 46.3], false),
            bars("Pregather, figure 5(b)", [f64::NAN, 17.5, 17.6, 28.5, 45.6], true),
        ],
    };
    let text = "Each policy served the same requests. Throughput is what the guests got, not what the disk did.";
    Section {
        heading: "Summary".into(),
        intro: text.into(),
        blocks: vec![
            Block::Table(policies_table()),
            Block::Figure { svg: figure.render(), caption: "Bars are means, whiskers the least and largest of five seeds.".into() },
            Block::Table(verdict_table()),
            Block::Warning("1,204 records of linux-mysql.load.gz were out of order and were sorted within a window of 64.".into()),
        ],
    }
}

fn policies_table() -> Table {
    let mut table = Table::new(
        "What each scheduler gives all machines together",
        vec![
            Column::text("policy"),
            Column::number("bandwidth", "MiB/s"),
            Column::number("against cfq", ""),
            Column::number("requests", ""),
            Column::number("mean", "ms"),
            Column::number("p99", "ms"),
            Column::number("p99.9", "ms"),
            Column::number("zero seeks", ""),
            Column::number("waits paid", ""),
            Column::number("φ", ""),
        ],
    );
    for (name, rate, change, mean, p99, zero, paid, phi) in [
        ("noop", 14.8, -0.495, 62.31, 410.2, 0.312, None, 3.1),
        ("deadline", 16.1, -0.451, 57.2, 388.0, 0.344, None, 2.2),
        ("anticipatory", 16.9, -0.423, 55.81, 532.9, 0.402, Some(0.41), 2.9),
        ("cfq", 29.3, 0.0, 31.4, 402.7, 0.461, Some(0.63), 1.4),
        ("pregather", 46.3, 0.58, 19.93, 311.6, 0.77, Some(0.906), 1.6),
    ] {
        table.push([
            name.into(),
            Cell::Number(rate),
            Cell::Change(change),
            Cell::Count(786_432),
            Cell::Number(mean),
            Cell::Number(p99),
            Cell::Number(p99 * 1.9),
            Cell::Share(zero),
            paid.map_or(Cell::Absent, Cell::Share),
            Cell::Number(phi),
        ]);
    }
    table.notes.push(
        "Zero seeks are counted per dispatch; the paper does not say which it counts.".into(),
    );
    table
}

fn verdict_table() -> Table {
    let mut table = Table::new(
        "pregather-read: the paper's claims",
        vec![
            Column::text("claim"),
            Column::number("paper", ""),
            Column::number("ours", ""),
            Column::text("verdict"),
            Column::text("why"),
        ],
    );
    table.push([
        "total bandwidth against CFQ".into(),
        Cell::Ratio(1.6),
        Cell::Ratio(1.58),
        Cell::badge("holds", Tone::Good),
        "on every seed, at 48, 64 and 128 KiB".into(),
    ]);
    table.push([
        "total bandwidth against deadline".into(),
        Cell::Ratio(2.6),
        Cell::Ratio(2.88),
        Cell::badge("holds in part", Tone::Fair),
        "with the drive's own read-ahead off, deadline loses more than in the paper".into(),
    ]);
    table.push([
        "zero-distance seeks".into(),
        Cell::Share(0.77),
        Cell::Share(0.52),
        Cell::badge("refuted", Tone::Bad),
        "coalescing at 512 KiB removes the seeks that the paper counts".into(),
    ]);
    table
}

fn machines() -> Section {
    let mut rng = Lcg(7);
    let over_time = |rng: &mut Lcg, mean: f64, swing: f64| -> Vec<(f64, f64)> {
        (0..120).map(|t| (f64::from(t) * 0.5, mean + swing * (rng.unit() - 0.5))).collect()
    };
    let mut vm2 = over_time(&mut rng, 15.0, 6.0);
    vm2.iter_mut().skip(50).take(12).for_each(|p| p.1 = f64::NAN);
    let bandwidth = Lines {
        title: "Bandwidth under pregather".into(),
        x: Axis::time("Time", "s"),
        y: Axis::linear("Bandwidth", "MiB/s").from_zero(),
        series: vec![
            Series::new("VM1: SR+SR", over_time(&mut rng, 26.0, 5.0)),
            Series::new("VM2: SR+RR", vm2),
            Series::new("VM3: RR+RR", over_time(&mut rng, 4.2, 1.5)),
        ],
    };
    let responses = |rng: &mut Lcg, scale: f64, tail: f64| -> Vec<f64> {
        (0..40_000).map(|_| 0.25 + scale * (-rng.unit().ln()).powf(tail)).collect()
    };
    let names = ["noop", "deadline", "cscan", "look", "anticipatory", "cfq", "pregather"];
    let distributions: Vec<Series> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            Series::new(
                *name,
                cdf(responses(&mut rng, 60.0 / (i + 1) as f64, 1.2 + 0.1 * i as f64), 300),
            )
        })
        .collect();
    let response = |y: Axis, title: &str| Lines {
        title: title.into(),
        x: Axis::log("Response time", "ms"),
        y,
        series: distributions.clone(),
    };
    let sweep = Lines {
        title: "Execution time by zone size".into(),
        x: Axis::log("B", "sectors"),
        y: Axis::linear("Execution time", "s").from_zero(),
        series: vec![
            Series::new(
                "ours",
                vec![
                    (1.0, 84.0),
                    (10.0, 71.0),
                    (100.0, 52.0),
                    (1e3, 47.0),
                    (2e3, 46.2),
                    (1e4, 51.0),
                    (1e5, 66.0),
                    (1e7, 84.9),
                ],
            ),
            Series::new(
                "Pregather, figure 4",
                vec![(10.0, 78.0), (100.0, 60.0), (1e3, 47.0), (2e3, 46.0), (1e7, 85.0)],
            )
            .as_reference(),
        ],
    };
    let figure = |svg: Svg, caption: &str| Block::Figure { svg, caption: caption.into() };
    Section {
        heading: "Machines".into(),
        intro: "What each machine got over time, and how long its requests took.".into(),
        blocks: vec![
            figure(bandwidth.render(), "VM2 was idle from 25 s to 31 s."),
            figure(
                response(Axis::share("Requests"), "Response time").render(),
                "All machines together.",
            ),
            figure(
                response(Axis::nines("Requests"), "Response time: the tail").render(),
                "The same, with each further nine equally wide.",
            ),
            figure(sweep.render(), "Two SR in one VM, λ 2, window 20 ms."),
        ],
    }
}

fn patterns() -> Section {
    let mut rng = Lcg(3);
    let near = scatter(&mut rng, [1.2832e9, 1.3086e9, 1.3594e9]);
    let far = scatter(&mut rng, [2.0e7, 9.0e8, 1.8e9]);
    let seeks = |rng: &mut Lcg, zero: f64, scale: f64| -> SeekBins {
        (0..50_000)
            .map(|_| {
                let sign = if rng.unit() < 0.55 { 1.0 } else { -1.0 };
                if rng.unit() < zero {
                    0
                } else {
                    (sign * 10f64.powf(1.5 + scale * (rng.unit() + rng.unit()))) as i64
                }
            })
            .collect()
    };
    let histogram = Histogram {
        title: "Seek distance by policy".into(),
        label: "Seek distance".into(),
        unit: "sectors".into(),
        series: [("pregather", 0.77, 2.6), ("cfq", 0.46, 3.2), ("deadline", 0.34, 3.4)]
            .map(|(name, zero, scale)| (name.to_owned(), seeks(&mut rng, zero, scale)))
            .to_vec(),
    };
    let figure = |svg: Svg, caption: &str| Block::Figure { svg, caption: caption.into() };
    Section {
        heading: "Where the requests go".into(),
        intro: String::new(),
        blocks: vec![
            figure(
                near.render(),
                "LBA of each arriving request, as in figure 1 of the Pregather paper.",
            ),
            figure(
                far.render(),
                "The same on images that lie far apart: each has a panel of its own.",
            ),
            figure(histogram.render(), "Bins are half a decade wide."),
            figure(
                heat_map(&mut rng).render(),
                "Density of VM2's zones; frames are what the model predicts to be hot.",
            ),
        ],
    }
}

fn scatter(rng: &mut Lcg, starts: [f64; 3]) -> Scatter {
    let size = 2.2e7;
    let series = starts
        .iter()
        .enumerate()
        .map(|(vm, start)| {
            let points = (0..7_000)
                .map(|i| {
                    let time = f64::from(i) * 60.0 / 7_000.0;
                    let sequential = (time / 60.0 * 2.0e6 + f64::from(i % 2) * 1.6e7 + 2e6) % size;
                    let random = size * (0.2 + 0.6 * rng.unit());
                    let journal = rng.unit() < 0.02;
                    let offset = match vm {
                        _ if journal => rng.unit() * 2e5,
                        0 => sequential,
                        1 if i % 2 == 0 => sequential,
                        _ => random,
                    };
                    (time, start + offset)
                })
                .collect();
            Series::new(format!("VM{}", vm + 1), points)
        })
        .collect();
    Scatter {
        title: "LBA of requests over time".into(),
        x: Axis::time("Time", "s"),
        y: Axis::linear("LBA", "sectors"),
        series,
        panels: Panels::Auto,
    }
}

fn heat_map(rng: &mut Lcg) -> HeatMap {
    let (columns, rows) = (120, 80);
    let mut values = vec![0.0; columns * rows];
    for column in 0..columns {
        for _ in 0..40 {
            let row = if rng.unit() < 0.7 {
                10 + column / 6 + (rng.unit() * 3.0) as usize
            } else {
                40 + (rng.unit() * 30.0) as usize
            };
            values[row * columns + column] += 1.0;
        }
    }
    HeatMap {
        title: "Zone density of VM2".into(),
        x: Axis::time("Time", "s"),
        y: Axis::linear("LBA", "sectors"),
        x_range: (0.0, 60.0),
        y_range: (1.3086e9, 1.33e9),
        columns,
        values,
        value_label: "Requests in a zone and 0.5 s".into(),
        log: true,
        outlines: (0..6)
            .map(|i| {
                let low = 1.3086e9 + (9.0 + f64::from(i) * 3.4) * 2.675e5;
                Outline {
                    x: (f64::from(i) * 10.0, f64::from(i + 1) * 10.0),
                    y: (low, low + 7.0 * 2.675e5),
                    label: format!("predicted interval {i}"),
                }
            })
            .collect(),
    }
}

fn edge_cases() -> Section {
    let empty = Lines {
        title: "Nothing at all".into(),
        x: Axis::linear("x", ""),
        y: Axis::log("y", ""),
        series: vec![Series::new("only zeros", vec![(0.0, 0.0), (1.0, 0.0)])],
    };
    let one = Scatter {
        title: "A single point, with a name <that> \"needs\" escaping & is much too long for the legend to show it in one piece".into(),
        x: Axis::time("Time", "s"),
        y: Axis::linear("LBA", "sectors"),
        series: vec![Series::new("<script>alert(1)</script> database server of the accounting department, second replica", vec![(3.0, 12345.0)])],
        panels: Panels::Auto,
    };
    let long = Bars {
        title: "Policies by machine".into(),
        axis: Axis::linear("Change of response time", "ms"),
        groups: ["web", "数据库服务器", "a virtual machine with a name that goes on and on and on"]
            .map(String::from)
            .to_vec(),
        series: ["noop", "deadline", "cscan", "cfq", "pregather"]
            .iter()
            .enumerate()
            .map(|(i, name)| BarSeries {
                name: (*name).into(),
                bars: vec![Some((3.0 - i as f64 * 1.7).into()), None, Some((i as f64).into())],
                reference: false,
            })
            .collect(),
    };
    let figure = |svg: Svg, caption: &str| Block::Figure { svg, caption: caption.into() };
    Section {
        heading: "Edge cases".into(),
        intro: "What must not break.".into(),
        blocks: vec![
            figure(empty.render(), "No value has a place on a logarithmic axis."),
            figure(one.render(), "One point."),
            figure(long.render(), "Long names, negative and absent values."),
        ],
    }
}

/// A small generator, so that the gallery is the same each time without another dependency.
struct Lcg(u64);

impl Lcg {
    fn unit(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}
