//! pregather-sensitivity and pregather-sync: what decides the result.

use super::super::judge::mean;
use super::super::metric::{bandwidth, waits, worst_response_s};
use super::super::{Cell, Findings, Options, Results, Row};
use super::{CFQ, DISK, LITERAL, ON_PARTS, OURS, XEN, on_parts, read_vms, scenario, under};
use seekway_policy::units::Sectors;

/// The policies that every variation of load or disk is run under.
const POLICIES: [&str; 3] = [CFQ, LITERAL, OURS];
const BASE: &str = "as it is";

/// What of load or disk is varied: name, guest's keys, disk, coalescing (KiB).
fn settings() -> Vec<(String, String, String, u64)> {
    let guest =
        |name: &str, keys: &str| (name.to_string(), keys.to_string(), DISK.to_string(), 512);
    let coalesced = [0u64, 128, 256, 1024]
        .map(|kib| (format!("coalesced up to {kib} KiB"), XEN.to_string(), DISK.to_string(), kib));
    let drives =
        ["read_ahead_idle=false", "cut_short=true", "read_ahead=false", "write_cache=true"];
    let drives = drives.map(|change| {
        (format!("drive: {change}"), XEN.to_string(), format!("{DISK}:{change}"), 512)
    });
    let late = [0u32, 1, 2].map(|ms| {
        guest(&format!("latency {ms} ms"), &format!("max_request_kib=44,ring=32,latency={ms}ms"))
    });
    let others = [
        guest("128 requests of 128 KiB", "max_request_kib=128,latency=500us"),
        guest("8 requests of 44 KiB", "max_request_kib=44,ring=8,latency=500us"),
        guest(ON_PARTS, XEN),
        guest("guest read-ahead 512 KiB", &format!("{XEN},read_ahead_kb=512")),
    ];
    let all = [guest(BASE, XEN)].into_iter().chain(coalesced).chain(drives);
    all.chain(late).chain(others).collect()
}

/// What of the policy is varied, on the scenario as it is.
const FORMS: [&str; 28] = [
    "zone=500s",
    "zone=8000s",
    "lambda=1.5",
    "lambda=4",
    "window=10ms",
    "window=50ms",
    "slice=100ms",
    "slice=400ms",
    "expire=slice",
    "sync_expire=500ms",
    "sync_expire=1s",
    "merge=false",
    "sweep=head",
    "unmeasured=skip",
    "window_clock=wall",
    "interval_cap=false",
    "interval_mean=false",
    "interval_min=false",
    "think=interarrival",
    "half_rotation=false",
    "position=start",
    "arrival=pr",
    "arrival_seek=pr",
    "region=interval",
    "alone=false",
    "literal=true,half_rotation=true",
    "literal=true,think=think",
    "literal=true,interval_cap=true",
];

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (name, guest, device, kib) in settings() {
        let mut varied = scenario(name.clone(), read_vms(&guest, options));
        varied.files = name != ON_PARTS;
        varied.device = device;
        varied.coalesce = Sectors::from_bytes(kib << 10);
        cells.extend(under(varied.clone(), &POLICIES));
        if name == BASE {
            cells.extend(under(varied, &FORMS.map(|f| format!("pregather:{f}"))));
        }
    }
    cells
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for (name, ..) in settings() {
        let ratios = results.ratio(&name, (OURS, CFQ), bandwidth);
        let literal = mean(&results.ratio(&name, (LITERAL, CFQ), bandwidth));
        let cfq = results.mean(&name, CFQ, bandwidth);
        let waited = results.mean(&name, "pregather", waits);
        let why = format!("literal form {literal:.2} ×; cfq has {cfq:.1} MiB/s; {waited:.0} waits");
        findings.rows.push(Row::measured(format!("{name}: against cfq"), &ratios, "×", why));
    }
    for form in FORMS {
        let policy = format!("pregather:{form}");
        let ratios = results.ratio(BASE, (&policy, "pregather"), bandwidth);
        let worst = results.mean(BASE, &policy, worst_response_s);
        let waited = results.mean(BASE, &policy, waits);
        let why = format!("worst response {worst:.1} s, {waited:.0} waits");
        findings.rows.push(Row::measured(
            format!("{form}: against the default"),
            &ratios,
            "×",
            why,
        ));
    }
    findings.notes.push(
        "Bandwidth as in pregather-read. The first rows vary the load or the disk and set \
         pregather beside cfq there; the others vary the policy and set it beside its default."
            .into(),
    );
    findings
}

const SYNC_POLICIES: [&str; 8] =
    [CFQ, OURS, LITERAL, "anticipatory", "deadline", "noop", "cscan", "sstf"];

/// Readers: a name, what they do, and how many bytes each reads.
const SYNC_READERS: [(&str, &str, u64); 2] = [
    ("sequential", "rw=read,bs=64KiB,size=1GiB", 512 << 20),
    ("random", "rw=randread,bs=4KiB,size=1GiB", 16 << 20),
];

pub(super) fn sync_cells(options: &Options) -> Vec<Cell> {
    let cells = |(name, app, bytes): (&str, &str, u64)| {
        let kib = (bytes / options.shrink) >> 10;
        let vm = |n| format!("name=vm{n},app=sync:{app},io_size={kib}KiB");
        under(on_parts(name, (1..=3).map(vm).collect()), &SYNC_POLICIES)
    };
    SYNC_READERS.into_iter().flat_map(cells).collect()
}

pub(super) fn sync_judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for (name, ..) in SYNC_READERS {
        for policy in &SYNC_POLICIES[1..] {
            let ratios = results.ratio(name, (policy, CFQ), bandwidth);
            let why = sync_cause(policy, &ratios);
            let row = Row::measured(format!("{name}: {policy} against cfq"), &ratios, "×", why);
            // Work-conserving policies cannot know that the next request comes: it is asked of
            // the policy of this paper as we would run it.
            let enough = ratios.iter().all(|&r| r >= 0.95);
            let ours = *policy == OURS;
            findings.rows.push(if ours { row.ask(enough, "0.95 on every seed") } else { row });
        }
    }
    findings
}

fn sync_cause(policy: &str, ratios: &[f64]) -> &'static str {
    match policy {
        LITERAL if mean(ratios) < 0.5 => {
            "mean inter-arrival time, the paper's letter for AvgT, locks itself: service by turns \
             inflates it beyond any seek, no hold is ever set (think=think mends it)"
        }
        OURS | LITERAL | "anticipatory" => "waits for the reader that it serves",
        _ => "never waits for the next request of the reader just served, so it seeks for each",
    }
}
