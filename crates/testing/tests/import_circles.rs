//! No files of a crate import each other in a circle: each imports only files below it.
//!
//! A file names another by a path that begins with `crate`, `super` or `self`, in a `use` or
//! where it is needed; it names the file of the longest part of the path that is a module. A
//! parent that names its own children is the tree, and no import. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path below the crate: `["reactor", "core"]`. The crate's root is empty.
type Module = Vec<String>;
/// The modules that each module imports, each with one path by which it does.
type Imports = BTreeMap<Module, BTreeMap<Module, String>>;

#[test]
fn no_files_import_each_other_in_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
    let mut circles = Vec::new();
    for entry in fs::read_dir(crates).expect("the folder of the crates") {
        let source = entry.expect("a crate").path().join("src");
        let mut files = BTreeMap::new();
        read_folder(&source, &mut Vec::new(), &mut files);
        for circle in find_circles(&imports(&files)) {
            circles.push(format!("{}:\n{circle}", source.display()));
        }
    }
    assert!(circles.is_empty(), "files import each other in circles:\n{}", circles.join("\n"));
}

/// The text of each file below `folder`, by its module. No folder is an empty one.
fn read_folder(folder: &Path, module: &mut Module, files: &mut BTreeMap<Module, String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("an entry of a folder").path()) {
        let name = path.file_stem().and_then(|s| s.to_str()).expect("a name in UTF-8").to_string();
        if path.is_dir() {
            module.push(name);
            read_folder(&path, module, files);
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut module = module.clone();
            if !["mod", "lib", "main"].contains(&name.as_str()) {
                module.push(name);
            }
            let text = fs::read_to_string(&path).expect("a source file");
            // A program beside its library: the root has both texts.
            *files.entry(module).or_default() += &text;
        }
    }
}

fn imports(files: &BTreeMap<Module, String>) -> Imports {
    let code: BTreeMap<&Module, String> = files.iter().map(|(m, text)| (m, code(text))).collect();
    let is_of_tests = |module: &Module| {
        (1..=module.len()).any(|n| {
            let (parent, name) = (module[..n - 1].to_vec(), &module[n - 1]);
            let declared = format!("#[cfg(test)]\nmod {name};");
            name == "tests" || code.get(&parent).is_some_and(|code| code.contains(&declared))
        })
    };
    let modules: BTreeSet<&Module> = files.keys().filter(|m| !is_of_tests(m)).collect();
    let mut imports = Imports::new();
    for &module in &modules {
        let found = imports.entry(module.clone()).or_default();
        for path in paths(&code[module]) {
            let Some(target) = target(&modules, module, &path) else { continue };
            if target != *module && !target.starts_with(module) && !target.is_empty() {
                found.entry(target).or_insert(path);
            }
        }
    }
    imports
}

/// A file's text without comments and without its inner module of tests, which comes last.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    let is_tests = |pair: &[&str]| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{')
    };
    let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// All paths of the code that begin with `crate`, `super` or `self`; trees in braces are spread.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = &code[..at];
        let first = before.rfind(|c: char| !is_of_name(c)).map_or(0, |n| n + 1);
        // Not in the middle of a path: `super::super` begins once.
        let begins = !before[..first].ends_with("::");
        if begins && ["crate", "super", "self"].contains(&&before[first..]) {
            spread(&code[first..], "", &mut paths);
        }
    }
    paths
}

/// Appends the paths of the tree at the start of `text`, each with `prefix`; returns the rest of
/// `text`.
fn spread<'t>(text: &'t str, prefix: &str, paths: &mut Vec<String>) -> &'t str {
    let mut text = text.trim_start();
    let end = text.find(|c| !is_of_name(c) && c != ':').unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..end]);
    text = &text[end..];
    if !path.ends_with("::") || !text.starts_with('{') {
        paths.push(path);
        return text;
    }
    loop {
        text = text[1..].trim_start(); // the brace, or the comma
        if !text.starts_with('}') {
            text = spread(text, &path, paths).trim_start();
            // `as another_name`
            text = &text[text.find([',', '}']).unwrap_or(text.len())..];
        }
        if !text.starts_with(',') {
            return text.get(1..).unwrap_or("");
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The module that a path in `module` names.
fn target(modules: &BTreeSet<&Module>, module: &Module, path: &str) -> Option<Module> {
    let mut target = module.clone();
    for (n, segment) in path.split("::").enumerate() {
        match segment {
            "crate" if n == 0 => target.clear(),
            "self" => {}
            "super" => drop(target.pop()?),
            name => target.push(name.to_string()),
        }
    }
    while !modules.contains(&target) {
        target.pop()?;
    }
    Some(target)
}

/// Each group of modules that import each other, as text: who imports whom, by which path.
fn find_circles(imports: &Imports) -> Vec<String> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|module| (module, reach(imports, module))).collect();
    let mut told = BTreeSet::new();
    let mut circles = Vec::new();
    for (&module, reaches) in &reached {
        if told.contains(module) || !reaches.contains(module) {
            continue;
        }
        let group: BTreeSet<&Module> =
            reaches.iter().copied().filter(|other| reached[other].contains(module)).collect();
        let mut text = String::new();
        for &from in &group {
            for (to, path) in imports[from].iter().filter(|(to, _)| group.contains(to)) {
                text += &format!("  {} imports {} by `{path}`\n", from.join("/"), to.join("/"));
            }
        }
        circles.push(text);
        told.extend(group);
    }
    circles
}

/// The modules that `module` imports, directly and indirectly.
fn reach<'i>(imports: &'i Imports, module: &Module) -> BTreeSet<&'i Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = imports[module].keys().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(imports.get(module).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}

/// The circles of a crate of these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let mut modules = BTreeMap::new();
    for (path, text) in files {
        let module = path.split('/').filter(|s| !s.is_empty()).map(str::to_string).collect();
        modules.insert(module, (*text).to_string());
    }
    find_circles(&imports(&modules))
}

#[test]
fn a_planted_circle_is_named() {
    let circles = circles_of(&[
        ("", "mod a; mod b; mod c;"),
        ("a", "use std::{fmt, io};\nuse crate::{c::{Leaf, Other as Another}, b::deep::Thing};"),
        ("b", "mod deep;"),
        ("b/deep", "pub struct Thing;\nfn f() -> super::super::c::Leaf {}\nuse super::super::a;"),
        ("c", "pub struct Leaf; pub struct Other;"),
    ]);
    assert_eq!(
        circles,
        [
            "  a imports b/deep by `crate::b::deep::Thing`\n  b/deep imports a by `super::super::a`\n"
        ]
    );
}

#[test]
fn a_path_where_it_is_needed_counts() {
    let circles = circles_of(&[
        ("a", "fn f(_: crate::b::B) {}"),
        ("b", "pub struct B;\nfn f() { super::a::f(B) }"),
    ]);
    assert_eq!(circles.len(), 1, "{circles:?}");
}

#[test]
fn trees_comments_and_tests_are_no_circles() {
    let circles = circles_of(&[
        // A parent names its child, and the child its parent.
        ("a", "mod child;\nuse self::child::C;\npub struct A;\n#[cfg(test)]\nmod model;"),
        ("a/child", "use super::A;\npub struct C;"),
        ("a/model", "use crate::b::B;"),
        ("a/tests", "use crate::b::B;"),
        ("b", "use crate::a::A;\n// crate::b is used by crate::a\npub struct B;"),
        ("c", "pub struct C;\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}"),
        ("d", "use crate::c::C;\npub struct D;"),
    ]);
    assert_eq!(circles, Vec::<String>::new());
}
