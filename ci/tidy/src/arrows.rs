//! Which crate may name which, and inside `comm` which module. Reads `Cargo.toml` files and paths
//! in code; cargo itself stops the use of a crate that is not declared, so the declared
//! dependencies are what matters and the paths give the line. The protocol crate names no `std`
//! either, but in tests. Called by `main`.

use crate::source::{self, Token};
use crate::tree::{File, Finding, Tree};

/// Each crate's folder, its name in code, and the names in code that it may use.
const CRATES: [(&str, &str, &[&str]); 10] = [
    ("kernels", "syncline_kernels", &[]),
    ("comm/proto", "syncline_proto", &["syncline_kernels"]),
    ("comm/sim", "syncline_sim", &["syncline_kernels", "syncline_proto"]),
    ("comm", "syncline_comm", &["syncline_kernels", "syncline_proto"]),
    ("sync", "syncline", COMM_AND_BELOW),
    ("bench", "syncline_bench", SYNC_AND_BELOW),
    ("examples", "syncline_examples", SYNC_AND_BELOW),
    ("launch", "syncline_launch", EVERYTHING_BELOW_LAUNCH),
    ("tests", "syncline_tests", EVERYTHING_BELOW_TESTS),
    ("ci/tidy", "syncline_tidy", &[]),
];
const COMM_AND_BELOW: &[&str] = &["syncline_kernels", "syncline_proto", "syncline_comm"];
const SYNC_AND_BELOW: &[&str] =
    &["syncline_kernels", "syncline_proto", "syncline_sim", "syncline_comm", "syncline"];
const EVERYTHING_BELOW_LAUNCH: &[&str] = &[
    "syncline_kernels",
    "syncline_proto",
    "syncline_comm",
    "syncline",
    "syncline_bench",
    "syncline_examples",
];
const EVERYTHING_BELOW_TESTS: &[&str] = &[
    "syncline_kernels",
    "syncline_proto",
    "syncline_sim",
    "syncline_comm",
    "syncline",
    "syncline_bench",
    "syncline_examples",
    "syncline_launch",
];

/// A module of `comm`, and the modules of `comm` that it must not name.
const MODULES: [(&str, &[&str]); 6] = [
    (
        "comm/src/memory",
        &["bootstrap", "communicator", "control", "engine", "offload", "transport"],
    ),
    ("comm/src/transport", &["bootstrap", "communicator", "control", "engine", "offload"]),
    ("comm/src/control", &["bootstrap", "communicator", "engine", "offload"]),
    ("comm/src/offload", &["bootstrap", "communicator", "control", "engine"]),
    ("comm/src/engine", &["bootstrap", "communicator"]),
    ("comm/src/bootstrap", &["communicator"]),
];

/// The crate that must not know there is a system under it.
const WITHOUT_STD: &str = "comm/proto/";

/// Checks every manifest and every Rust file.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (folder, manifest) in tree.crates() {
        let Some((_, own, allowed)) = CRATES.iter().find(|entry| entry.0 == folder) else {
            let text = "this crate has no place in ci/tidy/src/arrows.rs yet".to_owned();
            findings.push(Finding::new(&manifest.path, 1, "arrow", text));
            continue;
        };
        for (line, name) in dependencies(&manifest.text) {
            refuse(&manifest.path, line, &name, own, allowed, findings);
        }
    }
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let tokens = source::tokens(&file.code);
        if let Some((_, own, allowed)) = owner(&file.path) {
            for (at, token) in tokens.iter().enumerate() {
                // The sync layer's name is also a plain word; as a path, it is the crate.
                let is_path = tokens.get(at + 1).is_some_and(|next| next.text == "::");
                if token.text.starts_with("syncline_") || (token.text == "syncline" && is_path) {
                    refuse(&file.path, token.line, token.text, own, allowed, findings);
                }
            }
        }
        check_modules(file, &tokens, findings);
        if file.path.starts_with(WITHOUT_STD) && !source::is_test_file(&file.path) {
            check_std(file, &tokens, findings);
        }
    }
}

