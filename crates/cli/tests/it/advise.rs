//! `seekway advise`: an overloaded disk is said first, and each goal has its ranking.

use crate::common::{Folder, fixture, json, number, policies, seekway, seekway_with, trace};
use serde_json::Value;
use std::fmt::Write as _;

const GOALS: [&str; 4] = ["latency", "throughput", "fairness", "balance"];
const FIRST: &str = "This disk cannot carry this load: under ";

/// Random reads of 4 KiB every `gap_us` in MQSim's format, all over `sectors` sectors.
fn random_reads(requests: u64, gap_us: u64, sectors: u64) -> String {
    let mut text = String::new();
    for n in 0..requests {
        let (time_ns, place) = (n * gap_us * 1000, n * n * 7_919 % (sectors / 8) * 8);
        let _ = writeln!(text, "{time_ns} 0 {place} 8 1");
    }
    text
}

/// A thousand a second: some eight times what a disk with a head does.
fn flood() -> String {
    random_reads(2_000, 1_000, 80_000_000)
}

fn advise(args: &[&str]) -> crate::common::Ran {
    seekway(&[&["advise"], args].concat())
}

fn advised(args: &[&str]) -> Value {
    json(&advise(&[args, &["--format", "json"]].concat()).ok())
}

#[test]
fn a_disk_that_cannot_carry_the_load_is_said_first_with_one_that_can() {
    let folder = Folder::new();
    let path = folder.file("flood.trace", &flood());
    let text = advise(&[&path]).ok();
    let first = text.lines().next().unwrap_or_default();
    assert!(
        first.starts_with(FIRST) && first.contains("flood's requests take at most 1 s"),
        "{text}"
    );
    let carries = text.lines().nth(1).unwrap_or_default();
    assert!(carries.starts_with("It carries about ") && carries.contains("of the rate"), "{text}");
    for (disk, verdict) in [("samsung-970-pro ", "yes"), ("cheetah-9lp ", "too small")] {
        let is_row = |line: &&str| line.starts_with(disk) && line.contains(verdict);
        assert!(text.lines().any(|line| is_row(&line)), "{disk}: {text}");
    }
    assert!(text.contains("No policy mends that."), "{text}");
    let csv = advise(&[&path, "--format", "csv"]);
    assert!(csv.err.contains(FIRST) && csv.out.starts_with("policy,"), "{}", csv.err);
}

#[test]
fn json_has_the_facts_of_an_overload() {
    let folder = Folder::new();
    let path = folder.file("flood.trace", &flood());
    let made = advised(&[&path]);
    assert_eq!(made["carried"], false);
    assert!(made["advice"].as_str().is_some_and(|text| text.starts_with(FIRST)), "{made:#}");
    let overload = &made["overload"];
    assert!(number(&overload["best"]["p99_ms"]) > number(&overload["p99_limit_ms"]));
    assert!(number(&overload["best"]["within_limit"]) < 0.99);
    assert_eq!(overload["best"]["queue_full"], false);
    assert!(number(&overload["at_share"]["p99_ms"]) <= 1000.0);
    // What it carries at that rate, it carries when it is asked for no more.
    let share = number(&overload["share"]);
    assert!((0.02..0.6).contains(&share), "{share}");
    let slower = (1.0 / share).to_string();
    assert_eq!(advised(&[&path, "--time-scale", &slower])["carried"], true);

    let disks = overload["disks"].as_array().expect("a list");
    let carrying: Vec<&Value> = disks.iter().filter(|disk| disk["carries"] == true).collect();
    let p99: Vec<f64> = carrying.iter().map(|disk| number(&disk["service"]["p99_ms"])).collect();
    assert!(p99.len() > 2 && p99.is_sorted_by(|a, b| a >= b), "slowest first: {p99:?}");
    assert!(p99[0] <= 1000.0, "{p99:?}");
    let name = carrying[0]["disk"].as_str().expect("a name");
    let there = advised(&[&path, "--device", name]);
    assert_eq!((&there["carried"], &there["overload"]), (&Value::Bool(true), &Value::Null));
    let too_small = disks.iter().filter(|disk| disk["service"].is_null());
    assert!(too_small.clone().count() == 2 && too_small.clone().all(|d| d["carries"] == false));
    assert!(!disks.iter().any(|disk| disk["disk"] == "seagate-1tb-7200"), "the disk itself");
}

