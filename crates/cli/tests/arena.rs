//! `seekway arena`: the scoreboard, its formats, and what it refuses.

mod common;

use common::{Folder, json, line, policies, seekway, trace};
use expect_test::expect_file;

/// A small arena: two scenes, three policies, a tenth of the time.
const SMALL: &str = "arena --scenes sata/weights,disk/flood --policies noop,deadline,cscan \
    --quick";

fn small(more: &[&str]) -> common::Ran {
    seekway(&line(SMALL, more))
}

#[test]
fn a_small_arena_is_the_same_to_the_byte() {
    let ran = small(&["--details", "--jobs", "1"]);
    assert!(ran.err.contains("a tenth of each scene's time"), "{}", ran.err);
    let out = ran.ok();
    expect_file!["golden/arena.txt"].assert_eq(&out);
    assert_eq!(small(&["--details", "--jobs", "3"]).ok(), out);
    // `experiment run` knows it too, with all policies.
    let as_experiment = ["experiment", "run", "arena", "--quick", "--scenes", "sata/equal-2"];
    let own = ["arena", "--quick", "--scenes", "sata/equal-2"];
    assert_eq!(seekway(&as_experiment).ok(), seekway(&own).ok());
}

#[test]
fn json_has_the_keys_that_scripts_read() {
    let made = json(&small(&["--format", "json", "--policy", "noop", "--policy", "look"]).ok());
    assert_eq!(made["seeds"], serde_json::json!([1]));
    let board = made["scoreboard"].as_array().expect("a list");
    // A policy that is named twice runs once.
    assert_eq!(board.len(), 4);
    let regrets: Vec<f64> = board.iter().filter_map(|s| s["mean_regret"].as_f64()).collect();
    assert!(regrets.is_sorted() && regrets.iter().all(|r| (0.0..=1.0).contains(r)), "{regrets:?}");
    for score in board {
        assert!(score["worst_regret"].as_f64() >= score["mean_regret"].as_f64());
        assert!(score["regret_by_device"]["disk"].is_number(), "{score}");
        assert!(score["regret_by_measure"]["p99"].is_number(), "{score}");
    }
    let scenes = made["scenes"].as_array().expect("a list");
    let names: Vec<&str> = scenes.iter().filter_map(|s| s["scene"].as_str()).collect();
    assert_eq!(names, ["sata/weights", "disk/flood"]);
    assert!(scenes.iter().all(|scene| scene["latency_unit"] == "alone"));
    for policy in scenes.iter().flat_map(|s| s["policies"].as_array().expect("a list")) {
        for key in ["throughput", "worst_share", "jain", "withheld", "requests", "mean_regret"] {
            assert!(policy[key].is_number(), "no {key} in {policy}");
        }
        // Measured time would make the output differ from run to run.
        assert!(policy.get("cpu_ns").is_none());
    }
    assert!(board.iter().all(|score| score["spread"].is_null()), "one seed has no spread");
    let pareto = |score: &serde_json::Value| score["pareto"].as_f64().expect("a number");
    assert!(board.iter().all(|score| (0.0..=1.0).contains(&pareto(score))));
    assert!(board[0]["regret_by_medium"]["flash"].is_number() && made.get("drawn").is_none());
    assert!(scenes[0]["policies"][0]["p99"].is_null(), "weights say whose requests wait");
    assert!(scenes[1]["policies"][0]["p99"].is_number());
    let measured = json(&small(&["--format", "json", "--cpu"]).ok());
    assert!(measured["scenes"][0]["policies"][0]["cpu_ns"].is_number());
}

/// Each seed's mean regret by itself, from a run with that seed alone.
#[test]
fn the_spread_is_of_the_mean_regrets_of_single_seeds() {
    let mean = |args: &[&str]| {
        let made = json(&small(&[args, &["--format", "json"]].concat()).ok());
        let board = made["scoreboard"].as_array().expect("a list").clone();
        let noop = board.iter().find(|score| score["policy"] == "noop").expect("it ran").clone();
        (noop["mean_regret"].as_f64().expect("a number"), noop["spread"].as_f64())
    };
    let ((first, _), (second, _)) = (mean(&[]), mean(&["--seed", "2"]));
    let (_, spread) = mean(&["--seeds", "2"]);
    let spread = spread.expect("two seeds have one");
    assert!((spread - (first - second).abs()).abs() < 1e-12, "{spread}: {first}, {second}");
    assert!(spread > 0.0 && small(&["--seeds", "2"]).ok().contains("spread"));
}

