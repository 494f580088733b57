//! Results that scripts rely on: JSON, CSV, determinism, the report, journals. The keys of all JSON
//! are held to schemas: unit tests make these of the types, `tests/system/test_schemas.py` compares
//! what is printed.

use crate::common::{
    Folder, json, line, number, policies, seekway, seekway_with, timeless_runs, trace,
};
use serde_json::Value;

fn load(folder: &Folder) -> Vec<String> {
    let (a, b) = (folder.file("a.trace", &trace(300)), folder.file("b.trace", &trace(200)));
    ["compare", "--trace", &a, "--trace", &b].map(String::from).into()
}

fn run(load: &[String], more: &[&str]) -> crate::common::Ran {
    let mut args: Vec<&str> = load.iter().map(String::as_str).collect();
    args.extend(more);
    seekway(&args)
}

#[test]
fn compare_runs_every_policy_and_tells_what_it_knows_of_each_vm() {
    let folder = Folder::new();
    let made = json(&run(&load(&folder), &["--format", "json"]).ok());
    assert_eq!(made["device"], "seagate-exos-x24");
    let runs = made["runs"].as_array().expect("a list");
    let names: Vec<&str> = runs.iter().filter_map(|r| r["policy"].as_str()).collect();
    assert_eq!(names, policies());
    for run in runs {
        let worst = run["max_min_share"].as_f64().expect("two VMs with demands");
        assert!((0.0..1.5).contains(&worst), "{worst}");
        assert_eq!(run["requests"], 500);
        let vms = run["vms"].as_array().expect("a list");
        assert_eq!(vms.len(), 2);
        for vm in vms {
            let known = vm["policy_metrics"].as_object().expect("an object");
            let vmcd = run["policy"].as_str().is_some_and(|p| p.starts_with("vmcd"));
            assert!(!vmcd || known.contains_key("queued"), "{known:?}");
            assert!(run["policy"] != "noop" || known.is_empty(), "{known:?}");
        }
    }
}

#[test]
fn compare_keeps_limits_of_vms_and_of_groups() {
    let vm = |name: &str, limits: &str| format!("name={name},{limits},app=sysbench:mode=RR");
    let (a, b, c) = (vm("a", "iops=20"), vm("b", "group=t"), vm("c", "group=t"));
    let vms = ["compare", "--vm", &a, "--vm", &b, "--vm", &c, "--group", "t:iops=10"];
    let more = ["--policies", "noop", "--until", "20s", "--format", "json"];
    let made = json(&seekway(&[&vms[..], &more].concat()).ok());
    let vms = made["runs"][0]["vms"].as_array().expect("a list");
    let done: Vec<u64> = vms.iter().map(|v| v["requests"].as_u64().expect("a count")).collect();
    // N IOPS for 20 s, and the burst of a tenth of a second.
    let about = |n: u64, iops: u64| (iops * 19..=iops * 20 + iops / 10 + 1).contains(&n);
    assert!(about(done[0], 20) && about(done[1] + done[2], 10), "{done:?}");
}

#[test]
fn the_zone_model_counts_windows_and_finds_hot_zones() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(300));
    let zones = |times: &[&str]| {
        json(&seekway(&[&["inspect", &path, "--zones", "--format", "json"], times].concat()).ok())
    };
    let made = zones(&["--at", "0.5s"]);
    let vm = &made["vms"][0];
    assert_eq!(vm["window"], 25, "windows of 20 ms");
    assert!(vm["hot"].as_array().is_some_and(|hot| !hot.is_empty()), "{made:#}");
    let several = zones(&["--at", "0.5s", "--at", "1s"]);
    assert_eq!(several.as_array().map(Vec::len), Some(2));
    seekway(&["inspect", &path, "--at", "0.5s"]).refused(&["--zones"]);
}

/// Reads of 4 KiB, one in 10 ms, by turns in two volumes, of which the second is read in a loop of
/// 1 MiB; each takes 25 ms.
fn two_volumes() -> String {
    let row = |n: u64| {
        let (volume, block) = (n % 2, n / 2);
        let offset = if volume == 0 { block * 4096 } else { block % 256 * 4096 };
        // In FILETIME, units of 100 ns.
        format!("{},host,{volume},Read,{offset},4096,250000\n", 13 * 10_u64.pow(16) + n * 100_000)
    };
    (0..2048).map(row).collect()
}