#[test]
fn a_load_that_the_disk_carries_is_not_called_too_much() {
    for name in ["msr.csv", "blkreplay.load"] {
        let text = advise(&[&fixture(name)]).ok();
        assert!(!text.contains("cannot carry") && text.contains("Use "), "{name}: {text}");
    }
    let folder = Folder::new();
    let path = folder.file("light.trace", &trace(200));
    let made = advised(&[&path, "--time-scale", "10"]);
    assert_eq!((&made["carried"], &made["overload"]), (&Value::Bool(true), &Value::Null));
    // The same load is too much for who asks for more.
    let strict = advised(&[&path, "--time-scale", "10", "--p99-limit", "1ms"]);
    assert_eq!(strict["carried"], false);
}

#[test]
fn a_load_without_a_clock_asks_for_no_more_than_the_disk_gives() {
    let folder = Folder::new();
    let path = folder.file("flood.trace", &flood());
    let made = advised(&[&path, "--outstanding", "4"]);
    assert_eq!((&made["carried"], &made["overload"]), (&Value::Null, &Value::Null));
}

#[test]
fn each_goal_ranks_by_its_figure() {
    let folder = Folder::new();
    let quiet = folder.file("quiet.trace", &random_reads(150, 20_000, 8_000_000));
    let busy = folder.file("busy.trace", &random_reads(400, 6_000, 40_000_000));
    for (goal, key) in
        GOALS.into_iter().zip(["worst_vm_p99_over_alone", "mib_s", "worst_vm_speed", "regret"])
    {
        let made = advised(&[&quiet, &busy, "--for", goal]);
        assert_eq!(made["goal"], goal);
        let ranking = made["ranking"].as_array().expect("a list");
        let mut names: Vec<&str> = ranking.iter().filter_map(|r| r["policy"].as_str()).collect();
        assert_eq!(made["recommend"], names[0]);
        names.sort_unstable();
        let mut all = policies();
        all.sort_unstable();
        assert_eq!(names, all);
        let values: Vec<f64> = ranking.iter().map(|r| number(&r["value"])).collect();
        assert!(ranking.iter().all(|r| r["value"] == r[key]), "{ranking:#?}");
        let larger_is_better = matches!(goal, "throughput" | "fairness");
        let best = |a: f64, b: f64| if larger_is_better { a.max(b) } else { a.min(b) };
        let first = values.iter().copied().reduce(best).expect("policies");
        let near = if goal == "balance" { 0.02 } else { 0.02 * first };
        assert!((values[0] - first).abs() <= near + 1e-9, "{goal}: {values:?}");
        for r in ranking {
            assert!((0.0..=1.0).contains(&number(&r["worst_vm_speed"])), "{r:#}");
            assert!((0.0..=1.0).contains(&number(&r["regret"])), "{r:#}");
            assert!(number(&r["worst_vm_p99_ms"]) > 0.0 && number(&r["mean_ms"]) > 0.0, "{r:#}");
            assert!(["quiet", "busy"].contains(&r["worst_vm"].as_str().expect("a name")));
        }
    }
    let text = advise(&[&quiet, &busy]).ok();
    assert!(text.contains("best first") && text.contains("worst VM") && text.contains("regret"));
    assert!(text.contains("for balance: mean response"), "{text}");
}

#[test]
fn policies_that_are_equal_leave_the_first_place_to_fairway() {
    let folder = Folder::new();
    let path = folder.file("light.trace", &random_reads(50, 100_000, 8_000_000));
    for goal in GOALS {
        let made = advised(&[&path, "--for", goal, "--device", "samsung-970-pro"]);
        assert_eq!(made["recommend"], "fairway", "{goal}");
    }
}

