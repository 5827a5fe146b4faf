//! Rules on whole files and single lines: length, width, blanks at the end, leftovers.
//! Never looks at meaning. Called by `main`.

use crate::source;
use crate::tree::{File, Finding, Tree};

/// Longest file, in lines.
const MAX_LINES: usize = 600;
/// Widest line, in characters.
const MAX_COLUMNS: usize = 100;
/// Macros that mark work not done, or a look inside that was left in.
const LEFTOVERS: [&str; 3] = ["dbg", "todo", "unimplemented"];

/// Checks every text file.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        check_lines(file, findings);
        if file.is_rust() {
            check_leftovers(file, findings);
        }
    }
}

fn check_lines(file: &File, findings: &mut Vec<Finding>) {
    let mut add = |line, rule, text| findings.push(Finding::new(&file.path, line, rule, text));
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        add(lines, "length", format!("{lines} lines, {MAX_LINES} allowed; split by what it owns"));
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        add(lines, "newline", "the last line has no newline".to_owned());
    }
    let mut fenced = false;
    for (index, line) in file.text.split('\n').enumerate() {
        fenced ^= file.is_markdown() && line.trim_start().starts_with("```");
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && !may_be_wide(file, line, fenced) {
            add(index + 1, "columns", format!("{columns} columns, {MAX_COLUMNS} allowed"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            add(index + 1, "blank", "blanks or a carriage return at the line's end".to_owned());
        }
        if file.is_rust() && line.contains('\t') {
            add(index + 1, "tab", "a tab; write \\t in a string, spaces elsewhere".to_owned());
        }
    }
}

/// What cannot be broken: an address, a table's row in Markdown or in a doc comment, output shown
/// in a fence, and TOML, where an inline table must be one line.
fn may_be_wide(file: &File, line: &str, fenced: bool) -> bool {
    let start = line.trim_start();
    let prose = start.strip_prefix("//!").or_else(|| start.strip_prefix("///")).unwrap_or(start);
    let table = prose.trim_start().starts_with('|') && (file.is_markdown() || prose != start);
    let address = line.contains("https://") || line.contains("http://");
    table || fenced || address || file.path.ends_with(".toml")
}

fn check_leftovers(file: &File, findings: &mut Vec<Finding>) {
    for pair in source::tokens(&file.code).windows(2) {
        if pair[1].text == "!" && LEFTOVERS.contains(&pair[0].text) {
            let text = format!("`{}!` left in the code", pair[0].text);
            findings.push(Finding::new(&file.path, pair[0].line, "leftover", text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let mut findings = Vec::new();
        check(&tree(&[(path, text)]), &mut findings);
        findings.iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn a_clean_file_has_no_finding() {
        let wide = "é".repeat(MAX_COLUMNS);
        let text = format!("//! Fine.\n// {}\n", &wide[..2 * 97]);
        assert_eq!(rules("a.rs", &text), []);
        assert_eq!(rules("a.rs", ""), []);
    }

    #[test]
    fn one_line_too_many_is_caught() {
        assert_eq!(rules("a.rs", &"\n".repeat(MAX_LINES)), []);
        assert_eq!(rules("a.rs", &"\n".repeat(MAX_LINES + 1)), [(MAX_LINES + 1, "length")]);
    }

    #[test]
    fn one_column_too_many_is_caught_but_not_in_tables_fences_and_addresses() {
        let wide = "x".repeat(MAX_COLUMNS + 1);
        assert_eq!(rules("a.rs", &format!("\n{wide}\n")), [(2, "columns")]);
        assert_eq!(rules("a.md", &format!("{wide}\n")), [(1, "columns")]);
        assert_eq!(rules("a.md", &format!("| {wide} |\n")), []);
        assert_eq!(rules("a.md", &format!("```\n{wide}\n```\n{wide}\n")), [(4, "columns")]);
        assert_eq!(rules("a.rs", &format!("//! | {wide} |\n")), []);
        assert_eq!(rules("a.rs", &format!("| {wide} |\n")), [(1, "columns")]);
        assert_eq!(rules("a.sh", &format!("# https://{wide}\n# {wide}\n")), [(2, "columns")]);
        assert_eq!(rules("a.toml", &format!("a = {{ {wide} }}\n")), []);
    }

    #[test]
    fn blanks_tabs_and_a_missing_newline_are_caught() {
        assert_eq!(rules("a.sh", "x \ny\n"), [(1, "blank")]);
        assert_eq!(rules("a.sh", "x\r\n"), [(1, "blank")]);
        assert_eq!(rules("a.rs", "\tx\n"), [(1, "tab")]);
        assert_eq!(rules("a.toml", "x = 1"), [(1, "newline")]);
    }

    #[test]
    fn leftover_macros_are_caught_and_their_names_in_text_are_not() {
        assert_eq!(rules("a.rs", "fn f() {\n    todo!()\n}\n"), [(2, "leftover")]);
        assert_eq!(rules("a.rs", "fn f() {\n    dbg!(1);\n}\n"), [(2, "leftover")]);
        assert_eq!(rules("a.rs", "// todo!\nlet todo = \"todo!\";\n"), []);
    }
}
