//! Labelled images and text in memory, and which items a rank sees in which step.
//!
//! Owns reading and checking data sets. Never trains. Called by `worker`, and by `driver` to
//! check the data before any rank starts.

pub mod digits;
pub mod error;
pub mod idx;
pub mod shard;
pub mod source;
pub mod text;

pub use error::DataError;
pub use shard::ShardPlan;
pub use source::DataSource;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::spec::RunSpec;

/// The data sets that the trainer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataKind {
    /// 1797 handwritten digits of 8 x 8 pixels; ships with the program
    Digits,
    /// 70,000 articles of clothing of 28 x 28 pixels, read from --data-dir
    FashionMnist,
    /// 70,000 handwritten digits of 28 x 28 pixels, read from --data-dir
    Mnist,
    /// A text file: which byte follows so many others?
    #[value(skip)]
    Text,
}

impl DataKind {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::FashionMnist => "fashion-mnist",
            Self::Mnist => "mnist",
            Self::Text => "text",
        }
    }

    /// How many epochs a run takes unless told: few passes over a large set, many over a small.
    pub fn default_epochs(self) -> u32 {
        match self {
            Self::Digits => 25,
            Self::FashionMnist | Self::Mnist => 5,
            Self::Text => 1,
        }
    }

    /// How many items accuracy is measured on unless told; none for all.
    pub fn default_test_limit(self) -> Option<u32> {
        match self {
            Self::Digits | Self::FashionMnist | Self::Mnist => None,
            Self::Text => Some(10_000),
        }
    }
}

/// Extents of one image. Pixels are stored row by row, the channels of a pixel side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Rows.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
    /// Values in a pixel: 1 for grey.
    pub channels: usize,
}

impl ImageShape {
    /// Values in one image.
    pub fn values(self) -> usize {
        self.height * self.width * self.channels
    }
}

/// Images with their labels. A text is images as well: windows of classes that overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// `labels.len()` images of [`ImageShape::values`] bytes each, [`Dataset::stride`] bytes apart.
    pub images: Vec<u8>,
    /// Class of each image.
    pub labels: Vec<u8>,
}

impl Split {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Keeps the first `limit` images at most, of `values` bytes each, `stride` apart.
    fn truncate(&mut self, limit: usize, values: usize, stride: usize) {
        self.labels.truncate(limit);
        let end = self.labels.len().checked_sub(1).map_or(0, |last| last * stride + values);
        self.images.truncate(end);
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// A data set, checked: all images have one shape, every label is below `classes`, no split is
/// empty.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Which set this is.
    pub kind: DataKind,
    /// Shape of each image.
    pub shape: ImageShape,
    /// Bytes from the start of an image to that of the next.
    pub stride: usize,
    /// Number of classes.
    pub classes: usize,
    /// A byte `x` becomes the input `x * scale + offset`.
    pub scale: f32,
    /// See `scale`.
    pub offset: f32,
    /// What to train on.
    pub train: Split,
    /// What to measure accuracy on; training never reads it.
    pub test: Split,
}

impl Dataset {
    /// Reads a set. `seed` decides which digits are kept for the test; the other sets come divided.
    ///
    /// `directory` holds the IDX files; without it, the folder is tried into which the
    /// distribution's package installs the set. Of a text it is the file, and the context is
    /// [`text::DEFAULT_CONTEXT`].
    ///
    /// # Errors
    ///
    /// A file that is missing, cut short or not what it claims to be.
    pub fn load(kind: DataKind, directory: Option<&Path>, seed: u64) -> Result<Self, DataError> {
        match kind {
            DataKind::Digits => digits::load(seed),
            DataKind::FashionMnist => idx::load(kind, directory, 0.2860, 0.3530),
            DataKind::Mnist => idx::load(kind, directory, 0.1307, 0.3081),
            DataKind::Text => Self::load_text(directory, text::DEFAULT_CONTEXT),
        }
    }

    fn load_text(file: Option<&Path>, context: u32) -> Result<Self, DataError> {
        let file = file.ok_or_else(|| DataError::NotFound {
            set: DataKind::Text.name(),
            path: PathBuf::from("FILE"),
            hint: "name it as text:FILE".to_owned(),
        })?;
        text::load(file, context as usize)
    }

