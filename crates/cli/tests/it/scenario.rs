//! `compare FILE` and `--print-scenario`: a scenario gives what its command line gives.

use crate::common::{Folder, json, line, root, seekway, trace};
use serde_json::Value;

/// The printed JSON without `wall_s`.
fn compared(args: &[&str]) -> Value {
    fn without_wall(value: &mut Value) {
        match value {
            Value::Object(table) => {
                table.remove("wall_s");
                table.values_mut().for_each(without_wall);
            }
            Value::Array(list) => list.iter_mut().for_each(without_wall),
            _ => {}
        }
    }
    let all = [&["compare"], args, &["--format", "json"]].concat();
    let mut value = json(&seekway(&all).ok());
    without_wall(&mut value);
    value
}

#[test]
fn a_printed_scenario_gives_what_its_command_line_gives() {
    let folder = Folder::new();
    let traced = folder.file("t.trace", &trace(300));
    let two = "--vm name=a,app=sysbench:mode=RR --vm name=b,app=sysbench:mode=SR --until 500ms";
    let several = format!("--trace {traced} --trace {traced}");
    for text in [
        format!("{several} --policies noop,cfq:quantum=4,slice_idle=0 --weights 1,2"),
        format!("{several} --policies noop --outstanding 4 --map spread --max-requests 100"),
        format!("{several} --policies noop --time-scale 0.5 --capacity 1GiB --fair-to private"),
        format!("{two} --policies cfq,fairway --seeds 2 --fair-to private"),
        format!("{two} --policies cfq --alone never --map ext3:2048 --seed 7"),
        format!("{two} --policies noop --cache none,64MiB --prefetch none,vio --coalesce 0"),
        format!(
            "{two} --policies noop --host none --host slice=3ms,cpus=1 --vcpu vanilla,vmigrater"
        ),
        format!("{two} --policies noop --device seagate-1tb-7200:queue_depth=8 --hard-limit 1s"),
        "--vm name=a,iops=50,group=t,target=20ms,app=sysbench:mode=RR --group t:bandwidth=3MiB \
         --vm name=a,weight=3,disk=log:2GiB,iops=7,app=sysbench:mode=SW,disk=log --limits \
         given,none --policies fairway --until 500ms"
            .into(),
        format!("--trace {traced} --vm app=sysbench:mode=RR --policies noop --until 500ms"),
    ] {
        let args: Vec<&str> = text.split_whitespace().collect();
        let printed = seekway(&[&["compare"], &args[..], &["--print-scenario"]].concat()).ok();
        let file = folder.file("s.toml", &printed);
        assert_eq!(compared(&args), compared(&[&file]), "{text}\n{printed}");
        let csv =
            |args: &[&str]| seekway(&[&["compare"], args, &["--format", "csv"]].concat()).ok();
        assert_eq!(csv(&args), csv(&[&file]), "{text}");
    }
    seekway(&line("compare --trace - --print-scenario", &[])).refused(&["the standard input"]);
}

#[test]
fn a_printed_scenario_says_only_what_is_not_as_usual() {
    let args = "compare --vm name=a,app=sysbench:mode=RR --trace t.csv --policies noop --cache 1MiB \
                --print-scenario";
    let printed = seekway(&line(args, &[])).ok();
    let expected = "limits = \"given\"\npolicy = \"noop\"\nseed = 1\n\n[cache]\nprefetch = \"none\"\n\
                    size = \"1MiB\"\n\n[[vm]]\ntrace = { path = \"t.csv\" }\n\n[[vm]]\n\
                    load = [{ app = \"sysbench\", mode = \"RR\" }]\nname = \"a\"\n";
    assert_eq!(printed, format!("cpu = \"none\"\n{expected}"));
}

const STUDY: &str = r#"
policy = ["noop", "deadline"]
measure.until = "300ms"
[[vm]]
name = "a"
load = [{ app = "sysbench", mode = "RR" }]
"#;

