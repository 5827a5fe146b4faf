//! Links in Markdown that point into the repository: the file is there, and so is the heading.
//! Never looks at the network. Called by `main`.

use crate::tree::{File, Finding, Tree};

/// Checks every link of every Markdown file.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.is_markdown()) {
        for (line, text) in prose(&file.text) {
            for target in targets(&text) {
                if let Some(problem) = problem(tree, file, target) {
                    findings.push(Finding::new(&file.path, line, "link", problem));
                }
            }
        }
    }
}

/// What is wrong with a link from `file` to `target`; none where it resolves or leads outside.
fn problem(tree: &Tree, file: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let resolved = if path.is_empty() { file.path.clone() } else { resolve(folder, path)? };
    if !tree.has(&resolved) {
        return Some(format!("`{target}` leads nowhere: no file `{resolved}`"));
    }
    let other = tree.file(&resolved).filter(|other| other.is_markdown());
    let missing = other.is_some_and(|other| !headings(&other.text).iter().any(|h| h == heading));
    (!heading.is_empty() && missing).then(|| format!("`{resolved}` has no heading `#{heading}`"))
}

/// `path` seen from `folder`, with `.` and `..` taken out. Paths above the root stay wrong.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let from_root = path.starts_with('/');
    let start = folder.split('/').filter(|part| !part.is_empty() && !from_root);
    let mut parts: Vec<&str> = start.collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return Some(path.to_owned()),
            ".." => {}
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Lines outside code fences, with code spans blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let spans = line.split('`').enumerate();
            let kept = spans.map(|(n, span)| if n % 2 == 0 { span } else { "code" });
            lines.push((index + 1, kept.collect()));
        }
    }
    lines
}

/// The targets of `[text](target)` and `[name]: target` on a line of prose.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, mark) in line.match_indices("](") {
        let rest = &line[at + mark.len()..];
        // Up to the closing bracket, or to a title after a blank.
        let end = rest.find([')', ' ']).unwrap_or(rest.len());
        found.push(rest[..end].trim_matches(['<', '>']));
    }
    if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        found.extend(target.split_whitespace().next());
    }
    found
}

/// The anchors of a page's headings, as common Markdown viewers make them.
fn headings(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut anchors: Vec<String> = Vec::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced || !line.starts_with('#') {
            continue;
        }
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = title.chars().filter(kept).collect::<String>().replace(' ', "-");
        let twins = anchors.iter().filter(|other| **other == anchor).count();
        if twins > 0 {
            anchors.push(format!("{anchor}-{twins}"));
        }
        anchors.push(anchor);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn found(text: &str) -> Vec<(usize, String)> {
        let other = "# Two words: `x_y`!\n```\n# not one\n```\n## Again\n## Again\n";
        let mut findings = Vec::new();
        let files = [("docs/a.md", text), ("docs/b.md", other), ("comm/src/lib.rs", "\n")];
        check(&tree(&files), &mut findings);
        findings.into_iter().map(|finding| (finding.line, finding.text)).collect()
    }

    #[test]
    fn links_that_resolve_pass() {
        for link in [
            "[b](b.md)",
            "[b](./b.md#two-words-x_y \"title\")",
            "[b](b.md#again-1)",
            "[b](../comm/src/lib.rs#L3)",
            "[b](/comm/src)",
            "[b](..)",
            "[web](https://example.org/x.md) [mail](mailto:a@example.org)",
            "# Here\n[up](#here)",
            "[name]: b.md",
            "`[code](gone.md)`",
            "```\n[code](gone.md)\n```",
        ] {
            assert_eq!(found(link), [], "{link}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_caught() {
        for (line, link) in [
            (1, "[b](gone.md)"),
            (2, "\n[b](b.md) and [c](../b.md)"),
            (1, "[b](b.md#not-one)"),
            (1, "[here](#gone)"),
            (1, "[b](../../outside.md)"),
            (1, "[name]: gone.md"),
        ] {
            let lines: Vec<usize> = found(link).into_iter().map(|finding| finding.0).collect();
            assert_eq!(lines, [line], "{link}");
        }
    }
}