    /// The set of a run, cut to its limits.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn of(spec: &RunSpec) -> Result<Self, DataError> {
        let path = spec.data_dir.as_deref();
        let mut set = match spec.data {
            DataKind::Text => Self::load_text(path, spec.context)?,
            kind => Self::load(kind, path, spec.seed)?,
        };
        let (values, stride) = (set.shape.values(), set.stride);
        for (split, limit) in [(&mut set.train, spec.train_limit), (&mut set.test, spec.test_limit)]
        {
            split.truncate(limit.map_or(usize::MAX, |limit| limit as usize), values, stride);
        }
        Ok(set)
    }

    /// Replaces `images` and `labels` by those of `split` at `indices`, as network input.
    ///
    /// # Panics
    ///
    /// An index outside of the split.
    pub fn gather(
        &self,
        split: &Split,
        indices: impl IntoIterator<Item = usize>,
        images: &mut Vec<f32>,
        labels: &mut Vec<u8>,
    ) {
        images.clear();
        labels.clear();
        let values = self.shape.values();
        for index in indices {
            let image = &split.images[index * self.stride..][..values];
            images.extend(image.iter().map(|byte| f32::from(*byte) * self.scale + self.offset));
            labels.push(split.labels[index]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_images_are_scaled_and_keep_their_labels() {
        let split = Split { images: vec![0, 8, 16, 4], labels: vec![3, 7] };
        let set = Dataset {
            kind: DataKind::Digits,
            shape: ImageShape { height: 1, width: 2, channels: 1 },
            stride: 2,
            classes: 10,
            scale: 0.25,
            offset: -1.0,
            train: split.clone(),
            test: Split::default(),
        };
        let (mut images, mut labels) = (vec![9.0], vec![9]);
        set.gather(&split, [1, 0], &mut images, &mut labels);
        assert_eq!(images, [3.0, 0.0, -1.0, 1.0]);
        assert_eq!(labels, [7, 3]);
    }

    #[test]
    fn limits_keep_the_first_items_of_each_split() {
        let spec = crate::spec::tests::spec("bsp");
        let whole = Dataset::of(&spec).unwrap();
        let cut = RunSpec { train_limit: Some(100), test_limit: Some(7), ..spec.clone() };
        let cut = Dataset::of(&cut).unwrap();
        assert_eq!(cut.train.labels, whole.train.labels[..100]);
        assert_eq!(cut.train.images, whole.train.images[..100 * 64]);
        assert_eq!((cut.test.len(), cut.test.images.len()), (7, 7 * 64));
        let loose = RunSpec { train_limit: Some(5000), test_limit: Some(5000), ..spec };
        assert_eq!(Dataset::of(&loose).unwrap().train, whole.train);
        assert_eq!(Dataset::of(&loose).unwrap().test, whole.test);
    }

    #[test]
    fn limits_cut_a_text_after_the_last_context() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "to be or not to be, that is".repeat(10)).unwrap();
        let spec = RunSpec {
            data: DataKind::Text,
            data_dir: Some(path),
            context: 8,
            train_limit: Some(20),
            test_limit: Some(4),
            ..crate::spec::tests::spec("bsp")
        };
        let set = Dataset::of(&spec).unwrap();
        assert_eq!((set.train.len(), set.train.images.len()), (20, 27));
        assert_eq!((set.test.len(), set.test.images.len(), set.shape.values()), (4, 11, 8));
        let error = Dataset::of(&RunSpec { data_dir: None, ..spec }).unwrap_err();
        assert!(error.to_string().ends_with("name it as text:FILE"), "{error}");
    }

    #[test]
    fn names_on_the_command_line_are_the_names_in_reports() {
        for kind in DataKind::value_variants() {
            let value = kind.to_possible_value().expect("no kind is hidden");
            assert_eq!(value.get_name(), kind.name());
            assert_eq!(serde_json::to_value(kind).expect("a string"), kind.name());
        }
    }
}