fn refuse(
    path: &str,
    line: usize,
    name: &str,
    own: &str,
    allowed: &[&str],
    findings: &mut Vec<Finding>,
) {
    let is_ours = CRATES.iter().any(|entry| entry.1 == name);
    if is_ours && name != own && !allowed.contains(&name) {
        let text = format!("{own} must not use {name}");
        findings.push(Finding::new(path, line, "arrow", text));
    }
}

/// The entry of the innermost crate that holds `path`.
fn owner(path: &str) -> Option<&'static (&'static str, &'static str, &'static [&'static str])> {
    let holds = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    CRATES.iter().filter(|entry| holds(entry.0)).max_by_key(|entry| entry.0.len())
}

/// Line and name in code of each dependency of ours that a manifest declares, of any kind.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        let mut name = None;
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            // The long form: [dependencies.NAME]
            name = section.split_once("dependencies.").map(|(_, name)| name);
        } else if section.ends_with("dependencies") {
            name = line.split(['=', '.', ' ']).next();
        }
        if let Some(name) = name.filter(|name| name.starts_with("syncline")) {
            found.push((index + 1, name.replace('-', "_")));
        }
    }
    found
}

fn check_modules(file: &File, tokens: &[Token<'_>], findings: &mut Vec<Finding>) {
    let inside = |module: &str| {
        file.path.strip_prefix(module).is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
    };
    let Some((module, banned)) = MODULES.iter().find(|entry| inside(entry.0)) else { return };
    for (line, name) in top_modules(tokens, depth(&file.path)) {
        if banned.contains(&name) {
            let own = module.trim_start_matches("comm/src/");
            let text = format!("`{own}` must not name `crate::{name}`");
            findings.push(Finding::new(&file.path, line, "arrow", text));
        }
    }
}

fn check_std(file: &File, tokens: &[Token<'_>], findings: &mut Vec<Finding>) {
    let tests = source::test_lines(tokens);
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "std") {
        let is_path = tokens.get(at + 1).is_some_and(|next| next.text == "::");
        let is_extern = at > 0 && tokens[at - 1].text == "crate";
        if (is_path || is_extern) && !tests.iter().any(|range| range.contains(&token.line)) {
            let text = "`std` in a crate that must not know there is a system";
            findings.push(Finding::new(&file.path, token.line, "arrow", text.to_owned()));
        }
    }
}

/// How many modules lie between the file and its crate's root: 2 for `transport/tcp/mod.rs`.
fn depth(path: &str) -> usize {
    let inner = path.rsplit_once("src/").map_or(path, |(_, inner)| inner);
    inner.split('/').count() - usize::from(inner.ends_with("/mod.rs"))
}

/// Line and name of each module at the crate's root that code names, by `crate::name`,
/// `crate::{name, other::x}`, or enough `super::` to get there from `depth` modules down.
fn top_modules<'a>(tokens: &[Token<'a>], depth: usize) -> Vec<(usize, &'a str)> {
    let is_path_mark = |at: usize| tokens.get(at).is_some_and(|token| token.text == "::");
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut supers = 0;
        while tokens[at].text == "super" && is_path_mark(at + 1) && at + 2 < tokens.len() {
            supers += 1;
            at += 2;
        }
        let from_root = tokens[at].text == "crate" && is_path_mark(at + 1);
        at += if from_root { 2 } else { 0 };
        let Some(first) = tokens.get(at) else { break };
        if from_root || supers >= depth.max(1) {
            if first.text == "{" {
                let group = &tokens[at..=source::closing(tokens, at)];
                found.extend(heads(group).map(|token| (token.line, token.text)));
            } else {
                found.push((first.line, first.text));
            }
        }
        at += 1;
    }
    found
}