#[test]
fn one_vm_has_no_neighbour_to_lose_by() {
    let folder = Folder::new();
    let text = advise(&[&folder.file("a.trace", &trace(300))]).ok();
    assert!(!text.contains("worst VM") && !text.contains("Who loses"), "{text}");
    let piped = seekway_with(trace(300).as_bytes(), &["advise", "-"]).ok();
    assert!(piped.contains("Use "), "{piped}");
    // An overload is looked into at other rates, though a pipe is read only once.
    let piped = seekway_with(flood().as_bytes(), &["advise", "-"]).ok();
    assert!(piped.starts_with(FIRST), "{piped}");
}

#[test]
fn vms_of_one_trace_are_held_against_the_best_policy() {
    let made = advised(&[&fixture("tencent.csv"), "--split", "--device", "samsung-970-pro"]);
    assert!(made["runs"][0]["vms"].as_array().is_some_and(|vms| vms.len() > 1), "{made:#}");
    let ranking = made["ranking"].as_array().expect("a list");
    assert!(ranking.iter().all(|r| number(&r["worst_vm_p99_over_alone"]) >= 1.0), "{ranking:#?}");
}

#[test]
fn a_trace_with_one_request_or_none_divides_by_nothing() {
    let folder = Folder::new();
    let one = folder.file("one.trace", &trace(1));
    let other = folder.file("other.trace", "0 0 0 8 1\n");
    for goal in GOALS {
        let made = advised(&[&one, &other, "--for", goal]);
        assert_eq!(made["carried"], true, "{goal}");
        let text = made.to_string();
        assert!(!text.contains("NaN"), "{text}");
        for judged in made["ranking"].as_array().expect("a list") {
            assert!(judged["value"].is_f64() && judged["regret"].is_f64(), "{judged:#}");
        }
        let single = advise(&[&one, "--for", goal]).ok();
        assert!(single.contains("Use ") && !single.contains("NaN"), "{single}");
    }
    // Even that is too much for a limit that no disk keeps.
    let strict = advise(&[&one, "--p99-limit", "1us"]).ok();
    assert!(strict.contains("It does not carry even 1 % of the rate."), "{strict}");
    let empty = folder.file("empty.trace", "");
    advise(&[&empty]).refused(&["empty.trace"]);
}

#[test]
fn a_wrong_goal_is_refused_with_those_there_are() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(10));
    let all = "[possible values: latency, throughput, fairness, balance]";
    advise(&[&path, "--for", "speed"]).refused(&["--for", all]);
    // As they were called before.
    advise(&[&path, "--for", "tail"]).refused(&["--for", all]);
    advise(&[&path, "--goal", "tail"])
        .refused(&["--goal", "it is now --for latency, throughput, fairness or balance"]);
    advise(&[&path, "--p99-limit", "0s"]).refused(&["--p99-limit 0s: more than 0"]);
    advise(&[&path, "--p99-limit", "10"]).refused(&["--p99-limit 10: expected a time"]);
}

/// Reads of 4 KiB that come again and again to the same 4 MiB, every `gap_us`.
fn repeated_reads(requests: u64, gap_us: u64) -> String {
    random_reads(requests, gap_us, 8192)
}

