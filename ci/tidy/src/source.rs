//! Rust text made safe to search: strings, characters and comments blanked out, then cut into
//! tokens. Owns the only lexer here. Never parses beyond tokens and matching brackets, so it is
//! wrong about macros that build code from pieces; every rule that uses it tolerates that.
//! Called by the rules that look inside Rust files.

use std::ops::Range;

/// One identifier, number or punctuation mark. `::` is one mark, everything else single.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// The token as written.
    pub(crate) text: &'a str,
    /// Line, from 1.
    pub(crate) line: usize,
}

/// `text` with every byte of a string, character literal or comment replaced by a space.
/// Newlines stay, so offsets and line numbers are those of `text`.
pub(crate) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(text, at);
        if end > at {
            out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
            at = end;
        } else {
            at += 1;
        }
    }
    String::from_utf8(out).expect("whole characters are blanked, never a part of one")
}

/// The tokens of blanked code.
pub(crate) fn tokens(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let end = if is_word(bytes[at]) {
            at + bytes[at..].iter().take_while(|byte| is_word(**byte)).count()
        } else if bytes[at..].starts_with(b"::") {
            at + 2
        } else {
            at + 1
        };
        if !bytes[at].is_ascii_whitespace() {
            found.push(Token { text: &code[at..end], line });
        }
        line += usize::from(bytes[at] == b'\n');
        at = end;
    }
    found
}

/// Index of the bracket that closes the one at `open`, or the last token where none does.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len().saturating_sub(1)
}

/// Whether the whole file is test code: in a `tests` or `benches` folder, or named `tests.rs`.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.ends_with("tests.rs")
        || path.split('/').rev().skip(1).any(|folder| folder == "tests" || folder == "benches")
}

/// Lines of the `#[cfg(test)] mod name { .. }` blocks.
pub(crate) fn test_lines(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at + 2 < tokens.len() {
        let is_attribute = tokens[at].text == "#" && tokens[at + 1].text == "[";
        if !(is_attribute && tokens[at + 2].text == "cfg") {
            at += 1;
            continue;
        }
        let mut end = closing(tokens, at + 1);
        let names_test = tokens[at..end].iter().any(|token| token.text == "test");
        let negated = tokens[at..end].iter().any(|token| token.text == "not");
        while tokens.get(end + 1).is_some_and(|token| token.text == "#") {
            end = closing(tokens, end + 2);
        }
        let item: Vec<&str> = tokens[end + 1..].iter().take(3).map(|token| token.text).collect();
        if names_test && !negated && matches!(item[..], ["mod", _, "{"]) {
            let last = closing(tokens, end + 3);
            ranges.push(tokens[at].line..tokens[last].line + 1);
            end = last;
        }
        at = end + 1;
    }
    ranges
}

/// Where the string, character or comment that starts at `at` ends; `at` where none starts.
fn literal_end(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    match rest {
        [b'/', b'/', ..] => at + rest.iter().take_while(|byte| **byte != b'\n').count(),
        [b'/', b'*', ..] => at + block_comment_len(rest),
        [b'"', ..] => at + quoted_len(rest, b'"'),
        [b'\'', b'\\', ..] => at + quoted_len(rest, b'\''),
        [b'\'', ..] => {
            let mut chars = text[at + 1..].chars();
            match (chars.next(), chars.next()) {
                (Some(letter), Some('\'')) => at + 2 + letter.len_utf8(),
                _ => at,
            }
        }
        [b'r', ..] => at + raw_string_len(text.as_bytes(), at),
        _ => at,
    }
}

/// Length of a nested `/* */` comment.
fn block_comment_len(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0usize);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => depth += 1,
            [b'*', b'/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of a quoted literal with back-slash escapes, both quotes included.
fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Length of `r"..."` or `r#"..."#` at `at`; 0 where the `r` starts no raw string.
fn raw_string_len(bytes: &[u8], at: usize) -> usize {
    let joined = at > 0 && is_word(bytes[at - 1]) && !matches!(bytes[at - 1], b'b' | b'c');
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = at + 1 + hashes;
    if joined || bytes.get(open) != Some(&b'"') {
        return 0;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = &bytes[open + 1..];
    let len = body.windows(close.len()).position(|window| window == close);
    len.map_or(bytes.len() - at, |len| open + 1 + len + close.len() - at)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blanked_and_lines_kept() {
        let text =
            "a \"un\\\"safe\" b // unsafe\nr#\"unsafe \" x\"# c /* u /* v */ w */ d\n'\\'' '{'";
        let code = blank(text);
        assert_eq!(code.len(), text.len());
        let words: Vec<&str> = tokens(&code).iter().map(|token| token.text).collect();
        assert_eq!(words, ["a", "b", "c", "d"]);
        assert_eq!(tokens(&code)[3].line, 2);
    }

    #[test]
    fn lifetimes_raw_identifiers_and_wide_characters_survive() {
        let code = blank("fn f<'a>(r#type: &'a str) { 'é'; for_r\"x\" }");
        let words: Vec<&str> = tokens(&code).iter().map(|token| token.text).collect();
        assert!(words.contains(&"type") && words.contains(&"str") && !words.contains(&"é"));
        assert!(words.contains(&"for_r"));
        assert_eq!(words.last(), Some(&"}"));
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_text() {
        for text in ["\"abc", "r#\"abc", "/* abc", "'\\"] {
            assert_eq!(blank(text).trim(), "", "{text}");
        }
    }

    #[test]
    fn test_modules_are_found_and_their_negation_is_not() {
        let text = "fn a() {}\n#[cfg(test)]\n#[rustfmt::skip]\nmod tests {\n fn b() {}\n}\n\
                    #[cfg(not(test))]\nmod real {\n}\n";
        assert_eq!(test_lines(&tokens(&blank(text))), vec![2..7]);
        assert!(
            is_test_file("comm/tests/loom_ring.rs") && is_test_file("comm/src/engine/tests.rs")
        );
        assert!(!is_test_file("tests.d/lib.rs") && !is_test_file("comm/src/lib.rs"));
    }
}
