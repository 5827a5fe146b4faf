//! The rule on function length: a function fits on one screen, signature and braces included.
//! Counts every line, so it is a little stricter than clippy's `too_many_lines`. Called by `main`.

use crate::source::{self, Token};
use crate::tree::{Finding, Tree};

/// Longest function, in lines from `fn` to the closing brace.
const MAX_LINES: usize = 70;

/// Checks every function of every Rust file, tests too.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let tokens = source::tokens(&file.code);
        for (index, pair) in tokens.windows(2).enumerate() {
            // `fn(u8)` is a type and has no name.
            if pair[0].text != "fn" || pair[1].text == "(" {
                continue;
            }
            let Some(open) = body(&tokens, index) else { continue };
            let lines = tokens[source::closing(&tokens, open)].line - pair[0].line + 1;
            if lines > MAX_LINES {
                let name = pair[1].text;
                let text = format!("`{name}` has {lines} lines, {MAX_LINES} allowed");
                findings.push(Finding::new(&file.path, pair[0].line, "function", text));
            }
        }
    }
}

/// Index of the brace that opens the body; none for a declaration without one.
fn body(tokens: &[Token<'_>], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match tokens.get(at)?.text {
            "{" => return Some(at),
            ";" | "}" => return None,
            "(" | "[" => at = source::closing(tokens, at),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn lines_found(text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check(&tree(&[("a.rs", text)]), &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_limit_passes_and_one_more_is_caught() {
        let function = |lines: usize| format!("\nfn long() {{{}}}\n", "\n".repeat(lines - 1));
        assert_eq!(lines_found(&function(MAX_LINES)), []);
        assert_eq!(lines_found(&function(MAX_LINES + 1)), [2]);
    }

    #[test]
    fn braces_in_literals_and_comments_do_not_count() {
        let filler = "\n".repeat(MAX_LINES);
        assert_eq!(lines_found(&format!("fn a() {{ '{{'; \"{{\"; /* {{ */ }}{filler}}}\n")), []);
        assert_eq!(lines_found(&format!("fn a() {{ '}}'; \"}}\";{filler}}}\n")), [1]);
    }

    #[test]
    fn declarations_types_and_array_lengths_have_no_body() {
        let filler = "\n".repeat(MAX_LINES);
        let declared = format!("trait T {{ fn a(&self) -> [u8; 4]; {filler} }}\n");
        assert_eq!(lines_found(&declared), []);
        assert_eq!(lines_found(&format!("struct S {{ f: fn(u8), {filler} }}\n")), []);
        assert_eq!(lines_found(&format!("const F: fn(u8) = |_| {{{filler}}};\n")), []);
    }
}
