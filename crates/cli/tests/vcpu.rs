//! `experiment run --vcpu`, and what is told of machines.

mod common;

use common::{Folder, json, seekway};
use serde_json::Value;

const RUN: &[&str] = &["experiment", "run", "inactivity", "--quick", "--seeds", "1"];

#[test]
fn a_policy_for_vcpus_runs_on_every_machine_and_is_told_of() {
    let folder = Folder::new();
    let report = folder.arg("report.html");
    let more = ["--vcpu", "vmigrater", "--format", "json", "--report", &report];
    let ran = seekway(&[RUN, &more].concat());
    // A quick run need not be accepted.
    assert!(ran.code == Some(0) || ran.code == Some(1), "{}", ran.err);
    let made = json(&ran.out);
    let names: Vec<&str> =
        made["rows"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    let scene = "2 VMs, sequential read on SSD with noop: vmigrater against vanilla, bandwidth";
    assert!(names.contains(&scene), "{names:#?}");
    let machines = made["machines"].as_array().expect("a list");
    let of =
        |vcpu: &str| -> Vec<&Value> { machines.iter().filter(|m| m["vcpu"] == vcpu).collect() };
    assert_eq!(of("vanilla").len(), of("vmigrater").len(), "on every machine");
    let find = |vcpu: &str| {
        let found = of(vcpu).into_iter().find(|m| m["scenario"] == "2 VMs, sequential read on SSD");
        found.unwrap_or_else(|| panic!("not run: {vcpu}"))
    };
    let (vanilla, ours) = (find("vanilla"), find("vmigrater"));
    for machine in [vanilla, ours] {
        let vms = machine["vms"].as_array().expect("a list");
        assert_eq!(vms.len(), 2);
        for vm in vms {
            let number = |key: &str| vm[key].as_f64().unwrap_or_else(|| panic!("no {key}: {vm:#}"));
            assert!(number("io_mib_s") > 1.0 && number("ios") > 100.0 && number("io_ms") > 0.0);
            let any = number("any_ran_share");
            assert!((0.5..=1.0).contains(&any), "four vCPUs, half of the time each: {any}");
            assert!(number("first_ran_share") <= any && number("computed_s") < number("ran_s"));
            assert!(vm["vcpu_metrics"].is_object() && number("moves_blocked") <= number("moves"));
        }
    }
    let sum = |machine: &Value, key: &str| -> f64 {
        machine["vms"].as_array().unwrap().iter().filter_map(|vm| vm[key].as_f64()).sum()
    };
    assert_eq!((sum(vanilla, "moves"), sum(vanilla, "agent_s")), (0.0, 0.0), "nothing is done");
    assert!(sum(ours, "moves") > 0.0 && sum(ours, "agent_s") > 0.0, "{ours:#}");
    let page = std::fs::read_to_string(&report).expect("a page");
    assert!(page.contains("vCPUs and tasks, by run") && page.contains("some vCPU ran"));
}

#[test]
fn runs_without_vcpus_say_nothing_of_them() {
    let args = ["experiment", "run", "pregather-sync", "--quick", "--seeds", "1"];
    let args: Vec<&str> = args.into_iter().chain(["--format", "json"]).collect();
    assert_eq!(json(&seekway(&args).ok()).get("machines"), None);
}
