//! `--prefetch` and `--cache` of `compare`.

use crate::common::{Folder, line, listed, seekway, timeless_runs};
use serde_json::Value;

/// Two guests that read in order, one beside random reads, on a drive with room.
const LOAD: &str = "compare --vm name=web,app=sysbench:mode=SR \
    --vm name=db,app=sysbench:mode=RR,requests=100000 --device samsung-970-pro --until 1200ms";

/// Names of all prefetchers, as `seekway list prefetchers` prints them.
fn prefetchers() -> Vec<String> {
    listed("prefetchers").into_iter().map(|(name, _)| name).collect()
}

fn run(more: &[&str]) -> crate::common::Ran {
    seekway(&line(LOAD, more))
}

fn runs(more: &[&str]) -> Vec<Value> {
    timeless_runs(&run(&[more, &["--format", "json"]].concat()).ok())
}

#[test]
fn every_policy_runs_with_every_prefetcher() {
    let more = ["--policies", "noop,cfq", "--prefetch", "all", "--cache", "64MiB"];
    let made = runs(&more);
    let pairs: Vec<(&str, &str)> = made
        .iter()
        .map(|r| (r["policy"].as_str().unwrap(), r["prefetch"].as_str().unwrap()))
        .collect();
    let want = |policy| prefetchers().into_iter().map(move |p| (policy, p));
    let want: Vec<(&str, String)> = want("noop").chain(want("cfq")).collect();
    assert_eq!(pairs, want.iter().map(|(a, b)| (*a, b.as_str())).collect::<Vec<_>>());
    for run in &made {
        let host = &run["host"];
        assert_eq!(host["cache_mib"], 64.0);
        assert!(host["device_mib_s"].as_f64() > Some(500.0), "{host:#}");
        for key in ["hit_share", "late_share", "accuracy", "cost", "wasted_mib", "dropped_mib"] {
            assert!(host[key].as_f64() >= Some(0.0), "no {key}: {host:#}");
        }
        let (web, db) = (&run["vms"][0]["cache"], &run["vms"][1]["cache"]);
        for vm in [web, db] {
            assert!(vm["streams"].is_array() && vm["resident_mib"].as_f64() > Some(0.0), "{vm:#}");
            assert_eq!(vm["processes"][0]["reads"], vm["reads"], "one process, untagged");
        }
        let reads = |v: &Value| v["reads"].as_u64().expect("a count");
        assert_eq!(reads(host), reads(web) + reads(db));
        let ahead = host["prefetched_mib"].as_f64() > Some(0.0);
        assert_eq!(ahead, run["prefetch"] != "none", "{host:#}");
        // The reader has left a region. flashy still prefetches there, and fills all the room.
        if run["prefetch"] != "flashy" {
            assert_eq!(ahead, host["background_commands"].as_u64() > Some(0), "{host:#}");
            assert_eq!(ahead, web["accuracy"].as_f64() > Some(0.0), "{web:#}");
        }
    }
    assert_eq!(made, runs(&more), "the same again");
}

#[test]
fn without_the_flags_there_is_no_cache_and_the_output_says_so() {
    let ran = run(&["--policies", "noop"]);
    assert!(ran.err.is_empty() && !ran.out.contains("Prefetching"), "{}{}", ran.out, ran.err);
    assert_eq!(
        ran.out.matches("in all runs: cache none, prefetch none,").count(),
        1,
        "{}",
        ran.out
    );
    let made = &runs(&["--policies", "noop"])[0];
    assert_eq!((&made["cache_mib"], &made["prefetch"]), (&Value::Null, &Value::Null));
    for (of, key) in [(made, "host"), (&made["vms"][0], "cache")] {
        assert!(of.as_object().is_some_and(|o| !o.contains_key(key)), "{key} in {of:#}");
    }
    let csv = run(&["--policies", "noop", "--format", "csv"]).ok();
    assert!(!csv.contains("hit_share") && csv.contains(",none,"), "{csv}");
}

#[test]
fn one_flag_says_what_the_other_is() {
    let ran = run(&["--policies", "noop", "--prefetch", "none"]);
    assert!(ran.err.contains("1GiB"), "{}", ran.err);
    assert!(ran.ok().contains("Prefetching into a host cache of 1024 MiB"));
    let made = runs(&["--policies", "noop", "--cache", "1MiB"]);
    assert_eq!(
        (&made[0]["prefetch"], &made[0]["host"]["cache_mib"]),
        (&"none".into(), &1.0.into())
    );
    assert_eq!(run(&["--policies", "noop", "--cache", "1MiB"]).err, "");
}

#[test]
fn tables_csv_and_report_name_the_pair() {
    let folder = Folder::new();
    let report = folder.arg("report.html");
    let both = ["--policies", "noop", "--cache", "64MiB", "--prefetch", "none", "--prefetch"];
    let both = [&both[..], &["vio:interval=continuous"]].concat();
    let text = run(&[&both[..], &["--report", &report]].concat()).ok();
    for part in [
        "Prefetching into a host cache of 64 MiB",
        "prefetch none ",
        "prefetch vio:interval=continuous ",
        "The same in all runs: policy noop, cache 64MiB, no limits,",
        "judged against what each VM gets alone on the disk itself",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let page = std::fs::read_to_string(&report).expect("a page");
    assert!(page.contains("Prefetching for each process"), "by process in the report");
    let csv = run(&[&both[..], &["--format", "csv"]].concat()).ok();
    let columns = csv.lines().next().map(|l| l.split(',').count());
    assert!(csv.lines().all(|l| Some(l.split(',').count()) == columns), "{csv}");
    assert!(csv.contains(",vio:interval=continuous,"), "{csv}");
}

#[test]
fn journals_with_prefetches_replay() {
    let folder = Folder::new();
    let dir = folder.arg("journals");
    let cache = ["--policies", "cfq", "--prefetch", "vio", "--cache", "64MiB"];
    run(&[&cache[..], &["--journal", &dir]].concat()).ok();
    let path = format!("{dir}/cfq+vio.1.journal");
    let text = std::fs::read_to_string(&path).expect("written");
    // A read that is answered at once, of a load that reads nothing twice.
    let lines: Vec<&str> = text.lines().collect();
    let hit = |two: &[&str]| two[0].contains(" submit ") && two[1].contains(" copy ");
    assert!(lines.windows(2).any(hit), "nothing was prefetched");
    assert!(seekway(&["replay", &path]).ok().contains("all the same"));
}

#[test]
fn wrong_flags_are_refused() {
    for (more, part) in [
        (&["--prefetch", "amp"][..], "--prefetch: no prefetcher 'amp'; there are none"),
        (&["--prefetch", "none:depth=3"], "--prefetch"),
        (&["--prefetch", ","], "name at least one"),
        (&["--cache", "many"], "--cache many: expected"),
        (&["--cache", "512"], "at least one block of 4KiB"),
        (&["--cache", "2TiB"], "at most 1TiB"),
        (&["--cache", "1MiB,1024KiB"], "--cache: 1048576 bytes is given twice"),
        (&["--cache", "none,none"], "--cache: none is given twice"),
        (&["--cache", "1MiB,,2MiB"], "--cache : expected"),
        (&["--cache", "none", "--prefetch", "vio"], "--prefetch vio: it needs a cache"),
    ] {
        run(more).refused(&[part]);
    }
}
