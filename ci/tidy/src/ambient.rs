//! What code may reach outside of its arguments for: `std`, clocks, sleep, the environment, and
//! the order of a hash table.
//!
//! `comm/proto` uses no `std` at all. In it, `comm`, `comm/sim` and `sync`, time and configuration
//! are arguments, so that the simulator can replay a run; the few files that fetch them are named
//! here. Test code is free. Called by `main`.

use crate::source;
use crate::tree::{Finding, Tree};

/// Folders in which the rules of [`BANNED`] hold.
const PURE: [&str; 2] = ["comm/", "sync/"];

/// A path in code, the files that may use it, and what to do instead.
const BANNED: [(&[&str], &[&str], &str); 6] = [
    (&["Instant", "::", "now"], &["comm/src/time.rs"], "take `now` as an argument"),
    (&["SystemTime", "::", "now"], &["comm/src/time.rs"], "take `now` as an argument"),
    (&["thread", "::", "sleep"], &[], "wait on something, with a deadline"),
    (&["env", "::", "var"], ENVIRONMENT, "let config.rs or env.rs read it"),
    (&["env", "::", "var_os"], ENVIRONMENT, "let config.rs or env.rs read it"),
    (&["env", "::", "vars"], ENVIRONMENT, "let config.rs or env.rs read it"),
];
const ENVIRONMENT: &[&str] = &["comm/src/config.rs", "comm/src/env.rs"];

/// Types whose order differs from run to run.
const UNORDERED: [&str; 2] = ["HashMap", "HashSet"];

/// Checks every Rust file in the folders where the rules hold.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let pure = |path: &str| PURE.iter().any(|folder| path.starts_with(folder));
    for file in tree.files.iter().filter(|file| file.is_rust() && pure(&file.path)) {
        if source::is_test_file(&file.path) {
            continue;
        }
        let tokens = source::tokens(&file.code);
        let tests = source::test_lines(&tokens);
        let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
        for (at, token) in tokens.iter().enumerate() {
            if tests.iter().any(|range| range.contains(&token.line)) {
                continue;
            }
            let mut add =
                |text| findings.push(Finding::new(&file.path, token.line, "ambient", text));
            for (path, named, instead) in &BANNED {
                if texts[at..].starts_with(path) && !named.contains(&file.path.as_str()) {
                    add(format!("`{}` here; {instead}", path.concat()));
                }
            }
            if UNORDERED.contains(&token.text) {
                add(format!("`{}`: its order leaks; use a BTreeMap or BTreeSet", token.text));
            }
            let is_std = token.text == "std" && texts.get(at + 1) == Some(&"::");
            let is_extern = texts[at..].starts_with(&["extern", "crate", "std"]);
            if file.path.starts_with("comm/proto/") && (is_std || is_extern) {
                add("`std` in a crate that must not know there is a system".to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check(&tree(&[(path, text)]), &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_reach_outside_is_caught() {
        for text in [
            "fn f() { std::time::Instant::now(); }",
            "fn f() { SystemTime::now(); }",
            "fn f() { thread::sleep(pause); }",
            "fn f() { env::var(NAME); }",
            "fn f() { std::env::vars_os(); env::vars(); }",
            "use std::collections::{BTreeMap, HashMap};",
        ] {
            assert_eq!(lines("sync/src/lib.rs", text), [1], "{text}");
            assert_eq!(lines("comm/src/engine/mod.rs", text), [1], "{text}");
            assert_eq!(lines("launch/src/main.rs", text), [], "{text}");
        }
    }

    #[test]
    fn the_named_files_and_test_code_are_free() {
        let clock = "fn now() { Instant::now(); }";
        assert_eq!(lines("comm/src/time.rs", clock), []);
        assert_eq!(lines("comm/src/env.rs", clock), [1]);
        assert_eq!(lines("comm/src/env.rs", "fn f() { env::var(NAME); }"), []);
        assert_eq!(lines("comm/src/engine/tests.rs", clock), []);
        let inline = format!("#[cfg(test)]\nmod tests {{\n{clock}\n}}\n{clock}\n");
        assert_eq!(lines("comm/src/engine/mod.rs", &inline), [5]);
    }

    #[test]
    fn std_in_proto_is_caught() {
        assert_eq!(lines("comm/proto/src/lib.rs", "use core::fmt;\nuse std::fmt;\n"), [2]);
        assert_eq!(lines("comm/proto/src/lib.rs", "extern crate std;\n"), [1]);
        assert_eq!(lines("comm/proto/src/lib.rs", "extern crate alloc; // std::fmt\n"), []);
        assert_eq!(lines("comm/src/lib.rs", "use std::fmt;\n"), []);
    }
}