#[test]
fn drawn_scenes_are_the_same_each_time_and_scored_by_themselves() {
    let drawn = ["arena", "--drawn", "7:2", "--policies", "noop,cscan", "--quick"];
    let with = |more: &[&str]| seekway(&[&drawn, more].concat()).ok();
    let text = with(&["--details", "--jobs", "1"]);
    assert_eq!(with(&["--details", "--jobs", "3"]), text);
    assert!(text.starts_with("Scoreboard of 2 drawn scenes (seed 7)"), "{text}");
    let made = json(&with(&["--format", "json"]));
    let count = |list: &serde_json::Value| list.as_array().map(Vec::len);
    assert_eq!((count(&made["scoreboard"]), count(&made["scenes"])), (Some(0), Some(0)));
    let of_drawn = &made["drawn"];
    assert_eq!((count(&of_drawn["scoreboard"]), count(&of_drawn["scenes"])), (Some(2), Some(2)));
    // Beside scenes of the file, these are what they are without.
    let both = ["--scenes", "sata/equal-2", "--format"];
    let made = json(&with(&[&both[..], &["json"]].concat()));
    assert_eq!((count(&made["scoreboard"]), &made["drawn"]), (Some(2), of_drawn));
    let tables = with(&[&both[..], &["markdown"]].concat());
    assert!(tables.contains("| policy | mean regret | drawn |"), "{tables}");
    assert_eq!(with(&["--format", "csv"]).lines().count(), 1 + 2 * 2);
    assert!(with(&["--list"]).contains("/drawn-02"));
}

/// Everyday scenes change no figure of the others.
#[test]
fn everyday_scenes_have_a_scoreboard_of_their_own() {
    let arena = |more: &[&str]| {
        let quick = ["arena", "--quick", "--policies", "noop,cscan"];
        seekway(&[&quick, more].concat()).ok()
    };
    let of = |scenes: &str, more: &[&str]| {
        json(&arena(&[&["--scenes", scenes, "--format", "json"], more].concat()))
    };
    let old = of("sata/equal-2", &[]);
    let drawn = ["--drawn-everyday", "7:2"];
    let both = of("sata/equal-2,sata/late-flood,sata/pauses-50ms", &drawn);
    assert_eq!(both["scoreboard"], old["scoreboard"]);
    assert_eq!(both["scenes"], old["scenes"]);
    assert!(old["everyday"].is_null() && old["drawn_everyday"].is_null(), "{old}");
    let everyday = &both["everyday"];
    assert_eq!(everyday["scenes"][0]["group"], "late");
    for score in everyday["scoreboard"].as_array().expect("a list") {
        let by_group = score["regret_by_group"].as_object().expect("an object");
        assert_eq!(by_group.keys().collect::<Vec<_>>(), ["late", "pauses"]);
        let sum: f64 = by_group.values().filter_map(serde_json::Value::as_f64).sum();
        let mean = score["mean_regret"].as_f64().expect("a number");
        assert!((mean - sum / 2.0).abs() < 1e-12, "one scene each: {score}");
    }
    assert_eq!(both["drawn_everyday"]["scenes"].as_array().map(Vec::len), Some(2));
    // Without the others too; the last table has a column for each board and group.
    let own = ["--scenes", "sata/late-flood,sata/pauses-50ms"];
    let alone = json(&arena(&[&own[..], &["--format", "json"]].concat()));
    assert_eq!((&alone["everyday"], &alone["scenes"]), (everyday, &serde_json::json!([])));
    let table = arena(&[&own[..], &drawn, &["--format", "markdown"]].concat());
    let groups =
        "| policy | 2 everyday scenes | late | pauses | 2 drawn everyday scenes (seed 7) |";
    assert!(table.contains(groups), "{table}");
    let csv = arena(&[&own[..], &["--format", "csv"]].concat());
    assert!(csv.lines().next().is_some_and(|line| line.contains(",group,")), "{csv}");
    assert_eq!(csv.lines().filter(|line| line.contains(",late,")).count(), 2);
    let listed = json(&arena(&["--list", "--format", "json", "--drawn-everyday", "7:2"]));
    assert_eq!(listed[1]["group"], "drawn", "{listed}");
}

