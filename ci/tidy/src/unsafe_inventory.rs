//! Where `unsafe` may stand, and the page that lists where it does.
//!
//! `unsafe` is allowed only in the modules of [`ALLOWED`]. Each file that uses it says in its head,
//! or in the head of the module above it, which invariant makes its blocks sound: one paragraph of
//! `//!` that names itself an invariant. `docs/unsafe.md` is written from those paragraphs by
//! `cargo tidy --bless`; the check fails when it is out of date. That each block argues its own
//! case in a `SAFETY` comment is clippy's to check. Called by `main`.

use std::fmt::Write as _;

use crate::source;
use crate::tree::{File, Finding, Tree};

/// Files, and folders ending in `/`, that may use `unsafe`, each with the reason.
const ALLOWED: [(&str, &str); 7] = [
    ("kernels/src/table.rs", "calls kernels through the table after the feature check"),
    ("kernels/src/cpu/", "SIMD intrinsics; elements seen as bytes"),
    ("comm/src/engine/slice.rs", "one system call that has no safe wrapper"),
    ("comm/src/memory/", "memory that the engine holds while work on it is in flight"),
    ("comm/src/transport/shm/", "memory mapped by several processes"),
    ("comm/src/offload/node/", "reduces from other ranks' mapped buffers"),
    ("launch/src/spawn.rs", "child set-up between fork and exec"),
];

/// Where [`ALLOWED`] is, for the finding that it allows too much.
const LIST: &str = "ci/tidy/src/unsafe_inventory.rs";

/// The generated page.
pub(crate) const PAGE: &str = "docs/unsafe.md";

/// Checks every use of `unsafe`, and that the page tells the truth.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let lines = unsafe_lines(file);
        let Some(first) = lines.first() else { continue };
        let Some(root) = allowed_root(&file.path) else {
            findings.extend(lines.iter().map(|line| {
                let text = "`unsafe` outside the modules listed in ci/tidy/src/unsafe_inventory.rs";
                Finding::new(&file.path, *line, "unsafe", text.to_owned())
            }));
            continue;
        };
        if invariant_of(tree, file, root).is_none() {
            let text = "no paragraph of the module's head (//!) states its invariant";
            findings.push(Finding::new(&file.path, *first, "invariant", text.to_owned()));
        }
    }
    check_list(tree, findings);
    let written = tree.file(PAGE).map(|file| file.text.as_str());
    if written != Some(page(tree).as_str()) {
        let text = "out of date; run `cargo tidy --bless` and read the difference";
        findings.push(Finding::new(PAGE, 1, "inventory", text.to_owned()));
    }
}

/// An entry that no `unsafe` needs any more goes, so that none comes back unseen.
fn check_list(tree: &Tree, findings: &mut Vec<Finding>) {
    if tree.file(LIST).is_none() {
        return;
    }
    let with_unsafe = tree.files.iter().filter(|file| !unsafe_lines(file).is_empty());
    let needed: Vec<&str> = with_unsafe.filter_map(|file| allowed_root(&file.path)).collect();
    for (root, _) in ALLOWED.iter().filter(|(root, _)| !needed.contains(root)) {
        let text = format!("allows `unsafe` in {root}, where there is none");
        findings.push(Finding::new(LIST, 1, "unsafe", text));
    }
}

/// The text of [`PAGE`]: where `unsafe` is, how often, and why it is sound.
pub(crate) fn page(tree: &Tree) -> String {
    let mut rows = String::new();
    let mut total = 0;
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let count = unsafe_lines(file).len();
        let Some(root) = allowed_root(&file.path).filter(|_| count > 0) else { continue };
        let invariant = invariant_of(tree, file, root).unwrap_or_else(|| "none stated".to_owned());
        let cell = invariant.replace('|', "\\|").replace("[`", "`").replace("`]", "`");
        writeln!(rows, "| `{}` | {count} | {cell} |", file.path).expect("a String takes all");
        total += count;
    }
    format!(
        "# Where `unsafe` is\n\n\
         Written by `cargo tidy --bless` from the heads of modules; edit those, not this page.\n\
         A use is a block, a function, an implementation or an attribute marked `unsafe`. Which\n\
         modules may have any is listed, with reasons, in `ci/tidy/src/unsafe_inventory.rs`.\n\n\
         | file | uses | invariant |\n|---|---|---|\n{rows}\nUses in all: {total}.\n"
    )
}

fn unsafe_lines(file: &File) -> Vec<usize> {
    let tokens = source::tokens(&file.code);
    tokens.iter().filter(|token| token.text == "unsafe").map(|token| token.line).collect()
}

/// The entry of [`ALLOWED`] that covers `path`.
fn allowed_root(path: &str) -> Option<&'static str> {
    let covers = |root: &str| path == root || (root.ends_with('/') && path.starts_with(root));
    ALLOWED.iter().map(|(root, _)| *root).find(|root| covers(root))
}

