//! The optical digits that ship with the program (`data/README.md` says whose they are).
//!
//! Owns the reader of their text and the division into training and test parts. Called by
//! [`super::Dataset::load`].

use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;

use super::{DataError, DataKind, Dataset, ImageShape, Split};

const PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
const NAME: &str = "digits.csv";

/// Pixels on a side.
const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
/// Blackest pixel.
const PIXEL_MAX: u8 = 16;
const CLASSES: u8 = 10;
/// Images to train on; the other 360 of the 1797 are for the test.
pub const TRAIN_LEN: usize = 1437;

/// Reads the embedded set and divides it by a permutation that `seed` fixes.
///
/// # Errors
///
/// None but for a damaged program.
pub fn load(seed: u64) -> Result<Dataset, DataError> {
    let mut text = String::new();
    GzDecoder::new(PACKED)
        .read_to_string(&mut text)
        .map_err(|source| DataError::Io { path: PathBuf::from(NAME), source })?;
    let all = parse(&text)?;
    if all.len() <= TRAIN_LEN {
        return Err(DataError::BadValue {
            path: PathBuf::from(NAME),
            place: "whole file".to_owned(),
            expected: format!("more than {TRAIN_LEN} images"),
            found: all.len().to_string(),
        });
    }
    let mut order: Vec<usize> = (0..all.len()).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    let (train, test) = order.split_at(TRAIN_LEN);
    Ok(Dataset {
        kind: DataKind::Digits,
        shape: ImageShape { height: SIDE, width: SIDE, channels: 1 },
        stride: PIXELS,
        classes: usize::from(CLASSES),
        // To about [-0.3, 0.7]: mean near zero, as the initial weights assume.
        scale: 1.0 / f32::from(PIXEL_MAX),
        offset: -0.3,
        train: pick(&all, train),
        test: pick(&all, test),
    })
}

fn pick(all: &Split, indices: &[usize]) -> Split {
    let mut part = Split::default();
    for index in indices {
        part.images.extend_from_slice(&all.images[index * PIXELS..][..PIXELS]);
        part.labels.push(all.labels[*index]);
    }
    part
}

/// Reads lines of 64 pixels and a label, separated by commas. Places in errors count from 1.
fn parse(text: &str) -> Result<Split, DataError> {
    let mut split = Split::default();
    for (line_index, line) in text.lines().enumerate() {
        let fields = line.split(',').count();
        if fields != PIXELS + 1 {
            let expected = format!("{} fields", PIXELS + 1);
            return Err(bad(format!("line {}", line_index + 1), expected, fields.to_string()));
        }
        for (column, field) in line.split(',').enumerate() {
            let limit = if column < PIXELS { PIXEL_MAX } else { CLASSES - 1 };
            let value = field.parse::<u8>().ok().filter(|value| *value <= limit);
            let Some(value) = value else {
                let place = format!("line {}, field {}", line_index + 1, column + 1);
                return Err(bad(place, format!("0 to {limit}"), format!("{field:?}")));
            };
            if column < PIXELS { split.images.push(value) } else { split.labels.push(value) }
        }
    }
    Ok(split)
}

fn bad(place: String, expected: String, found: String) -> DataError {
    DataError::BadValue { path: PathBuf::from(NAME), place, expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pixel: &str, label: &str) -> String {
        let mut fields = vec![pixel; PIXELS];
        fields.push(label);
        fields.join(",")
    }

    #[test]
    fn the_embedded_set_has_its_known_make_up() {
        let set = load(1).expect("the embedded set");
        assert_eq!((set.train.len(), set.test.len()), (1437, 360));
        assert_eq!(set.train.images.len(), 1437 * 64);
        let mut counts = [0; 10];
        for label in set.train.labels.iter().chain(&set.test.labels) {
            counts[usize::from(*label)] += 1;
        }
        // As the set's own description has them.
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let ink: u64 = set.train.images.iter().chain(&set.test.images).map(|p| u64::from(*p)).sum();
        assert_eq!(ink, 561_718);
    }

    #[test]
    fn the_seed_decides_the_division() {
        let (a, b, c) = (load(1).unwrap(), load(1).unwrap(), load(2).unwrap());
        assert_eq!(a.train, b.train);
        assert_eq!(a.test, b.test);
        assert_ne!(a.test.labels, c.test.labels);
    }

    #[test]
    fn bad_text_is_refused_with_its_place() {
        let good = line("3", "9");
        assert_eq!(parse(&format!("{good}\n{good}\n")).unwrap().labels, [9, 9]);
        let message = |text: &str| parse(text).unwrap_err().to_string();
        let expected = "digits.csv, line 2: expected 65 fields, found 2";
        assert_eq!(message(&format!("{good}\n1,2\n")), expected);
        let expected = "digits.csv, line 1, field 1: expected 0 to 16, found \"17\"";
        assert_eq!(message(&line("17", "0")), expected);
        let expected = "digits.csv, line 1, field 65: expected 0 to 9, found \"10\"";
        assert_eq!(message(&line("0", "10")), expected);
        assert!(message(&line("x", "1")).contains("found \"x\""));
        assert!(message(&line("-1", "1")).contains("found \"-1\""));
    }
}