/// The arena's devices say how peers are set; a load of one's own has no such device.
#[test]
fn peers_run_a_second_time_as_an_operator_sets_them() {
    let quick = ["arena", "--quick", "--scenes", "sata/equal-2", "--format", "json"];
    let named = |more: &[&str]| {
        let made = json(&seekway(&[&quick, more].concat()).ok());
        let board = made["scoreboard"].as_array().expect("a list").clone();
        board.iter().filter(|s| s["policy"].as_str().unwrap_or("").ends_with(", set")).count()
    };
    assert_eq!(named(&[]), 3);
    assert_eq!(named(&["--policies", "iocost,kyber,bfq"]), 0);
    assert_eq!(named(&["--vm", "app=uniform:requests=10"]), 0);
}

#[test]
fn csv_and_list_have_a_line_for_each() {
    let csv = small(&["--format", "csv"]).ok();
    assert_eq!(csv.lines().count(), 1 + 2 * 3);
    let listed = json(&seekway(&["arena", "--list", "--format", "json"]).ok());
    let listed = listed.as_array().expect("a list");
    assert!(listed.len() > 80, "{}", listed.len());
    assert!(listed.iter().any(|s| s["scene"] == "nvme/equal-1000" && s["vms"] == 1000));
    let some = seekway(&["arena", "--list", "--scenes", "disk/*"]).ok();
    assert!(some.contains("disk/demo") && !some.contains("nvme/"));
}

#[test]
fn a_load_of_ones_own_is_a_scene() {
    let folder = Folder::new();
    let (a, b) = (folder.file("a.trace", &trace(300)), folder.file("b.trace", &trace(200)));
    let args = ["arena", "--trace", &a, "--trace", &b, "--device", "cheetah-15k5"];
    let made = json(&seekway(&[&args[..], &["--format", "json"]].concat()).ok());
    let scenes = made["scenes"].as_array().expect("a list");
    assert_eq!((scenes.len(), &scenes[0]["scene"]), (1, &"own".into()));
    let under = scenes[0]["policies"].as_array().expect("a list");
    assert_eq!(under.len(), policies().len());
    assert!(under.iter().all(|p| p["requests"] == 500.0 && p["worst_share"].is_number()));
    // Beside scenes of the arena only where they are asked for.
    let both = json(&small(&["--trace", &a, "--format", "json"]).ok());
    assert_eq!(both["scenes"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_report_has_figures_and_every_scene() {
    let folder = Folder::new();
    let report = folder.arg("arena.html");
    small(&["--report", &report]).ok();
    let html = std::fs::read_to_string(&report).expect("written");
    for part in
        ["<svg", "sata/weights", "disk/flood", "worst VM&#39;s share", "Scoreboard of 2 scenes"]
    {
        assert!(html.contains(part) || html.contains(&part.replace("&#39;", "'")), "no {part}");
    }
    assert!(!html.contains("http://") || !html.contains("src=\"http"), "it loads something");
}

#[test]
fn wrong_usage_is_refused() {
    for (args, part) in [
        (&["--scenes", "nvme/nothing"][..], "no such scene; there are nvme/flood"),
        (&["--scenes", "disk/flood", "--policies", "cqf"], "no policy 'cqf'; there are fairway"),
        (&["--scenes", "disk/flood", "--policy", "cfq:quantun=4"], "it has slice_sync"),
        (&["--scenes", "disk/flood", "--seeds", "0"], "at least 1"),
        (&["--scenes", "disk/flood", "--until", "5"], "a time with its unit"),
        (&["--scenes", "disk/flood", "--report", "/nowhere/a.html"], "its folder does not exist"),
        (&["--trace", "/nowhere/a.trace"], "/nowhere/a.trace"),
        (&["--vm", "app=uniform:thnik=60us"], "uniform has no parameter 'thnik'"),
        (&["--vm", "latency=60us,app=uniform"], "latency is a guest's"),
        (&["--drawn", "1:0"], "expected SEED or SEED:COUNT"),
        (&["--drawn", "some"], "expected SEED or SEED:COUNT"),
        (&["--bogus"], "unexpected argument"),
    ] {
        seekway(&[&["arena"], args].concat()).refused(&[part]);
    }
    let experiment = ["experiment", "run"];
    for (args, part) in [
        (&["arena", "--live"][..], "not with --live"),
        (&["arena", "--prefetch", "vio"], "not with --prefetch"),
        (&["arena", "--scenes", "nothing"], "no such scene"),
        (&["pregather-b", "--scenes", "nvme/*"], "--scenes: for arena, noisy and together only"),
        (
            &["together", "--scenes", "tape"],
            "--scenes tape: no scene of together has such a name; it has 7200 rpm; SATA SSD",
        ),
        (&["arena", "pregather-b"], "arena: runs by itself"),
    ] {
        seekway(&[&experiment, args].concat()).refused(&[part]);
    }
}
