//! Scenarios as TOML text: what `--print-scenario` prints, and what is read of Python's tables.

use crate::stacks::StackLists;
use anyhow::{Context, Result, bail};
use seekway_sim::scenario::{Scenario, VmLoad};
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
    let Value::Object(mut table) = serde_json::to_value(base).context("--print-scenario")? else {
        unreachable!("a scenario is a table")
    };
    table.insert("policy".into(), axis(&lists.policies)?);
    table.insert("limits".into(), axis(&lists.limits)?);
    for (key, mut value) in [("cache", axis(&lists.caches)?), ("cpu", axis(&lists.hosts)?)] {
        or_none(&mut value);
        table.insert(key.into(), value);
    }
    table.insert("seed".into(), axis(seeds)?);
    Ok(document(&table))
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
