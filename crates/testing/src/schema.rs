//! The JSON schemas of the commands' output, made of the types. Those that are promised to users
//! are in `share/schema` too.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Kept in `share/schema`: a change of one has to be seen.
const PROMISED: [&str; 2] = ["compare", "ctl-status"];

/// A document, or a list of several where a command was asked for several.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// Makes the schema of `command`'s output: the type `T`. Writes it to `NAME.json` in the folder
/// that the environment variable SEEKWAY_SCHEMAS names. Compares a promised one with its file; with
/// UPDATE_EXPECT=1 writes that file anew.
///
/// # Panics
/// The file of a promised schema differs from the type.
pub fn schema<T: JsonSchema>(name: &str, command: &str) {
    hold::<T>(SchemaSettings::draft2020_12().for_serialize(), name, command);
}

/// Like [`schema`], of a type that is only read: keys with defaults may be absent.
///
/// # Panics
/// The file of a promised schema differs from the type.
pub fn schema_of_input<T: JsonSchema>(name: &str, command: &str) {
    hold::<T>(SchemaSettings::draft2020_12().for_deserialize(), name, command);
}

fn hold<T: JsonSchema>(settings: SchemaSettings, name: &str, command: &str) {
    let settings = settings.with_transform(RecursiveTransform(close));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".into(), json!(format!("What `{command}` prints")));
    let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n";
    if let Some(folder) = std::env::var_os("SEEKWAY_SCHEMAS").map(PathBuf::from) {
        std::fs::create_dir_all(&folder).expect("the folder of SEEKWAY_SCHEMAS");
        std::fs::write(folder.join(format!("{name}.json")), &text).expect("the schema is written");
    }
    if !PROMISED.contains(&name) {
        return;
    }
    let file = format!("share/schema/{name}.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&file);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, text).expect("the schema is written");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{file} is not what `{command}` prints: keys were added, removed or described otherwise. \
         Keys stay (docs/json.md). To write the file anew: UPDATE_EXPECT=1, with this test's command"
    );
}

/// Only the keys that a type has: a new one has to come into the schema.
fn close(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    if !object.contains_key("properties") {
        return;
    }
    // Of an enum inside (`flatten`), the parts have keys too.
    let is_combined = ["allOf", "anyOf", "oneOf"].iter().any(|key| object.contains_key(*key));
    let word = if is_combined { "unevaluatedProperties" } else { "additionalProperties" };
    object.entry(word).or_insert(Value::Bool(false));
}
