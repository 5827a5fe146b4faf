//! What is typed after `--data`: `digits`, `fashion-mnist`, `mnist`, `text:FILE`, `FILE.txt`.
//!
//! Owns the form. Reads no file. Used by `options`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;

use super::DataKind;

/// A data set, and of a text its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSource {
    /// Which set.
    pub kind: DataKind,
    /// The file of a text; none for other sets.
    pub file: Option<PathBuf>,
}

impl FromStr for DataSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of_text = |file: &str| Self { kind: DataKind::Text, file: Some(PathBuf::from(file)) };
        match text.split_once(':') {
            Some(("text", "")) => return Err("a text has a file: write text:FILE".to_owned()),
            Some(("text", file)) => return Ok(of_text(file)),
            _ => {}
        }
        if let Ok(kind) = DataKind::from_str(text, false) {
            return Ok(Self { kind, file: None });
        }
        let extension = Path::new(text).extension();
        if extension.is_some_and(|extension| extension.eq_ignore_ascii_case("txt")) {
            return Ok(of_text(text));
        }
        Err(format!(
            "cannot read {text:?}: write digits, fashion-mnist, mnist, text:FILE or FILE.txt"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_files_are_told_apart() {
        let read = |text: &str| text.parse::<DataSource>().map(|source| (source.kind, source.file));
        let file = |name: &str| Ok((DataKind::Text, Some(PathBuf::from(name))));
        assert_eq!(read("fashion-mnist"), Ok((DataKind::FashionMnist, None)));
        assert_eq!(read("text:digits"), file("digits"));
        assert_eq!(read("text:a:b"), file("a:b"));
        assert_eq!(read("../plays.TXT"), file("../plays.TXT"));
        assert_eq!(read("x:y.txt"), file("x:y.txt"));
        for text in ["", "text", "text:", "cifar", "a.csv", ".txt"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