/// The first token of each part of `{a::b, c::{d, e}}`: here `a` and `c`.
fn heads<'t, 'a>(group: &'t [Token<'a>]) -> impl Iterator<Item = &'t Token<'a>> {
    let mut depth = 0usize;
    let mut fresh = false;
    group.iter().filter(move |token| {
        let is_head = fresh && depth == 1 && token.text != "}";
        fresh = false;
        match token.text {
            "{" => {
                depth += 1;
                fresh = depth == 1;
            }
            "}" => depth -= 1,
            "," => fresh = true,
            _ => {}
        }
        is_head
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn texts(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check(&tree(&[(path, text)]), &mut findings);
        findings.into_iter().map(|finding| (finding.line, finding.text)).collect()
    }

    #[test]
    fn a_dependency_to_the_right_is_caught_in_each_form() {
        let refused = "syncline_proto must not use syncline_comm";
        for form in [
            "[dependencies]\nsyncline-comm.workspace = true",
            "[dev-dependencies]\nsyncline-comm = { path = \"..\" }",
            "[target.x]\n[dependencies.syncline-comm]",
        ] {
            let manifest = format!("[package]\n{form}\n");
            let found = texts("comm/proto/Cargo.toml", &manifest);
            assert_eq!(found, [(3, refused.to_owned())], "{form}");
        }
    }

    #[test]
    fn dependencies_to_the_left_pass_and_feature_names_are_no_dependencies() {
        let manifest = "[package]\n[features]\nsyncline-launch = []\n[dependencies]\n\
                        syncline-kernels.workspace = true\nsyncline-comm.workspace = true\n";
        assert_eq!(texts("sync/Cargo.toml", manifest), []);
    }

    #[test]
    fn a_crate_that_has_no_place_is_caught() {
        assert_eq!(texts("extra/Cargo.toml", "[package]\n").len(), 1);
        assert_eq!(texts("Cargo.toml", "[workspace]\n"), []);
    }

    #[test]
    fn a_path_to_the_right_is_caught_with_its_line() {
        let found = texts("comm/sim/src/lib.rs", "//! syncline_comm\nuse syncline_comm::Engine;\n");
        assert_eq!(found, [(2, "syncline_sim must not use syncline_comm".to_owned())]);
        let found = texts("comm/src/lib.rs", "let syncline = 1;\nuse syncline::Session;\n");
        assert_eq!(found, [(2, "syncline_comm must not use syncline".to_owned())]);
        assert_eq!(texts("tests/src/lib.rs", "use syncline_launch::run;\n"), []);
    }

    #[test]
    fn a_transport_that_names_the_engine_is_caught_in_each_form() {
        for form in [
            "use crate::engine::Engine;",
            "use crate::{time, engine::{Engine, route}};",
            "use super::super::engine;",
            "fn f() { crate::engine::step() }",
        ] {
            let found = texts("comm/src/transport/tcp/mod.rs", form);
            assert_eq!(found, [(1, "`transport` must not name `crate::engine`".to_owned())]);
        }
    }

    #[test]
    fn paths_that_only_look_alike_pass() {
        for form in [
            "use crate::{time::engine, memory::{engine, x}};",
            "use super::engine;",
            "use other::engine;",
            "// use crate::engine;",
        ] {
            assert_eq!(texts("comm/src/transport/tcp/mod.rs", form), [], "{form}");
        }
        assert_eq!(texts("comm/src/communicator.rs", "use crate::engine::Engine;"), []);
    }

    #[test]
    fn std_in_proto_is_caught_but_not_in_its_tests() {
        let text = "`std` in a crate that must not know there is a system".to_owned();
        let path = "comm/proto/src/lib.rs";
        assert_eq!(texts(path, "use core::fmt;\nuse std::fmt;\n"), [(2, text.clone())]);
        assert_eq!(texts(path, "extern crate std;\n"), [(1, text)]);
        assert_eq!(texts(path, "extern crate alloc; // std::fmt\nlet std = 1;\n"), []);
        assert_eq!(texts(path, "#[cfg(test)]\nmod tests {\n    extern crate std;\n}\n"), []);
        assert_eq!(texts("comm/proto/src/wire/tests.rs", "use std::fmt;\n"), []);
        assert_eq!(texts("comm/src/lib.rs", "use std::fmt;\n"), []);
    }
}
