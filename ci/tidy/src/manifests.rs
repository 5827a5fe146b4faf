//! Rules on `Cargo.toml`: every crate takes the workspace's lints and versions, and every
//! dependency is used and has its reason in the decision record. And on `clippy.toml`: a crate's
//! own holds all that the root's does. Called by `main`.

use crate::tree::{File, Finding, Tree};

/// Where each dependency's reason is.
const REASONS: &str = "docs/adr/0002-dependencies.md";

/// Checks the root manifest and each crate's.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (_, manifest) in tree.crates() {
        check_crate(manifest, findings);
    }
    check_clippy(tree, findings);
    let Some(root) = tree.file("Cargo.toml") else { return };
    let reasons = tree.file(REASONS).map_or("", |file| file.text.as_str());
    let used: Vec<&str> = tree
        .crates()
        .flat_map(|(_, manifest)| entries(&manifest.text, "dependencies"))
        .map(|(_, name)| name)
        .collect();
    for (line, name) in entries(&root.text, "workspace.dependencies") {
        let mut add = |text| findings.push(Finding::new(&root.path, line, "dependency", text));
        if !used.contains(&name) {
            add(format!("no crate uses `{name}`"));
        }
        if !name.starts_with("syncline") && !reasons.contains(&format!("| `{name}` |")) {
            add(format!("`{name}` has no line in {REASONS}"));
        }
    }
}

/// Clippy reads the nearest file only, so a nearer one must repeat the root's.
fn check_clippy(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(root) = tree.file("clippy.toml") else { return };
    for file in tree.files.iter().filter(|file| file.path.ends_with("/clippy.toml")) {
        for line in root.text.lines().filter(|line| !line.starts_with('#')) {
            if !file.text.lines().any(|other| other == line) {
                let text = format!("lacks a line of the root's: {line}");
                findings.push(Finding::new(&file.path, 1, "manifest", text));
            }
        }
    }
}

fn check_crate(manifest: &File, findings: &mut Vec<Finding>) {
    let mut add = |line, text| findings.push(Finding::new(&manifest.path, line, "manifest", text));
    if !manifest.text.contains("[lints]\nworkspace = true\n") {
        add(1, "does not take the workspace's lints: `[lints]`, `workspace = true`".to_owned());
    }
    for (line, name) in entries(&manifest.text, "dependencies") {
        let written = manifest.text.lines().nth(line - 1).unwrap_or_default();
        if !written.contains("workspace = true") {
            add(line, format!("`{name}`: the version belongs in the root's Cargo.toml"));
        }
    }
}

/// Line and key of each entry in the sections whose name ends in `section`.
fn entries<'a>(manifest: &'a str, section: &str) -> Vec<(usize, &'a str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with(section);
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            // A line of a list that goes on from the line above has no key.
            let key = line.split_once(['=', '.']).map(|(key, _)| key.trim());
            found.extend(key.filter(|key| !key.contains(['"', ' '])).map(|key| (index + 1, key)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn found(files: &[(&str, &str)]) -> Vec<(usize, &'static str)> {
        let mut findings = Vec::new();
        check(&tree(files), &mut findings);
        findings.iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn a_crate_without_the_lints_is_caught() {
        assert_eq!(found(&[("a/Cargo.toml", "[package]\n")]), [(1, "manifest")]);
        assert_eq!(found(&[("a/Cargo.toml", &format!("[package]\n{LINTS}"))]), []);
    }

    #[test]
    fn a_version_outside_the_root_is_caught() {
        let text = format!(
            "[package]\nversion = \"1\"\n[dev-dependencies]\na.workspace = true\n\
             b = {{ workspace = true, features = [\"x\"] }}\nc = \"1\"\n{LINTS}"
        );
        assert_eq!(found(&[("a/Cargo.toml", &text)]), [(6, "manifest")]);
    }

    #[test]
    fn a_dependency_without_a_reason_or_a_user_is_caught() {
        let root = (
            "Cargo.toml",
            "[workspace.dependencies]\n# ours\nsyncline = { path = \"sync\" }\nlibc = \"0.2\"\n\
             mio = { version = \"1\", features = [\n    \"net\",\n] }\n",
        );
        let user = format!(
            "[package]\n[dependencies]\nlibc.workspace = true\n[build-dependencies]\n\
             mio.workspace = true\n[target.x.dependencies]\nsyncline.workspace = true\n{LINTS}"
        );
        let reasons = (REASONS, "| `libc` | system calls |\n| `mio` | readiness |\n");
        let user = ("a/Cargo.toml", user.as_str());
        assert_eq!(found(&[root, user, reasons]), []);
        assert_eq!(found(&[root, reasons]).len(), 3);
        let reasons = (REASONS, "| `libc` | as `mio` |\n");
        assert_eq!(found(&[root, user, reasons]), [(5, "dependency")]);
    }

    #[test]
    fn a_clippy_file_that_lacks_a_line_of_the_roots_is_caught() {
        let root = ("clippy.toml", "# Root.\na = 1\nb = [\n    2,\n]\n");
        let whole = ("comm/clippy.toml", "a = 1\nb = [\n    2,\n    3,\n]\n");
        assert_eq!(found(&[root, whole]), []);
        assert_eq!(found(&[root, ("comm/clippy.toml", "a = 1\nb = [\n]\n")]), [(1, "manifest")]);
    }
}
