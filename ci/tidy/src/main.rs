//! House rules, checked: `cargo tidy`.
//!
//! Reads the files that git tracks or would track, and prints one line per broken rule,
//! `path:line: rule: text`, then a count; exits 1 when there is any. `cargo tidy --bless` first
//! rewrites the one generated page, `docs/unsafe.md`. Depends on nothing but the standard library
//! and git, so that it is the first thing to run and needs no other crate built.

mod arrows;
mod files;
mod functions;
mod links;
mod manifests;
mod maps;
mod source;
mod tree;
mod unsafe_inventory;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tree::{Finding, Tree};

/// A rule: looks at the whole tree, adds what it finds.
type Rule = fn(&Tree, &mut Vec<Finding>);

const RULES: [Rule; 8] = [
    arrows::check,
    files::check,
    functions::check,
    links::check,
    manifests::check,
    maps::check,
    unsafe_inventory::check,
    words::check,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bless = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--bless"] => true,
        _ => {
            eprintln!("usage: cargo tidy [--bless]    --bless rewrites docs/unsafe.md first");
            return ExitCode::from(2);
        }
    };
    match run(bless) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("tidy: {message}");
            ExitCode::from(2)
        }
    }
}

/// Checks the repository around the current folder; returns the number of findings.
fn run(bless: bool) -> Result<usize, String> {
    let top = tree::git(Path::new("."), &["rev-parse", "--show-toplevel"])?;
    let root = PathBuf::from(top.trim_end());
    let mut tree = Tree::read(&root)?;
    if bless {
        let page = root.join(unsafe_inventory::PAGE);
        let written = std::fs::write(&page, unsafe_inventory::page(&tree));
        written.map_err(|error| format!("{}: {error}", page.display()))?;
        tree = Tree::read(&root)?;
    }
    let mut findings = Vec::new();
    for rule in RULES {
        rule(&tree, &mut findings);
    }
    findings.sort();
    for Finding { path, line, rule, text } in &findings {
        println!("{path}:{line}: {rule}: {text}");
    }
    println!("tidy: {} findings in {} files", findings.len(), tree.files.len());
    Ok(findings.len())
}