#[test]
fn options_replace_what_they_may_and_are_refused_where_the_file_decides() {
    let folder = Folder::new();
    let file = folder.file("s.toml", STUDY);
    let policies = |made: &Value| -> Vec<(String, u64)> {
        let run = |run: &Value| {
            (run["policy"].as_str().unwrap().to_string(), run["seed"].as_u64().unwrap())
        };
        made["runs"].as_array().unwrap().iter().map(run).collect()
    };
    let named = |name: &str, seed| (name.to_string(), seed);
    assert_eq!(policies(&compared(&[&file])), [named("noop", 1), named("deadline", 1)]);
    let other = compared(&[&file, "--policies", "cfq", "--seed", "3", "--seeds", "2"]);
    assert_eq!(policies(&other), [named("cfq", 3), named("cfq", 4)]);
    let shorter = compared(&[&file, "--until", "100ms"]);
    assert_eq!(shorter["runs"][0]["simulated_s"], 0.1);
    for (option, value) in [
        ("--vm", "app=sysbench"),
        ("--trace", "t.csv"),
        ("--device", "intel-320"),
        ("--cache", "1GiB"),
        ("--host", "cpus=1"),
        ("--limits", "none"),
        ("--map", "spread"),
        ("--alone", "never"),
    ] {
        seekway(&["compare", &file, option, value]).refused(&["cannot be used with", option]);
    }
    let journals = folder.arg("journals");
    seekway(&["compare", &file, "--journal", &journals]).ok();
    assert_eq!(std::fs::read_dir(&journals).unwrap().count(), 2);
}

#[test]
fn loads_that_differ_are_compared_each_for_itself() {
    let folder = Folder::new();
    let cases = "[[case]]\nname = \"one\"\n[[case]]\nname = \"two\"\nvm = [{ name = \"x\", count = 2, \
                 load = [{ app = \"sysbench\", mode = \"RR\" }] }]\n";
    let file = folder.file("s.toml", &format!("{STUDY}\n{cases}"));
    let made = compared(&[&file]);
    let shown: Vec<(&str, usize, usize)> = made
        .as_array()
        .unwrap()
        .iter()
        .map(|of| {
            let runs = of["runs"].as_array().unwrap();
            let vms = runs[0]["vms"].as_array().unwrap().len();
            (of["scenario"].as_str().unwrap(), runs.len(), vms)
        })
        .collect();
    assert_eq!(shown, [("one", 2, 1), ("two", 2, 2)]);
    let csv = seekway(&["compare", &file, "--format", "csv"]).ok();
    assert!(csv.lines().next().unwrap().ends_with(",scenario"), "{csv}");
    assert_eq!(csv.lines().filter(|line| line.ends_with(",two")).count(), 6, "{csv}");
    let table = seekway(&["compare", &file]).ok();
    assert!(table.contains("two: All VMs together on seagate-exos-x24"), "{table}");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let folder = Folder::new();
    for (text, parts) in [
        ("polcy = \"noop\"", &["s.toml:1:1: ", "unknown field `polcy`"][..]),
        ("policy = \"nop\"\n[[vm]]\nload = [{ app = \"sysbench\" }]", &["no policy 'nop'"]),
        ("policy = \"noop\"", &["s.toml: nothing to run"]),
        ("device.profile = \"x\"\n[[vm]]\nload = [{ app = \"sysbench\" }]", &["called `x`"]),
        ("[[vm]]\ntrace.path = \"/nonexistent\"", &["/nonexistent"]),
    ] {
        let file = folder.file("s.toml", text);
        seekway(&["compare", &file]).refused(parts);
    }
    seekway(&["compare", &folder.arg("none.toml")]).refused(&["none.toml", "No such file"]);
}

#[test]
fn the_examples_and_the_scenario_of_the_page_run() {
    let folder = Folder::new();
    let examples = std::fs::read_dir(root().join("examples")).unwrap();
    let mut files: Vec<String> = examples
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .map(|path| path.display().to_string())
        .collect();
    assert!(files.len() >= 2, "{files:?}");
    let page = std::fs::read_to_string(root().join("docs/scenario.md")).unwrap();
    let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    files.extend(blocks.enumerate().map(|(n, text)| folder.file(&format!("{n}.toml"), text)));
    for file in &files {
        let settles = std::fs::read_to_string(file).unwrap().contains("settle = \"2s\"");
        let until = if settles { "2100ms" } else { "200ms" };
        let csv = ["compare", file, "--until", until, "--format", "csv"];
        assert!(seekway(&csv).ok().lines().count() > 4, "{file}");
    }
}

const TWO: &str = "[[vm]]\nload = [{ app = \"sync\" }]\n[[vm]]\nload = [{ app = \"sync\" }]\n";

