//! Each crate has a `MAP.md` for newcomers: short, and naming only files that exist.
//! Called by `main`.

use crate::tree::{File, Finding, Tree};

/// A map is a page, so shorter than this many lines.
const LINES_BELOW: usize = 80;

/// Checks the map of every crate.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (folder, _) in tree.crates() {
        let path = format!("{folder}/MAP.md");
        let Some(map) = tree.file(&path) else {
            let text = "missing: say what the crate's objects, files, rules and tests are";
            findings.push(Finding::new(&path, 1, "map", text.to_owned()));
            continue;
        };
        let lines = map.text.lines().count();
        if lines >= LINES_BELOW {
            let text = format!("{lines} lines; a map has fewer than {LINES_BELOW}");
            findings.push(Finding::new(&path, lines, "map", text));
        }
        check_names(tree, folder, map, findings);
    }
}

/// Every Rust file that the map names in a code span is in the crate, or at the root.
fn check_names(tree: &Tree, folder: &str, map: &File, findings: &mut Vec<Finding>) {
    for (index, line) in map.text.lines().enumerate() {
        let spans = line.split('`').skip(1).step_by(2);
        let is_name = |span: &&str| {
            span.ends_with(".rs") && !span.starts_with('.') && !span.contains(['{', '*', ' ', '<'])
        };
        for span in spans.filter(is_name) {
            let places =
                [format!("{folder}/{span}"), format!("{folder}/src/{span}"), span.to_owned()];
            if !places.iter().any(|place| tree.has(place)) {
                let text = format!("names `{span}`, which is not in {folder}/ or {folder}/src/");
                findings.push(Finding::new(&map.path, index + 1, "map", text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn lines(map: Option<&str>) -> Vec<usize> {
        let mut files = vec![("a/Cargo.toml", "[package]\n"), ("a/src/b/mod.rs", "\n")];
        files.extend(map.map(|text| ("a/MAP.md", text)));
        let mut findings = Vec::new();
        check(&tree(&files), &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_missing_and_a_long_map_are_caught() {
        assert_eq!(lines(None), [1]);
        assert_eq!(lines(Some(&"x\n".repeat(LINES_BELOW - 1))), []);
        assert_eq!(lines(Some(&"x\n".repeat(LINES_BELOW))), [LINES_BELOW]);
    }

    #[test]
    fn a_file_that_is_not_there_is_caught() {
        assert_eq!(lines(Some("`b/mod.rs`, `src/b/mod.rs`, `a/src/b/mod.rs`, `{x,y}.rs`\n")), []);
        assert_eq!(lines(Some("one\nsee `b/gone.rs`\n")), [2]);
    }
}