#[test]
fn inspect_says_what_is_in_a_trace() {
    let folder = Folder::new();
    let path = folder.file("a.csv", &two_volumes());
    let made = json(&seekway(&["inspect", &path, "--format", "json"]).ok());
    let t = &made["traces"][0];
    assert_eq!((&t["format"], &t["requests"]), (&"msr".into(), &2048.into()));
    assert_eq!((number(&t["span_s"]), number(&t["read_share"])), (20.47, 1.0));
    assert_eq!((&t["clock_step_ns"], &t["aligned_bytes"]), (&10_000_000.into(), &4096.into()));
    let reads = &t["reads"];
    assert_eq!((number(&reads["mib"]), number(&reads["p99_kib"])), (8.0, 4.0));
    // 1024 blocks of the first, 256 of the second.
    assert_eq!((number(&reads["touched_mib"]), number(&reads["touched_error"])), (5.0, 0.0));
    // All but the first of each volume and three jumps back in the loop.
    assert_eq!(number(&reads["sequential_share"]), (2048 - 2 - 3) as f64 / 2048.0);
    assert_eq!(number(&reads["busiest"][0]["iops"]), 100.0);
    assert!(reads["busiest"][2]["iops"].is_null(), "the trace is shorter than 60 s");
    assert!(t["writes"]["p50_kib"].is_null());
    // One comes in 10 ms and takes 25: two are there when the third comes.
    let depth = &t["depth"];
    assert_eq!((&depth["p50"], &depth["max"]), (&3.into(), &3.into()));
    assert!((25.0..25.2).contains(&number(&depth["response_p99_ms"])), "{depth}");
    // A cache of 2 MiB has the loop, and as many blocks of the other volume between.
    let curve = t["reuse"]["curve"].as_array().expect("a list");
    assert_eq!(curve.len(), 1);
    assert_eq!(number(&curve[0]["cache_mib"]), 2.0);
    assert_eq!(number(&curve[0]["miss_share"]), (2048 - 3 * 256) as f64 / 2048.0);
    let reads: u64 =
        t["over_time"]["reads"].as_array().expect("a list").iter().filter_map(Value::as_u64).sum();
    assert_eq!(reads, 2048);
}

#[test]
fn inspect_lists_the_busiest_volumes_and_adds_up_the_others() {
    let folder = Folder::new();
    let path = folder.file("a.csv", &two_volumes());
    let piped = |more: &[&str]| {
        let args = ["inspect", "-", "--format", "json"];
        let mut made = json(&seekway_with(two_volumes().as_bytes(), &[&args, more].concat()).ok());
        made["traces"][0].take()
    };
    let all = piped(&[]);
    assert_eq!((&all["volumes"], &all["other_volumes"]), (&2.into(), &Value::Null));
    assert_eq!(all["trace"], "stdin");
    let one = piped(&["--split", "1"]);
    assert_eq!(one["by_volume"][0]["volume"], "host_0");
    assert_eq!(number(&one["by_volume"][0]["touched_mib"]), 4.0);
    assert_eq!(
        (&one["other_volumes"]["requests"], &one["other_volumes"]["volume"]),
        (&1024.into(), &Value::Null)
    );
    // The second trace once more: each table has a column that tells them apart.
    let csv = seekway(&["inspect", &path, &path, "--format", "csv"]).ok();
    assert!(csv.contains("trace,operation,requests,share,moved (MiB)"), "{csv}");
    for format in ["table", "markdown"] {
        let text = seekway(&["inspect", &path, "--format", format]).ok();
        assert!(text.contains("99.8 %") && text.contains("99.6 %"), "{text}");
    }
}

#[test]
fn inspect_pairs_issues_with_completions() {
    let folder = Folder::new();
    // Three by threes: queued at once, issued after 1, 2 and 3 ms, done 10 ms later.
    let mut text = String::new();
    for n in 0..90 {
        let (round, nth) = (n / 3 * 100, n % 3 + 1);
        for (event, ms) in [("Q", round), ("D", round + nth), ("C", round + nth + 10)] {
            let (s, ms) = (ms / 1000, ms % 1000);
            text += &format!("8,16 0 1 {s}.{ms:03}000000 100 {event} R {} + 8 [fio]\n", n * 8);
        }
    }
    let path = folder.file("a.txt", &text);
    let made = json(&seekway(&["inspect", &path, "--format", "json"]).ok());
    let (t, depth) = (&made["traces"][0], &made["traces"][0]["depth"]);
    assert_eq!((&t["requests"], number(&t["span_s"])), (&90.into(), 2.9));
    assert_eq!(
        (&depth["requests"], &depth["p50"], &depth["p99"]),
        (&90.into(), &2.into(), &3.into())
    );
    assert_eq!(number(&depth["mean"]), 90.0 * 0.010 / 2.9);
    assert!((10.0..10.1).contains(&number(&depth["response_p50_ms"])), "{depth}");
    let queued: String =
        text.lines().filter(|l| l.contains(" Q ")).map(|l| format!("{l}\n")).collect();
    let path = folder.file("q.txt", &queued);
    let made = json(&seekway(&["inspect", &path, "--format", "json"]).ok());
    assert!(made["traces"][0]["depth"].is_null());
}

