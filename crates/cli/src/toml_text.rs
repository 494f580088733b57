//! Scenarios as TOML text: what `--print-scenario` prints, and what is read of Python's tables.

use crate::stacks::StackLists;
use anyhow::{Result, anyhow, bail};
use seekway_sim::scenario::{Cache, Scenario, TraceText, Vm, VmLoad};
use serde::Serialize;
use serde_json::{Map, Value};

/// A scenario with axes, which reads back as the same runs in the same order.
///
/// # Errors
/// A trace comes from the standard input, or a path is not UTF-8.
pub fn scenario(base: &Scenario, lists: &StackLists, seeds: &[u64]) -> Result<String> {
    for vm in base.vm.iter() {
        if let VmLoad::Trace(trace) = &vm.load
            && trace.path.as_os_str() == "-"
        {
            bail!(
                "--print-scenario: `-`, the standard input, is in no file: name the trace's file"
            );
        }
    }
    let [mut table, usual] = [base, &Scenario::default()].map(serde_json::to_value);
    let table = table.as_mut().map_err(|e| anyhow!("--print-scenario: {e}"))?;
    let mut usual = usual?;
    // Of each entry of a list.
    usual["vm"] = serde_json::to_value(Vm::traced(TraceText::new("")))?;
    drop_usual(table, Some(&usual));
    usual["cache"] = serde_json::to_value(Cache::new(0, ""))?;
    let Value::Object(table) = table else { unreachable!("a scenario is a table") };
    table.insert("policy".into(), axis(&lists.policies)?);
    table.insert("limits".into(), axis(&lists.limits)?);
    for (key, mut value) in [("cache", axis(&lists.caches)?), ("cpu", axis(&lists.hosts)?)] {
        or_none(&mut value);
        drop_usual(&mut value, usual.get(key));
        table.insert(key.into(), value);
    }
    table.insert("seed".into(), axis(seeds)?);
    Ok(document(table))
}

/// Drops all that is absent, empty, or as usual.
fn drop_usual(value: &mut Value, usual: Option<&Value>) {
    match value {
        Value::Object(table) => table.retain(|key, value| {
            let usual = usual.and_then(|usual| usual.get(key));
            let is_usual = usual == Some(&*value);
            drop_usual(value, usual);
            let is_empty = match value {
                Value::Null => true,
                Value::Object(table) => table.is_empty(),
                Value::Array(list) => list.is_empty(),
                _ => false,
            };
            !is_usual && !is_empty
        }),
        Value::Array(list) => list.iter_mut().for_each(|value| drop_usual(value, usual)),
        _ => {}
    }
}

/// One value, or a list of several.
fn axis(list: &[impl Serialize]) -> Result<Value> {
    Ok(match list {
        [one] => serde_json::to_value(one)?,
        list => serde_json::to_value(list)?,
    })
}

/// Absent parts are called `none`.
fn or_none(value: &mut Value) {
    match value {
        Value::Null => *value = "none".into(),
        Value::Array(list) => list.iter_mut().for_each(or_none),
        _ => {}
    }
}

/// A document: plain values, then tables, then lists of tables.
pub fn document(table: &Map<String, Value>) -> String {
    let is_table = |value: &Value| value.is_object();
    let is_list = |key: &str, value: &Value| {
        let of_tables = value.as_array().is_some_and(|list| list.iter().all(is_table));
        ["vm", "group", "case"].contains(&key) && of_tables
    };
    let mut text = String::new();
    for (key, value) in table.iter().filter(|(key, value)| !is_table(value) && !is_list(key, value))
    {
        line(&mut text, key, value);
    }
    for (key, value) in table {
        if let Value::Object(inner) = value {
            text.push_str(&format!("\n[{}]\n", name(key)));
            inner.iter().for_each(|(key, value)| line(&mut text, key, value));
        }
    }
    for (key, value) in table.iter().filter(|(key, value)| is_list(key, value)) {
        for inner in value.as_array().into_iter().flatten().filter_map(Value::as_object) {
            text.push_str(&format!("\n[[{}]]\n", name(key)));
            inner.iter().for_each(|(key, value)| line(&mut text, key, value));
        }
    }
    text.trim_start().to_string()
}

fn line(text: &mut String, key: &str, value: &Value) {
    if !value.is_null() {
        text.push_str(&format!("{} = {}\n", name(key), inline(value)));
    }
}

fn name(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if !key.is_empty() && key.chars().all(is_bare) { key.into() } else { quoted(key) }
}

/// JSON's escapes are TOML's, which also escapes the delete character.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(list) => {
            format!("[{}]", list.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::Object(table) => {
            let given = table.iter().filter(|(_, value)| !value.is_null());
            let pairs: Vec<String> =
                given.map(|(key, value)| format!("{} = {}", name(key), inline(value))).collect();
            if pairs.is_empty() { "{}".into() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
        other => other.to_string(),
    }
}