#[test]
fn runs_that_have_other_vms_than_the_load_are_not_judged_by_it() {
    let folder = Folder::new();
    let until = "policy = \"noop\"\nmeasure.until = \"50ms\"\n";
    for key in ["only = 1", "only = [0, 1]", "cpu = { count = 2, part = 2 }"] {
        let file = folder.file("s.toml", &format!("{until}{key}\n{TWO}"));
        let made = seekway(&["compare", &file, "--format", "json"]).ok();
        assert!(made.contains("a run has other VMs than the load"), "{key}: {made}");
        let private = format!("{until}{key}\noutcome.fair_to = \"private\"\n{TWO}");
        let file = folder.file("s.toml", &private);
        seekway(&["compare", &file]).refused(&["all VMs have to run"]);
    }
}

#[test]
fn each_run_has_a_name_and_a_journal_of_its_own() {
    let folder = Folder::new();
    let rest = format!("policy = \"noop\"\nmeasure.until = \"20ms\"\n{TWO}");
    let costs =
        "cache = { size = \"8MiB\", costs = { request = [\"1us\", \"5ms\"] } }\n".to_string();
    let long = "x".repeat(300);
    let cases = format!(
        "{rest}[[case]]\nname = \"a/b\"\n[[case]]\nname = \"a b\"\n[[case]]\nname = \"{long}\"\n"
    );
    for (text, count) in [(costs + &rest, 2), (cases, 3)] {
        let file = folder.file("s.toml", &text);
        let journals = folder.arg(&format!("journals{count}"));
        seekway(&["compare", &file, "--journal", &journals]).ok();
        assert_eq!(std::fs::read_dir(&journals).unwrap().count(), count);
    }
    let guests = "cpu = [{ count = 1, guest = { slice = \"1ms\" } }, \
                  { count = 1, guest = { slice = \"3ms\" } }]\n";
    let file = folder.file("s.toml", &format!("{guests}{rest}"));
    seekway(&["compare", &file]).refused(&["would both be called", "[[case]]"]);
}

#[test]
fn a_time_to_settle_ends_before_the_run() {
    let folder = Folder::new();
    for measure in ["until = \"50ms\"", "requests = 5"] {
        let text = format!("policy = \"noop\"\nmeasure = {{ settle = \"1h\", {measure} }}\n{TWO}");
        let file = folder.file("s.toml", &text);
        seekway(&["compare", &file]).refused(&["measure.settle", "nothing was measured"]);
    }
    let file = folder.file("s.toml", &format!("measure.until = [\"1s\", \"2s\"]\n{TWO}"));
    seekway(&["compare", &file, "--until", "1s"]).refused(&["several measure.until"]);
}

#[test]
fn combinations_of_a_long_list_are_refused_before_they_are_made() {
    let folder = Folder::new();
    let weights = vec!["1"; 5_000].join(", ");
    let axis = (1..=100).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let text =
        format!("weights = [{weights}]\ndevice.slow = [{axis}]\nstack.coalesce = [{axis}]\n{TWO}");
    let file = folder.file("s.toml", &text);
    seekway(&["compare", &file]).refused(&["combinations", "shorten a list"]);
}

#[test]
fn a_group_without_a_limit_is_refused() {
    let folder = Folder::new();
    let vm = "app=sync";
    seekway(&["compare", "--vm", vm, "--group", "t", "--until", "1ms"]).refused(&["no weight"]);
    for limits in ["", "limits = {}\n"] {
        let file = folder.file("s.toml", &format!("[[group]]\nname = \"t\"\n{limits}{TWO}"));
        seekway(&["compare", &file]).refused(&["no weight"]);
    }
}

#[test]
fn a_profile_without_an_end_is_refused() {
    let vm = "app=sync";
    seekway(&["compare", "--vm", vm, "--device", "/dev/zero"]).refused(&["longer than 1048576"]);
    let args = ["predict", "--on", "cheetah-9lp", "--against", "/dev/zero"];
    seekway(&args).refused(&["longer than 268435456"]);
}

#[test]
fn a_single_run_is_not_called_the_best_of_one() {
    let folder = Folder::new();
    let keys = "policy = \"noop\"\nmeasure.until = \"50ms\"\noutcome.fair_to = \"private\"\n";
    let text = format!("{keys}[[case]]\nname = \"first\"\n{TWO}");
    let (file, page) = (folder.file("one.toml", &text), folder.arg("one.html"));
    for (policies, expected) in
        [("noop", "first, noop on "), ("noop,cfq", "the best of 2 policies")]
    {
        seekway(&["compare", &file, "--policies", policies, "--report", &page]).ok();
        let made = std::fs::read_to_string(&page).unwrap();
        assert!(made.contains(expected), "{policies}");
        assert_eq!(made.contains("the best of 2 policies"), policies != "noop");
    }
}
