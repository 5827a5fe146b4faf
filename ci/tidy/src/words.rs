//! One word per notion: names of types, variants, fields and files that use a word which
//! docs/glossary.md replaces by another; and functions named `get_*`. Prose is free, and so are
//! names that others chose (the variables of other launchers, say, are strings). Called by `main`.

use crate::source::{self, Token};
use crate::tree::{Finding, Tree};

/// A word or run of words that no name contains, what to say instead, and where it holds: paths
/// that start so, all where empty.
const BANNED: [(&[&str], &str, &str); 29] = [
    (&["node", "id"], "rank", ""),
    (&["worker", "index"], "rank", ""),
    (&["num", "procs"], "world_size", ""),
    (&["nprocs"], "world_size", ""),
    (&["process", "group"], "communicator", "comm/"),
    (&["incarnation"], "epoch", ""),
    (&["discovery"], "rendezvous", ""),
    (&["store", "registry"], "store", ""),
    (&["channel"], "endpoint or rail", "comm/src/"),
    (&["collnet"], "offload", ""),
    (&["plugin"], "offload", ""),
    (&["memory", "handle"], "memory region or lease", ""),
    (&["memory", "descriptor"], "memory region or lease", ""),
    (&["work", "item"], "work request", ""),
    (&["callback"], "completion", ""),
    (&["schedule"], "plan", "comm/"),
    (&["phase"], "round or step", "comm/proto/src/collective/"),
    (&["allreduce"], "all_reduce", ""),
    (&["allgather"], "all_gather", ""),
    (&["alltoall"], "all_to_all", ""),
    (&["reducescatter"], "reduce_scatter", ""),
    (&["bcast"], "broadcast", ""),
    (&["aggregator"], "slot", "comm/"),
    (&["agtr"], "slot", ""),
    (&["kv", "store"], "store or parameter server", ""),
    (&["kvstore"], "store or parameter server", ""),
    (&["slack"], "staleness bound", "sync/"),
    (&["strategy"], "policy", "sync/"),
    (&["scheduler"], "policy", "sync/"),
];

/// Checks the names that each Rust file declares, and its own.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let tokens = source::tokens(&file.code);
        let mut names = declared(&tokens);
        let stem = file.path.trim_end_matches(".rs").rsplit('/').next().unwrap_or_default();
        names.push((1, stem));
        for (line, name) in names {
            let words = split(name);
            for (banned, instead, place) in &BANNED {
                let holds = file.path.starts_with(place);
                if holds && words.windows(banned.len()).any(|window| window == *banned) {
                    let text = format!("`{name}`: say {instead}, as docs/glossary.md does");
                    findings.push(Finding::new(&file.path, line, "word", text));
                }
            }
        }
        for pair in tokens.windows(2) {
            if pair[0].text == "fn" && pair[1].text.starts_with("get_") {
                let text = format!("`{}`: leave out the `get_`", pair[1].text);
                findings.push(Finding::new(&file.path, pair[1].line, "word", text));
            }
        }
    }
}

/// Line and name of each type, module, variant and named field that the code declares.
fn declared<'a>(tokens: &[Token<'a>]) -> Vec<(usize, &'a str)> {
    let mut names = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let kind = pair[0].text;
        if !matches!(kind, "struct" | "enum" | "union" | "trait" | "type" | "mod") {
            continue;
        }
        names.push((pair[1].line, pair[1].text));
        let ends = |token: &Token<'_>| matches!(token.text, "{" | ";" | "(" | "=");
        let open = tokens.iter().skip(at).position(ends).map(|offset| at + offset);
        let Some(open) = open.filter(|open| tokens[*open].text == "{") else { continue };
        if matches!(kind, "struct" | "union" | "enum") {
            members(&tokens[open..=source::closing(tokens, open)], kind == "enum", &mut names);
        }
    }
    names
}

/// Adds the fields, and for an enum the variants, of the body that `tokens` spans.
fn members<'a>(tokens: &[Token<'a>], is_enum: bool, names: &mut Vec<(usize, &'a str)>) {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        let Some(before) = at.checked_sub(1).map(|before| tokens[before].text) else { continue };
        let next = tokens.get(at + 1).map_or("", |next| next.text);
        let starts = matches!(before, "{" | "," | "]");
        let is_field = next == ":" && (starts || matches!(before, "pub" | ")"));
        let ends = matches!(next, "," | "(" | "{" | "=" | "}");
        let is_variant = is_enum && depth == 1 && starts && ends;
        if (is_field || is_variant) && token.text.starts_with(|c: char| c.is_alphabetic()) {
            names.push((token.line, token.text));
        }
    }
}

/// The words of a name in snake or camel case, in lower case.
fn split(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && after_lower) {
            words.push(String::new());
        }
        after_lower = letter.is_lowercase() || letter.is_ascii_digit();
        if letter != '_' {
            words.last_mut().expect("starts with one").extend(letter.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check(&tree(&[(path, text)]), &mut findings);
        let name = |text: &str| text.split('`').nth(1).unwrap_or_default().to_owned();
        findings.iter().map(|finding| (finding.line, name(&finding.text))).collect()
    }

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(split("AllReduceKind"), ["all", "reduce", "kind"]);
        assert_eq!(split("num_procs"), ["num", "procs"]);
        assert_eq!(split("Fp16Plan"), ["fp16", "plan"]);
    }

    #[test]
    fn banned_words_are_caught_in_types_variants_fields_modules_and_files() {
        let text = "pub struct NodeId(u32);\n\
                    enum Kind {\n    Ring,\n    #[a(b)]\n    Allreduce { kv_store: u8 },\n}\n\
                    struct S {\n    pub num_procs: u32,\n    pub(crate) callback: fn(),\n}\n\
                    mod plugin {}\n";
        let names: Vec<String> = found("comm/src/x.rs", text).into_iter().map(|f| f.1).collect();
        assert_eq!(names, ["NodeId", "Allreduce", "kv_store", "num_procs", "callback", "plugin"]);
        assert_eq!(found("bench/src/allreduce.rs", "").len(), 1);
    }

    #[test]
    fn prose_strings_locals_and_other_places_are_free() {
        let text = "//! An allreduce.\nfn f() { let node_id = \"bcast\"; g(node_id: 1); }\n";
        assert_eq!(found("comm/src/x.rs", text), []);
        assert_eq!(found("launch/src/x.rs", "struct Channel;\n"), []);
        assert_eq!(found("comm/src/x.rs", "struct Channel;\n"), [(1, "Channel".to_owned())]);
    }

    #[test]
    fn getters_are_caught() {
        let text = "fn getter() {}\nfn get_rank() {}\n";
        assert_eq!(found("comm/src/x.rs", text), [(2, "get_rank".to_owned())]);
    }
}
