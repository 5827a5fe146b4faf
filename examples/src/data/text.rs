//! Text files, one byte after the other: what comes next after so many bytes?
//!
//! The first nine tenths of a file are for training, the rest for the test, in the file's order.
//! A class is a byte that occurs in the training part; classes are numbered in the order of the
//! bytes' values. One class more stands for all bytes that occur in the test part alone, unless
//! training has all 256. An item is `context` classes in a row, and its label the class that
//! follows them; the next item starts one byte later. A letter beyond ASCII is several bytes.
//!
//! Owns the reader and its checks. Called by [`super::Dataset::load`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{DataError, DataKind, Dataset, ImageShape, Split};

/// Bytes that an item has unless told.
pub const DEFAULT_CONTEXT: u32 = 32;
/// Longest file: 50 times the works of Shakespeare.
const LIMIT_BYTES: u64 = 1 << 28;
/// One in so many bytes is for the test.
const TEST_PART: usize = 10;

/// Reads a text file. See the module's description.
///
/// # Errors
///
/// The file is missing, unreadable, empty, too long, no text (it has a byte 0), or too short for
/// one item in each part.
///
/// # Panics
///
/// `context` is 0.
pub fn load(path: &Path, context: usize) -> Result<Dataset, DataError> {
    assert!(context > 0, "a context of nothing");
    divide(path, &read(path)?, context)
}

fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let io = |source| DataError::Io { path: path.to_owned(), source };
    let mut text = Vec::new();
    let file = File::open(path).map_err(io)?;
    // One byte more than accepted tells a file that is too long.
    file.take(LIMIT_BYTES + 1).read_to_end(&mut text).map_err(io)?;
    let bad = |place: String, expected: String, found: String| {
        Err(DataError::BadValue { path: path.to_owned(), place, expected, found })
    };
    if text.len() as u64 > LIMIT_BYTES {
        return bad("its end".into(), format!("at most {LIMIT_BYTES} bytes"), "more".into());
    }
    match text.iter().position(|byte| *byte == 0) {
        Some(at) => bad(format!("offset {at}"), "text".into(), "a byte 0".into()),
        None => Ok(text),
    }
}

fn divide(path: &Path, text: &[u8], context: usize) -> Result<Dataset, DataError> {
    let test_len = text.len() / TEST_PART;
    let (train, test) = text.split_at(text.len() - test_len);
    if test_len <= context {
        let needed = (context + 1) * TEST_PART;
        return Err(DataError::BadValue {
            path: path.to_owned(),
            place: "whole file".to_owned(),
            expected: format!("at least {needed} bytes for a context of {context}"),
            found: text.len().to_string(),
        });
    }
    let mut is_known = [false; 256];
    train.iter().for_each(|byte| is_known[usize::from(*byte)] = true);
    let known: Vec<u8> = (0..=u8::MAX).filter(|byte| is_known[usize::from(*byte)]).collect();
    // Used for bytes that training does not have; with 256 known there are none.
    let unknown = u8::try_from(known.len()).unwrap_or(u8::MAX);
    let mut class_of = [unknown; 256];
    for (class, byte) in (0..=u8::MAX).zip(&known) {
        class_of[usize::from(*byte)] = class;
    }
    let split = |part: &[u8]| {
        let images: Vec<u8> = part.iter().map(|byte| class_of[usize::from(*byte)]).collect();
        let labels = images[context..].to_vec();
        Split { images, labels }
    };
    Ok(Dataset {
        kind: DataKind::Text,
        shape: ImageShape { height: context, width: 1, channels: 1 },
        stride: 1,
        classes: usize::from(unknown) + 1,
        scale: 1.0,
        offset: 0.0,
        train: split(train),
        test: split(test),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn set(text: &[u8], context: usize) -> Result<Dataset, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, text).unwrap();
        load(&path, context)
    }

    #[test]
    fn items_are_contexts_and_what_follows_them() {
        // 27 bytes to train on, 3 for the test.
        let set = set(b"abcabcabcabcabcabcabcabcabdcxa", 2).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.classes), (25, 1, 5));
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        set.gather(&set.train, [0, 1, 24], &mut images, &mut labels);
        assert_eq!(images, [0.0, 1.0, 1.0, 2.0, 0.0, 1.0]);
        assert_eq!(labels, [2, 0, 3]);
        // "cx", then "a": training has no x.
        set.gather(&set.test, [0], &mut images, &mut labels);
        assert_eq!((images, labels), (vec![2.0, 4.0], vec![0]));
    }

    #[test]
    fn classes_follow_the_bytes_of_the_training_part() {
        let all: Vec<u8> = (1..=255).rev().cycle().take(600).collect();
        let set = set(&all, 3).unwrap();
        assert_eq!(set.classes, 256);
        assert_eq!(set.train.images[..3], [254, 253, 252]);
        let one = self::set(&[b'x'; 50], 4).unwrap();
        assert_eq!((one.classes, one.train.labels[0]), (2, 0));
    }

    #[test]
    fn all_256_bytes_leave_no_class_for_unknown_ones() {
        // A file with a byte 0 is refused; the division alone is not.
        let all: Vec<u8> = (0..=255).cycle().take(600).collect();
        let set = divide(Path::new("x"), &all, 3).unwrap();
        assert_eq!((set.classes, set.train.images[255], set.train.images[256]), (256, 255, 0));
    }

    #[test]
    fn what_is_no_text_is_refused_with_a_reason() {
        for (text, reason) in [
            (&b""[..], "whole file: expected at least 330 bytes for a context of 32, found 0"),
            (&[b'a'; 329], "expected at least 330 bytes for a context of 32, found 329"),
            (b"some\0thing", "offset 4: expected text, found a byte 0"),
        ] {
            let error = set(text, 32).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(set(&[b'a'; 330], 32).unwrap().test.len(), 1);
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("none.txt")] {
            let error = load(path, 32).unwrap_err();
            assert!(matches!(error, DataError::Io { .. }), "{error}");
        }
    }
}
