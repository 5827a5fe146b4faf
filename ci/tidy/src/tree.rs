//! The files that the rules look at: what git tracks plus what it does not ignore, as text.
//! Owns reading; never judges and never writes. Called by `main` once, and by each rule's tests
//! with a tree made of literals.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the repository's root.
    pub(crate) path: String,
    /// Line, from 1; 1 where the whole file is meant.
    pub(crate) line: usize,
    /// Name of the rule, one word.
    pub(crate) rule: &'static str,
    /// What is wrong, and what to do about it where that is not plain.
    pub(crate) text: String,
}

impl Finding {
    /// A finding at `path:line`.
    pub(crate) fn new(path: &str, line: usize, rule: &'static str, text: String) -> Self {
        Self { path: path.to_owned(), line, rule, text }
    }
}

/// A file whose text the rules can read.
#[derive(Debug)]
pub(crate) struct File {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    /// The file as written.
    pub(crate) text: String,
    /// For Rust, the text with literals and comments blanked; empty otherwise.
    pub(crate) code: String,
}

impl File {
    /// Whether the file is Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the file is Markdown.
    pub(crate) fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }
}

/// All files of the repository.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Files with readable text, sorted by path.
    pub(crate) files: Vec<File>,
    /// Every path, text or not, and every folder on the way to one.
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads the repository at `root`.
    ///
    /// # Errors
    /// A message when git cannot list the files or a text file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let list = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        let mut tree = Self::default();
        for path in list.split('\0').filter(|path| !path.is_empty()) {
            let full = root.join(path);
            // Listed but gone: deleted and not yet committed. A link's target is listed itself.
            if !full.is_file() || full.is_symlink() {
                continue;
            }
            if is_text(path) {
                let text = std::fs::read_to_string(&full).map_err(|e| format!("{path}: {e}"))?;
                tree.add(path, text);
            } else {
                tree.add_path(path);
            }
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// The file at `path`, if it is there and text.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether a file or folder is at `path`; the root is the empty path.
    pub(crate) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    /// The folders that hold a `Cargo.toml` with a package, with that file.
    pub(crate) fn crates(&self) -> impl Iterator<Item = (&str, &File)> {
        self.files.iter().filter_map(|file| {
            let folder = file.path.strip_suffix("/Cargo.toml")?;
            file.text.lines().any(|line| line.trim() == "[package]").then_some((folder, file))
        })
    }

    fn add(&mut self, path: &str, text: String) {
        self.add_path(path);
        let is_rust = path.ends_with(".rs");
        let code = if is_rust { crate::source::blank(&text) } else { String::new() };
        self.files.push(File { path: path.to_owned(), text, code });
    }

    fn add_path(&mut self, path: &str) {
        for (slash, _) in path.match_indices('/') {
            self.paths.insert(path[..slash].to_owned());
        }
        self.paths.insert(path.to_owned());
    }
}

/// The output of one git command run in `root`.
///
/// # Errors
/// A message when git is missing, fails, or prints what is not UTF-8.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").current_dir(root).args(arguments).output();
    let output = output.map_err(|error| format!("git did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("git failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("git printed no UTF-8: {error}"))
}

fn is_text(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("rs" | "md" | "toml" | "sh")) || path == ".ci/run"
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree of literal files; a path ending in none of the text endings has no text.
    pub(crate) fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            if is_text(path) {
                tree.add(path, (*text).to_owned());
            } else {
                tree.add_path(path);
            }
        }
        tree
    }

    #[test]
    fn folders_on_the_way_exist_and_crates_are_those_with_a_package() {
        let tree = tree(&[
            ("Cargo.toml", "[workspace]\n"),
            ("a/b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("a/data.bin", ""),
        ]);
        assert!(tree.has("a") && tree.has("a/b") && tree.has("a/data.bin") && tree.has(""));
        assert!(!tree.has("a/c"));
        assert_eq!(tree.crates().map(|(folder, _)| folder).collect::<Vec<_>>(), ["a/b"]);
        assert!(tree.file("a/data.bin").is_none());
    }

    #[test]
    fn git_errors_are_messages() {
        let message = git(Path::new("/"), &["no-such-command"]).expect_err("no such command");
        assert!(message.contains("no-such-command"), "{message}");
    }
}