#[test]
fn inspect_doubts_units() {
    let folder = Folder::new();
    let row = |n: u64| format!("{n} 0 {} 4096 1\n", n * n % 977 * 512);
    let path = folder.file("s.trace", &(0..100).map(row).collect::<String>());
    let list = ["inspect", &path, "--columns", "time_s,volume,sector,sectors,is_read"];
    let made = json(&seekway(&[&list[..], &["--format", "json"]].concat()).ok());
    let doubts = made["traces"][0]["warnings"].as_array().expect("a list");
    let text = |part: &str| doubts.iter().any(|d| d.as_str().is_some_and(|d| d.contains(part)));
    assert!(text("multiples of 512 sectors: are they bytes?"), "{doubts:?}");
    assert!(text("all times are multiples of 1s"), "{doubts:?}");
    assert!(seekway(&list).ok().contains("are they bytes?"));
    let long = folder.file("l.csv", "time_us,op,offset,size\n0,read,0,134217728\n5,read,0,4096\n");
    assert!(seekway(&["inspect", &long]).ok().contains("longer than 64 MiB"));
}

#[test]
fn csv_has_a_line_for_each_run_and_vm() {
    let folder = Folder::new();
    let csv = run(&load(&folder), &["--policies", "noop,cfq", "--format", "csv"]).ok();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("policy,vm,seed,requests,iops,mib_s,mean_ms,p50_ms,p99_ms"));
    let starts: Vec<String> =
        lines[1..].iter().map(|l| l.split(',').take(2).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(starts, ["noop,all", "noop,a", "noop,b", "cfq,all", "cfq,a", "cfq,b"]);
    let fields = lines[0].split(',').count();
    assert!(lines.iter().all(|l| l.split(',').count() == fields), "{csv}");
    let stack = ",phi,jain,max_min_share,ended_s,prefetch,cache_mib,limits,shared_cpus,vcpu,";
    let served = |op: &str| {
        let figures = ["iops", "mib_s", "mean_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms"];
        format!("{op}s,{}", figures.map(|name| format!("{op}_{name}")).join(","))
    };
    let last = format!("{stack}{},{}", served("read"), served("write"));
    assert!(lines[0].ends_with(&last), "{}", lines[0]);
    assert!(lines[1].contains(",none,0,none,none,vanilla,166,"), "{csv}");
}

#[test]
fn reads_and_writes_are_told_apart() {
    let folder = Folder::new();
    let page = folder.arg("page.html");
    let one = ["--policies", "noop", "--report", &page];
    let text = run(&load(&folder), &one).ok();
    let headings = ["read p99 (ms)", "write p99 (ms)"];
    assert!(headings.iter().all(|heading| text.matches(heading).count() == 2), "{text}");
    let page = std::fs::read_to_string(folder.path("page.html")).expect("written");
    assert!(page.contains("Reads and writes"));

    let made = json(&run(&load(&folder), &["--policies", "noop", "--format", "json"]).ok());
    let whole = &made["runs"][0];
    // Every third request of the traces, of 300 and of 200, is a read.
    for (of, reads, all) in [(whole, 166, 500), (&whole["vms"][0], 100, 300)] {
        let [read, write] = [&of["reads"], &of["writes"]];
        assert_eq!((&read["requests"], &write["requests"]), (&reads.into(), &(all - reads).into()));
        for key in ["iops", "mib_s"] {
            let sum = number(&read[key]) + number(&write[key]);
            assert!((sum / number(&of[key]) - 1.0).abs() < 1e-9, "{key}: {of:#}");
        }
        let [r, w, both] = [read, write, of].map(|of| number(&of["response_ms"]["max"]));
        assert_eq!(r.max(w), both);
        let means = [read, write].map(|op| number(&op["response_ms"]["mean"]));
        let mean = number(&of["response_ms"]["mean"]);
        assert!(means[0].min(means[1]) < mean && mean < means[0].max(means[1]), "{of:#}");
    }

    let only = ["compare", "--vm", "app=uniform:requests=50", "--policies", "noop"];
    let text = seekway(&only).ok();
    assert!(!headings.iter().any(|heading| text.contains(heading)), "{text}");
    let made = json(&seekway(&[&only[..], &["--format", "json"]].concat()).ok());
    let whole = &made["runs"][0];
    assert!(whole["writes"].is_null() && whole["vms"][0]["writes"].is_null());
    assert_eq!(whole["reads"]["response_ms"], whole["response_ms"]);
}