/// The invariant in the file's own head, or in that of a `mod.rs` above it inside `root`.
fn invariant_of(tree: &Tree, file: &File, root: &str) -> Option<String> {
    if let Some(paragraph) = invariant(&file.text) {
        return Some(paragraph);
    }
    let mut folder = file.path.as_str();
    while let Some((above, _)) = folder.rsplit_once('/') {
        folder = above;
        if folder.len() + 1 < root.len() {
            return None;
        }
        let path = format!("{folder}/mod.rs");
        if let Some(paragraph) = tree.file(&path).and_then(|module| invariant(&module.text)) {
            return Some(format!("As `{path}`: {paragraph}"));
        }
    }
    None
}

/// The first paragraph of the `//!` head that speaks of an invariant, on one line. Under a heading
/// that does, the paragraph after it.
fn invariant(text: &str) -> Option<String> {
    let head = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let head = head.collect::<Vec<_>>().join("\n");
    let mut paragraphs = head.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    let found = paragraphs.find(|paragraph| paragraph.to_lowercase().contains("invariant"))?;
    if found.starts_with('#') { paragraphs.next() } else { Some(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const HEAD: &str = "//! Kernels.\n//!\n//! Invariant: the feature\n//! was `a|b`.\n";
    const BLOCK: &str = "fn f() { unsafe { g() } }\n";

    fn found(files: &[(&str, &str)]) -> Vec<(String, &'static str)> {
        let mut findings = Vec::new();
        let mut files = files.to_vec();
        let text = page(&tree(&files));
        files.push((PAGE, &text));
        check(&tree(&files), &mut findings);
        findings.into_iter().map(|finding| (finding.path, finding.rule)).collect()
    }

    #[test]
    fn unsafe_outside_the_list_is_caught() {
        let sync = ("sync/src/lib.rs", BLOCK);
        assert_eq!(found(&[sync]), [("sync/src/lib.rs".to_owned(), "unsafe")]);
        let harmless = "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";\n";
        assert_eq!(found(&[("sync/src/lib.rs", harmless)]), []);
        let twin = ("kernels/src/table.rs.rs", BLOCK);
        assert_eq!(found(&[twin]), [("kernels/src/table.rs.rs".to_owned(), "unsafe")]);
    }

    #[test]
    fn a_module_without_an_invariant_is_caught() {
        let path = "kernels/src/cpu/avx2.rs";
        assert_eq!(found(&[(path, BLOCK)]), [(path.to_owned(), "invariant")]);
        let with_head = format!("{HEAD}{BLOCK}");
        assert_eq!(found(&[(path, &with_head)]), []);
        assert_eq!(found(&[(path, BLOCK), ("kernels/src/cpu/mod.rs", HEAD)]), []);
        let above = ("kernels/src/mod.rs", HEAD);
        assert_eq!(found(&[(path, BLOCK), above]), [(path.to_owned(), "invariant")]);
    }

    #[test]
    fn an_entry_that_nothing_needs_is_caught() {
        let with_head = format!("{HEAD}{BLOCK}");
        let mut files: Vec<(String, &str)> = vec![(LIST.to_owned(), "\n")];
        for (root, _) in ALLOWED {
            let name = if root.ends_with('/') { "x.rs" } else { "" };
            files.push((format!("{root}{name}"), &with_head));
        }
        let mut files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
        assert_eq!(found(&files), []);
        files.pop();
        assert_eq!(found(&files), [(LIST.to_owned(), "unsafe")]);
    }

    #[test]
    fn a_heading_points_at_the_paragraph_after_it() {
        let text = "//! A.\n//!\n//! # Invariants\n//!\n//! One owner.\n\nfn f() {}\n";
        assert_eq!(invariant(text).as_deref(), Some("One owner."));
        assert_eq!(invariant("//! A.\nfn f() {}\n//! invariant\n"), None);
    }

    #[test]
    fn a_stale_page_is_caught() {
        let with_head = format!("{HEAD}{BLOCK}");
        let kernel = ("kernels/src/cpu/avx2.rs", with_head.as_str());
        let fresh = page(&tree(&[kernel]));
        assert!(
            fresh.contains(
                "| `kernels/src/cpu/avx2.rs` | 1 | Invariant: the feature was `a\\|b`. |"
            )
        );
        let stale = fresh.replace("| 1 |", "| 2 |");
        for files in [&[kernel][..], &[kernel, (PAGE, "")], &[kernel, (PAGE, &stale)]] {
            let mut findings = Vec::new();
            check(&tree(files), &mut findings);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!((findings[0].path.as_str(), findings[0].rule), (PAGE, "inventory"));
        }
    }
}
