//! The tests that every policy has to pass, and what docs/extend.md shows.

use seekway_conformance::{Policy, check};
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/extend.md");

#[test]
fn it_is_a_policy() {
    for turn in ["", "turn=1", "turn=1000"] {
        check(&Policy::new(&own_policy::ENTRY, turn));
    }
}

#[test]
fn the_page_shows_this_crate() {
    assert!(PAGE.contains(include_str!("../src/main.rs")));
    let (_, dependencies) =
        include_str!("../Cargo.toml").split_once("[dependencies]").expect("it has some");
    assert!(PAGE.contains(dependencies.split("\n#").next().expect("a part").trim_end()));
    let (_, test) = include_str!("own.rs").split_once("#[test]").expect("the first");
    assert!(PAGE.contains(test.split("\n\n").next().expect("a part")));
}

#[test]
fn the_commands_of_the_page_know_the_policy() {
    let page = PAGE.replace("\\\n", " ");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("cargo run -- ")).collect();
    for command in &commands {
        let mut program = Command::new(env!("CARGO_BIN_EXE_own_policy"));
        let output = program.args(command.split_whitespace()).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("own"), "{command}:\n{output:?}");
    }
    assert_eq!(commands.len(), 2);
}