/// Compares VMs, each given by its description, under noop for a second.
fn noop(vms: &[String], more: &[&str]) -> Value {
    let mut args = vec!["compare", "--policies", "noop", "--device", "linear-15k4"];
    vms.iter().for_each(|vm| args.extend(["--vm", vm]));
    args.extend(["--until", "1s", "--format", "json"]);
    args.extend(more);
    json(&seekway(&args).ok())
}

#[test]
fn equal_vms_share_a_run_alone_and_many_different_ones_have_none() {
    let vm = |n: usize, size: usize| format!("name=v{n},image=16m,app=uniform:size={size}KiB");
    // The image's places on the disk are all in its first eighth.
    let equal: Vec<String> = (0..40).map(|n| vm(n, 4 + 4 * (n % 2))).collect();
    let made = noop(&equal, &[]);
    let run = &made["runs"][0];
    assert!(run["phi"].is_f64() && run["jain"].is_f64() && run["max_min_share"].is_f64());
    let demand = |n: usize| run["vms"][n]["demand_mib_s"].as_f64().expect("a demand");
    assert!((2..40).all(|n| demand(n) == demand(n % 2)));
    assert!(demand(1) > 1.5 * demand(0), "{} and {}", demand(0), demand(1));

    let different: Vec<String> = (0..17).map(|n| vm(n, 4 + 4 * n)).collect();
    let empty = |made: &Value, why: &str| {
        let run = &made["runs"][0];
        assert!(["phi", "jain", "max_min_share"].iter().all(|key| run[key].is_null()), "{run:#}");
        assert!(run["vms"][0]["demand_mib_s"].is_null());
        assert!(made["no_fairness"].as_str().is_some_and(|told| told.contains(why)), "{why}");
    };
    empty(&noop(&different, &[]), "17 different VMs");
    empty(&noop(&equal, &["--alone", "never"]), "--alone never");
    let made = noop(&different, &["--alone", "always"]);
    assert!(made["runs"][0]["phi"].is_f64() && made.get("no_fairness").is_none());
    assert!(noop(&different[1..], &[])["runs"][0]["phi"].is_f64(), "16 are not too many");
}

#[test]
fn places_in_different_eighths_of_a_disk_are_not_equal() {
    let vm = |n: usize| format!("name=v{n},image=1g,app=uniform:size=1MiB,sequential=true");
    let vms = [vm(0), vm(1)];
    let more = ["--device", "seagate-1tb-7200", "--map", "spread"];
    let args = ["compare", "--policies", "noop", "--until", "2s", "--format", "json"];
    let args = [&args[..], &more, &["--vm", &vms[0], "--vm", &vms[1]]].concat();
    let made = json(&seekway(&args).ok());
    let demand = |n: usize| made["runs"][0]["vms"][n]["demand_mib_s"].as_f64().expect("a demand");
    assert!(demand(0) > 1.05 * demand(1), "{} outside, {} inside", demand(0), demand(1));
}

