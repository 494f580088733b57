//! No files and no folders of a crate import each other in a circle: each knows only what lies
//! below it.
//!
//! A file names another by a path that begins with `crate`, `super`, `self` or a module in its
//! folder, in a `use` or where it is needed; it names the file of the longest part of the path that
//! is a module. Test code does not count.
//!
//! - **By file**: a parent that names its own children is the tree, and no import.
//! - **By folder**: the files of a folder stand together, the file of its own name among them, and
//!   import what its folders have, each with all below it; or are imported by them, and not both.
//!   A parent that only re-exports what its children have imports nothing. At the top of a crate
//!   each file stands for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path below the crate: `["reactor", "core"]`. The crate's root is empty.
type Module = Vec<String>;
/// The modules that each module imports, each with one path by which it does.
type Imports = BTreeMap<Module, BTreeMap<Module, String>>;

/// Circles of folders that are left to be mended: crate, and the folders. No other may come.
const LEFT: [(&str, &str); 1] =
    [("guestd", "migrate migrate/loads migrate/preemption migrate/tasks")];

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles = circles_of_crates(|files| find_circles(&imports(files)));
    let texts: Vec<String> = circles.into_iter().map(|(name, c)| named(&name, &c)).collect();
    assert!(texts.is_empty(), "files import each other in circles:\n{}", texts.join("\n"));
}

#[test]
fn no_folders_import_each_other_in_a_circle() {
    let mut left: BTreeSet<(&str, &str)> = LEFT.into();
    let circles =
        circles_of_crates(|files| folder_imports(files).values().flat_map(find_circles).collect());
    let mut texts = Vec::new();
    for (name, circle) in circles {
        let modules = circle.modules.join(" ");
        match left.iter().find(|known| **known == (name.as_str(), modules.as_str())).copied() {
            Some(known) => _ = left.remove(&known),
            None => texts.push(named(&name, &circle)),
        }
    }
    assert!(texts.is_empty(), "folders import each other in circles:\n{}", texts.join("\n"));
    assert!(left.is_empty(), "mended, and to be taken from the list: {left:?}");
}

fn named(name: &str, circle: &Circle) -> String {
    format!("{name}: {}\n{}", circle.modules.join(" "), circle.text)
}

/// The circles of all crates, each with the crate's name.
fn circles_of_crates(
    find: impl Fn(&BTreeMap<Module, String>) -> Vec<Circle>,
) -> Vec<(String, Circle)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
    let mut circles = Vec::new();
    for entry in fs::read_dir(crates).expect("the folder of the crates") {
        let entry = entry.expect("a crate");
        let mut files = BTreeMap::new();
        read_folder(&entry.path().join("src"), &mut Vec::new(), &mut files);
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        circles.extend(find(&files).into_iter().map(|circle| (name.clone(), circle)));
    }
    circles
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

/// Collects the imports of each file that is no test's.
fn imports(files: &BTreeMap<Module, String>) -> Imports {
    let mut imports = Imports::new();
    for import in all_imports(&code_of(files)) {
        let Import { from, to, path, .. } = import;
        let found = imports.entry(from.clone()).or_default();
        if !to.starts_with(&from) {
            found.entry(to).or_insert(path);
        }
    }
    closed(imports)
}

/// Collects the imports between the files and folders of each folder.
fn folder_imports(files: &BTreeMap<Module, String>) -> BTreeMap<Module, Imports> {
    let mut folders: BTreeMap<Module, Imports> = BTreeMap::new();
    let code = code_of(files);
    let parents: BTreeSet<Module> = modules(&code).into_iter().map(above).collect();
    // A file with a folder of its own is in that.
    let folder = |m: &Module| if parents.contains(m) { m.clone() } else { above(m) };
    for Import { from, to, path, is_reexport } in &all_imports(&code) {
        let (a, b) = (folder(from), folder(to));
        let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let (from, to) = match shared {
            0 => (from[..1.min(from.len())].to_vec(), to[..1].to_vec()),
            _ => [&a, &b].map(|m| m[..m.len().min(shared + 1)].to_vec()).into(),
        };
        if from != to && !from.is_empty() && !is_reexport {
            let imports = folders.entry(a[..shared].to_vec()).or_default();
            imports.entry(from).or_default().entry(to).or_insert(path.clone());
        }
    }
    folders.into_iter().map(|(folder, imports)| (folder, closed(imports))).collect()
}