#[test]
fn a_cache_that_helps_is_recommended_with_its_part_of_the_gain() {
    let folder = Folder::new();
    let hot = folder.file("hot.trace", &repeated_reads(3_000, 4_000));
    let cold = folder.file("cold.trace", &random_reads(600, 20_000, 80_000_000));
    let args = [&hot, &cold, "--cache", "16MiB", "--prefetch", "vio", "--for", "latency"];
    let made = advised(&args);
    let ranking = made["ranking"].as_array().expect("a list");
    // Each policy without a cache, with it, and with its prefetcher.
    assert_eq!(ranking.len(), 3 * policies().len());
    assert_eq!(ranking[0]["cache_mib"], 16.0, "{:#}", ranking[0]);
    assert_eq!(made["recommend"], ranking[0]["policy"]);
    let value = |policy: &Value, mib: Value, prefetch: Value| {
        let found = ranking
            .iter()
            .find(|r| r["policy"] == *policy && r["cache_mib"] == mib && r["prefetch"] == prefetch);
        number(&found.unwrap_or_else(|| panic!("no {policy} {mib} {prefetch}"))["value"])
    };
    let (gain, best) = (&made["cache_gain"], &ranking[0]["policy"]);
    let none = || (Value::Null, Value::Null);
    assert_eq!(number(&gain["cfq"]), value(&"cfq".into(), none().0, none().1));
    assert_eq!(number(&gain["policy"]), value(best, none().0, none().1));
    assert_eq!(number(&gain["cache"]), value(best, 16.0.into(), "none".into()));
    assert_eq!(number(&gain["prefetch"]), number(&ranking[0]["value"]));
    let share = (number(&gain["policy"]) - number(&gain["prefetch"]))
        / (number(&gain["cfq"]) - number(&gain["prefetch"]));
    assert!((number(&gain["cache_share"]) - share).abs() < 1e-9 && share > 0.0, "{gain:#}");
    let text = advise(&args).ok();
    for part in ["Stacks on ", " + cache 16MiB", "% is the cache's", "cfq without a cache "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn a_cache_that_does_not_help_is_not_recommended() {
    let folder = Folder::new();
    // Nothing is read twice.
    let path = folder.file("cold.trace", &random_reads(200, 50_000, 80_000_000));
    let args = [&path, "--cache", "1MiB", "--for", "latency"];
    let made = advised(&args);
    assert_eq!(made["ranking"].as_array().map(Vec::len), Some(2 * policies().len()));
    assert_eq!(
        (&made["ranking"][0]["cache_mib"], &made["cache_gain"]),
        (&Value::Null, &Value::Null)
    );
    let text = advise(&args).ok();
    assert!(text.contains("A cache does not help.") || text.contains("All stacks lie"), "{text}");
    let bare = advise(&[&path]).ok();
    assert!(!bare.contains("A cache") && bare.contains("Policies on "), "{bare}");
    assert!(bare.contains("The same in all runs: cache none, prefetch none, no limits,"), "{bare}");
}

/// A thousand reads a second of 64 places all over the disk, each read once before, in peace.
/// The drive's own cache has half as many segments.
fn hot_places() -> String {
    let mut text = String::new();
    for n in 0..4_064u64 {
        let time_us = if n < 64 { n * 20_000 } else { 1_280_000 + (n - 64) * 1_000 };
        let _ = writeln!(text, "{} 0 {} 8 1", time_us * 1000, n * 13 % 64 * 20_000_000);
    }
    text
}

#[test]
fn a_load_that_only_a_cache_carries_is_said_to_need_it() {
    let folder = Folder::new();
    let path = folder.file("hot.trace", &hot_places());
    let args = [&path, "--p99-limit", "50ms"];
    let carried = |more: &[&str]| {
        let made = advised(&[&args[..], more].concat());
        [&made["carried"], &made["carried_without_cache"]].map(|c| c.as_bool().expect("a verdict"))
    };
    assert_eq!(carried(&[]), [false, false]);
    assert_eq!(carried(&["--cache", "16MiB"]), [true, false]);
    let text = advise(&[&args[..], &["--cache", "16MiB"]].concat()).ok();
    assert!(text.contains("Without a cache this disk cannot carry this load. Use "), "{text}");
}

/// The two traces of servers for which the fastest policy was no answer.
#[test]
fn two_servers_on_one_disk_are_too_much() {
    let traces = ["traces/vm/cloudPhysicsIO.vscsi", "traces/host/linux-mysql.load.gz"];
    let [Some(vm), Some(mysql)] = traces.map(seekway_testing::shared) else { return };
    let [vm, mysql] = [vm, mysql].map(|path| path.display().to_string());
    // Its beginning has the burst.
    let made = advised(&[&vm, &mysql, "--max-requests", "40000"]);
    assert_eq!(made["carried"], false);
    assert_eq!(made["overload"]["best"]["vm"], "cloudPhysicsIO");
    let disks = made["overload"]["disks"].as_array().expect("a list");
    let intel = disks.iter().find(|disk| disk["disk"] == "intel-320").expect("it fits");
    assert_eq!(intel["carries"], true, "{intel:#}");
    let there = advised(&[&vm, &mysql, "--max-requests", "40000", "--device", "intel-320"]);
    assert_eq!(there["carried"], true);
}