#[test]
fn a_load_without_a_count_lasts_as_long_as_the_run_and_one_with_is_marked() {
    let vms = ["name=a,app=uniform:requests=20".into(), "name=b,app=uniform".to_string()];
    let run = &noop(&vms, &[])["runs"][0];
    assert_eq!((&run["finished"], &run["simulated_s"]), (&false.into(), &1.0.into()));
    let (a, b) = (&run["vms"][0], &run["vms"][1]);
    assert_eq!((&a["requests"], &b["ended_s"]), (&20.into(), &Value::Null));
    let ended = a["ended_s"].as_f64().expect("it ended early");
    assert!((0.0..0.9).contains(&ended), "{ended}");
    // Alone it is marked as well: the run was to last a second.
    assert!(noop(&vms[..1], &[])["runs"][0]["vms"][0]["ended_s"].is_f64());

    let end = ["--policies", "noop", "--device", "linear-15k4"];
    let shown = seekway(&[&["compare", "--until", "1s", "--vm", &vms[0]][..], &end].concat()).ok();
    assert!(shown.contains("ended (s)") && shown.contains("before the run was"), "{shown}");
    let until_minute = seekway(&[&["compare", "--vm", &vms[1]][..], &end].concat());
    assert!(until_minute.err.contains("does not end by itself"), "{}", until_minute.err);
    assert!(!until_minute.ok().contains("ended (s)"));
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let load =
        ["--vm", "app=sysbench:mode=RW,requests=300", "--vm", "app=sysbench:mode=RR,requests=300"];
    let once = |seed: &str, jobs: &str| {
        let end = ["--seed", seed, "--jobs", jobs, "--format", "json"];
        seekway(&[&["compare"][..], &load, &end].concat()).ok()
    };
    let (first, second) = (once("7", "1"), once("7", "3"));
    let bytes = |text: &str| {
        let lines = text.lines().filter(|l| !l.contains("\"wall_s\""));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(bytes(&first), bytes(&second));
    assert_ne!(timeless_runs(&first), timeless_runs(&once("8", "1")), "the seed matters");
    let table = |()| seekway(&[&["compare"][..], &load].concat()).ok();
    assert_eq!(table(()), table(()));
}

#[test]
fn several_seeds_are_several_runs() {
    let vm = "app=sysbench:mode=RR,requests=200";
    let args =
        ["compare", "--vm", vm, "--policies", "noop,cfq", "--seeds", "3", "--format", "json"];
    let made = json(&seekway(&args).ok());
    let runs = made["runs"].as_array().expect("a list");
    let seeds: Vec<u64> = runs.iter().filter_map(|r| r["seed"].as_u64()).collect();
    assert_eq!(seeds, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn the_report_needs_no_network() {
    let folder = Folder::new();
    let (load, report) = (load(&folder), folder.arg("out.html"));
    run(&load, &["--policies", "noop,pregather", "--report", &report]).ok();
    let html = std::fs::read_to_string(&report).expect("written");
    assert!(
        html.contains("class=\"plot\"") && html.contains("pregather") && html.contains("</html>")
    );
    // Nothing is loaded: no address in any attribute or style that fetches.
    for load in ["src=", "<link", "@import", "url(", "href=\"http", "<iframe"] {
        assert!(!html.contains(load), "the page has {load}");
    }
    let left = folder.names();
    assert_eq!(left, ["a.trace", "b.trace", "out.html"], "no temporary file stays");
    let inspected = folder.arg("model.html");
    let trace = folder.arg("a.trace");
    for (zones, kind) in [(&["--zones"][..], "map"), (&[], "lines")] {
        seekway(&[&["inspect", &trace, "--report", &inspected], zones].concat()).ok();
        let html = std::fs::read_to_string(&inspected).expect("written");
        assert!(html.contains(&format!("\"kind\":\"{kind}\"")), "{zones:?}");
    }
}

#[test]
fn journals_replay_for_every_policy() {
    let folder = Folder::new();
    let (load, dir) = (load(&folder), folder.arg("journals"));
    run(&load, &["--journal", &dir]).ok();
    for policy in policies() {
        let path = format!("{dir}/{policy}.1.journal");
        let said = seekway(&["replay", &path]).ok();
        assert!(said.contains("all the same"), "{policy}: {said}");
    }
    // From a pipe, and with a decision changed.
    let path = format!("{dir}/cfq.1.journal");
    let text = std::fs::read_to_string(&path).expect("written");
    seekway_with(text.as_bytes(), &["replay", "-"]).ok();
    let dispatch = text.lines().find(|l| l.contains(" issue ")).expect("something was served");
    let slot: Vec<&str> = dispatch.split(' ').collect();
    let other = dispatch.replacen(&format!(" issue {} ", slot[2]), " issue 999 ", 1);
    let tampered = folder.file("tampered.journal", &text.replacen(dispatch, &other, 1));
    let ran = seekway(&["replay", &tampered]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("tampered.journal") && ran.out.contains("999"), "{}", ran.out);
    // Torn, or something else altogether.
    let line = text.lines().nth(3).expect("lines");
    let torn = text.replacen(line, &line[..line.len() / 2], 1);
    let torn = folder.file("torn.journal", &torn);
    assert!(matches!(seekway(&["replay", &torn]).code, Some(1 | 2)));
    // Cut off in the middle of its last line, as on a full disk.
    let cut = folder.file("cut.journal", &text[..text.len() - 3]);
    assert!(seekway(&["replay", &cut]).ok().contains("; the last line is cut off"));
    let prose = folder.file("prose.journal", "Once upon a time\n");
    seekway(&["replay", &prose]).refused(&["prose.journal"]);
    let empty = folder.file("empty.journal", "");
    seekway(&["replay", &empty]).refused(&["empty"]);
}

/// Two VMs that read at random all the time, on a disk whose queue is short.
const TWINS: &str = "compare --vm name=a,image=1g,app=uniform:requests=1000 \
    --vm name=b,image=1g,app=uniform:requests=1000 --policies noop";

fn progress(run: &Value) -> Vec<f64> {
    let vms = run["vms"].as_array().expect("VMs").iter();
    vms.map(|vm| vm["private"]["progress"].as_f64().expect("a number")).collect()
}

#[test]
fn equal_vms_that_share_a_disk_evenly_have_what_private_disks_give_them() {
    let args = |more: &[&str]| seekway(&line(TWINS, more));
    let made = json(&args(&["--fair-to", "private", "--format", "json"]).ok());
    let run = &made["runs"][0];
    let (each, all) = (progress(run), &run["private"]);
    assert!(each.iter().all(|x| (0.9..1.1).contains(x)), "{each:?}");
    assert_eq!(run["vms"][0]["private"]["slow"], 2);
    let least = all["least_progress"].as_f64().expect("a number");
    let (mean, vm) = (all["mean_progress"].as_f64().expect("a number"), &all["least_progress_vm"]);
    assert_eq!(least, each[0].min(each[1]));
    assert_eq!(*vm, if each[0] <= each[1] { "a" } else { "b" });
    assert!((mean - (each[0] * each[1]).sqrt()).abs() < 1e-9);

    let csv = args(&["--fair-to", "private", "--format", "csv"]).ok();
    let mut lines = csv.lines();
    let heads: Vec<&str> = lines.next().expect("a line").split(',').collect();
    let at = |name| heads.iter().position(|head| *head == name).expect("a column");
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][at("least_progress_vm")], vm.as_str().expect("a name"));
    let told: f64 = rows[1][at("progress")].parse().expect("a number");
    assert!((told - each[0]).abs() < 0.01 * each[0], "{told} and {}", each[0]);

    let folder = Folder::new();
    let page = folder.path("page.html").display().to_string();
    let table = args(&["--fair-to", "private", "--report", &page]).ok();
    assert!(table.contains("least progress") && table.contains("p99 over private"), "{table}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("a private disk") && page.contains(r#"class="bars"#));

    let plain = json(&args(&["--format", "json"]).ok());
    assert!(plain["runs"][0].get("private").is_none());
    assert!(plain["runs"][0]["vms"][0].get("private").is_none());
}

#[test]
fn private_disks_are_slower_by_weight_and_have_a_part_of_cache_and_processors() {
    let third = ["--vm", "name=c,image=1g,app=uniform:requests=1000"];
    let weights = ["--weights", "1,1,2", "--fair-to", "private", "--format", "json"];
    let made = json(&seekway(&line(TWINS, &[&third[..], &weights].concat())).ok());
    let vms = made["runs"][0]["vms"].as_array().expect("VMs");
    let slow: Vec<u64> = vms.iter().map(|vm| vm["private"]["slow"].as_u64().unwrap()).collect();
    assert_eq!(slow, [4, 4, 2]);

    // Files that fit into the host's cache, and not into half of it.
    let vm = |name: &str| format!("name={name},ram=64MiB,vcpus=1,app=webserver:threads=2");
    let vms = [vm("a"), vm("b")];
    let load = ["compare", "--vm", &vms[0], "--vm", &vms[1], "--device", "intel-x25m-g2"];
    let stack = ["--policies", "noop", "--prefetch", "none", "--cache", "64MiB", "--until", "1s"];
    let private = |host: &str| {
        let more = ["--host", host, "--fair-to", "private", "--format", "json"];
        let made = json(&seekway(&[&load[..], &stack, &more].concat()).ok());
        assert!(progress(&made["runs"][0]).iter().all(|x| *x > 0.0));
        made["runs"][0]["vms"][0]["private"]["mib_s"].as_f64().expect("a number")
    };
    // Half of one processor is less than half of two.
    assert!(private("cpus=1,slice=20ms") < private("none"));
}

/// A clock so slow that the disk keeps up.
const PACED: &[&str] =
    &["--time-scale", "100", "--device", "intel-x25m-g2", "--fair-to", "private"];

#[test]
fn a_trace_in_open_loop_has_its_private_disk_where_it_gets_what_it_offers() {
    let folder = Folder::new();
    let made = json(&run(&load(&folder), &[PACED, &["--format", "json"]].concat()).ok());
    let mut reached = 0;
    for run in made["runs"].as_array().expect("a list") {
        for vm in run["vms"].as_array().expect("VMs") {
            if number(&vm["mib_s"]) >= 0.98 * number(&vm["demand_mib_s"]) {
                reached += 1;
                assert!(number(&vm["private"]["progress"]) >= 1.0, "{vm:#}");
            }
        }
    }
    assert!(reached > 0, "{made:#}");
}

#[test]
fn who_can_have_no_private_disk_is_told_why() {
    let refused = |args: &[&str], why: &str| {
        let ran = seekway(&[args, &["--fair-to", "private"]].concat());
        assert!(ran.code != Some(0) && ran.err.contains(why), "{:?} {}", ran.code, ran.err);
    };
    refused(&line(TWINS, &[])[..3], "give at least two");
    refused(&line(TWINS, &["--alone", "never"]), "drop one");
    refused(&line(TWINS, &["--weights", "2,3"]), "weights that divide their sum");
    let vm = |n: usize| format!("name=v{n},image=16m,app=uniform:size={}KiB,requests=1", 4 + 4 * n);
    let vms: Vec<String> = (0..17).map(vm).collect();
    let mut many = vec!["compare", "--policies", "noop"];
    vms.iter().for_each(|vm| many.extend(["--vm", vm]));
    refused(&many, "--alone always");
}

/// Eight equal VMs: the nearest request first serves those at one place.
#[test]
fn a_vm_without_an_answer_has_no_times_and_its_policy_is_not_praised() {
    let folder = Folder::new();
    let page = folder.arg("page.html");
    let load = "image=1g,app=fio:rw=randread,bs=4KiB,size=256MiB,io_size=1TiB,direct=1";
    let vms: Vec<String> = (1..=8).map(|n| format!("name=vm{n},{load}")).collect();
    let mut args = vec!["compare", "--policies", "sstf,fairway", "--until", "5s"];
    vms.iter().for_each(|vm| args.extend(["--vm", vm]));
    args.extend(["--alone", "never", "--report", &page]);
    let table = seekway(&args).ok();
    let row = table.lines().find(|line| line.starts_with("vm8  sstf")).expect("a row");
    assert_eq!(row.matches('–').count(), 4, "response, p50, p99, p99.9: {row}");
    let html = std::fs::read_to_string(&page).expect("written");
    assert!(html.contains("more under sstf") && !html.contains("best of 2 policies: sstf"));
}

#[test]
fn bandwidth_over_time_begins_where_it_is_measured() {
    let folder = Folder::new();
    let load = "[[vm]]\nload = [{ app = \"uniform\", outstanding = 1, requests = 100000 }]\n";
    let text =
        format!("policy = \"noop\"\nmeasure = {{ settle = \"2s\", until = \"4s\" }}\n{load}");
    let (file, page) = (folder.file("s.toml", &text), folder.arg("page.html"));
    seekway(&["compare", &file, "--report", &page]).ok();
    let html = std::fs::read_to_string(&page).expect("written");
    let figures = html.split("<script type=\"application/json\">").skip(1);
    let figures = figures.map(|rest| rest.split("</script>").next().expect("its end"));
    let lines: Vec<Value> = figures
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .filter(|figure: &Value| figure["y"]["label"] == "bandwidth")
        .collect();
    let times_s = lines[0]["panels"][0][0]["x"].as_array().expect("times");
    let [first, last] = [0, times_s.len() - 1].map(|n| number(&times_s[n]));
    assert!(first > 2.0 && first < 2.2 && last > 3.8 && last < 4.0, "{first} to {last}");
}