fn above(module: &Module) -> Module {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// With an entry for each that is imported.
fn closed(mut imports: Imports) -> Imports {
    let imported: Vec<Module> = imports.values().flat_map(|to| to.keys().cloned()).collect();
    imported.into_iter().for_each(|module| _ = imports.entry(module).or_default());
    imports
}

/// A path by which a module names another.
struct Import {
    from: Module,
    to: Module,
    path: String,
    is_reexport: bool,
}

fn code_of(files: &BTreeMap<Module, String>) -> BTreeMap<Module, String> {
    files.iter().map(|(module, text)| (module.clone(), code(text))).collect()
}

/// Those that are no tests'.
fn modules(code: &BTreeMap<Module, String>) -> BTreeSet<&Module> {
    let is_of_tests = |module: &Module| {
        (1..=module.len()).any(|n| {
            let (parent, name) = (module[..n - 1].to_vec(), &module[n - 1]);
            let declared = format!("#[cfg(test)]\nmod {name};");
            name == "tests" || code.get(&parent).is_some_and(|code| code.contains(&declared))
        })
    };
    code.keys().filter(|module| !is_of_tests(module)).collect()
}

fn all_imports(code: &BTreeMap<Module, String>) -> Vec<Import> {
    let modules = modules(code);
    let mut imports = Vec::new();
    for &from in &modules {
        let children: BTreeSet<&str> = modules
            .iter()
            .filter(|m| m.len() == from.len() + 1 && m.starts_with(from))
            .filter_map(|m| m.last().map(String::as_str))
            .collect();
        for (path, is_reexport) in paths(&code[from], &children) {
            let Some(to) = target(&modules, from, &path) else { continue };
            if to != *from && !to.is_empty() {
                imports.push(Import { from: from.clone(), to, path, is_reexport });
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

/// All paths of the code that begin with `crate`, `super`, `self` or a child's name, and whether
/// they are re-exports; trees in braces are spread.
fn paths(code: &str, children: &BTreeSet<&str>) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = &code[..at];
        let first = before.rfind(|c: char| !is_of_name(c)).map_or(0, |n| n + 1);
        // Not in the middle of a path: `super::super` begins once.
        let begins = !before[..first].ends_with("::");
        let name = &before[first..];
        if begins && (["crate", "super", "self"].contains(&name) || children.contains(name)) {
            let mut paths = Vec::new();
            spread(&code[first..], "", &mut paths);
            let is_reexport = is_reexport(&before[..first]);
            all.extend(paths.into_iter().map(|path| (path, is_reexport)));
        }
    }
    all
}

/// Is what comes next of a `pub use`, or a `pub(crate) use`?
fn is_reexport(before: &str) -> bool {
    let before = before.trim_end().strip_suffix("use").unwrap_or_default().trim_end();
    before.ends_with("pub") || before.ends_with(')')
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

/// Modules that import each other, and as text: who imports whom, by which path.
struct Circle {
    modules: Vec<String>,
    text: String,
}

fn find_circles(imports: &Imports) -> Vec<Circle> {
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
        let modules = group.iter().map(|module| module.join("/")).collect();
        circles.push(Circle { modules, text });
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

/// A crate of these files.
fn files(files: &[(&str, &str)]) -> BTreeMap<Module, String> {
    let file = |(path, text): &(&str, &str)| {
        let module = path.split('/').filter(|s| !s.is_empty()).map(str::to_string);
        (module.collect(), (*text).to_string())
    };
    files.iter().map(file).collect()
}

/// The circles of a crate of these files.
fn circles_of(of: &[(&str, &str)]) -> Vec<String> {
    find_circles(&imports(&files(of))).into_iter().map(|circle| circle.text).collect()
}

/// The circles of its folders.
fn folders_of(of: &[(&str, &str)]) -> Vec<String> {
    let circles = folder_imports(&files(of)).values().flat_map(find_circles).collect::<Vec<_>>();
    circles.into_iter().map(|circle| circle.modules.join(" ")).collect()
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

#[test]
fn a_circle_that_no_file_makes_is_one_of_folders() {
    let circle = [
        // No file of it imports what imports it.
        ("control", "mod report;\nuse crate::daemon::Host;"),
        ("control/report", "pub struct Report;"),
        ("daemon", "mod clients;\npub struct Host;"),
        ("daemon/clients", "use crate::control::report::Report;"),
    ];
    assert_eq!(circles_of(&circle), [""; 0]);
    assert_eq!(folders_of(&circle), ["control daemon"]);
    // Below another folder, too.
    let below =
        circle.map(|(path, text)| (format!("a/{path}"), text.replace("crate::", "crate::a::")));
    let below: Vec<(&str, &str)> =
        below.iter().map(|(path, text)| (&path[..], &text[..])).collect();
    assert_eq!(folders_of(&below), ["a/control a/daemon"]);
}

#[test]
fn a_parent_imports_what_it_does_not_only_re_export() {
    let parent = |text| [("a", text), ("a/b", "mod c;"), ("a/b/c", "use super::super::A;")];
    assert_eq!(folders_of(&parent("mod b;\npub struct A;\nuse b::c::C;")), ["a a/b"]);
    assert_eq!(folders_of(&parent("mod b;\npub struct A;\nfn f() -> b::C {}")), ["a a/b"]);
    for text in ["mod b;\npub struct A;\npub use b::C;", "mod b;\npub(crate) use self::b::{C, c};"]
    {
        assert_eq!(folders_of(&parent(text)), [""; 0]);
    }
}
