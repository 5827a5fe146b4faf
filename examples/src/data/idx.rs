//! Reader of IDX files, the format of MNIST and its successors.
//!
//! ```text
//! images: u32 0x00000803, u32 items, u32 rows, u32 columns, then one byte a pixel
//! labels: u32 0x00000801, u32 items,                         then one byte a label
//! ```
//! Integers are big-endian. Files may be packed by gzip. Owns every check of these files: nothing
//! they say is believed before it is compared with what they hold. Called by
//! [`super::Dataset::load`].

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::{DataError, DataKind, Dataset, ImageShape, Split};

const MAGIC_IMAGES: u32 = 0x0000_0803;
const MAGIC_LABELS: u32 = 0x0000_0801;
/// Starts every gzip file.
const MAGIC_GZIP: [u8; 2] = [0x1f, 0x8b];
/// Most data accepted from one file: 20 times what this family of sets has, and it fits in memory.
const LIMIT_BYTES: u64 = 1 << 30;
const CLASSES: u8 = 10;

/// Where the Debian package `dataset-fashion-mnist` puts its files.
const FASHION_DIRECTORY: &str = "/usr/share/datasets/fashion-mnist";

/// Reads the four files of a set; each may carry `.gz` at the end of its name, or not. A byte `x`
/// becomes the input `(x / 255 - mean) / deviation`.
///
/// # Errors
///
/// A file is missing, unreadable, of the wrong kind, too short or too long, or two disagree.
pub fn load(
    kind: DataKind,
    directory: Option<&Path>,
    mean: f32,
    deviation: f32,
) -> Result<Dataset, DataError> {
    let directory = match (directory, kind) {
        (Some(directory), _) => directory.to_owned(),
        (None, DataKind::FashionMnist) => PathBuf::from(FASHION_DIRECTORY),
        (None, _) => PathBuf::from("."),
    };
    let find = |stem: &str| find(kind, &directory, stem);
    let (train, shape) =
        read_split(&find("train-images-idx3-ubyte")?, &find("train-labels-idx1-ubyte")?)?;
    let test_images = find("t10k-images-idx3-ubyte")?;
    let (test, test_shape) = read_split(&test_images, &find("t10k-labels-idx1-ubyte")?)?;
    if shape != test_shape {
        let text = |shape: ImageShape| format!("{} x {}", shape.height, shape.width);
        return Err(DataError::Disagree {
            what: "size of the images",
            left: (find("train-images-idx3-ubyte")?, text(shape)),
            right: (test_images, text(test_shape)),
        });
    }
    let scale = 1.0 / (255.0 * deviation);
    let offset = -mean / deviation;
    let classes = usize::from(CLASSES);
    let stride = shape.values();
    Ok(Dataset { kind, shape, stride, classes, scale, offset, train, test })
}

/// Reads a file of images and the file of their labels.
///
/// # Errors
///
/// As [`load`].
pub fn read_split(images: &Path, labels: &Path) -> Result<(Split, ImageShape), DataError> {
    let (counts, pixels) = read(images, MAGIC_IMAGES, 3)?;
    let (label_counts, values) = read(labels, MAGIC_LABELS, 1)?;
    if counts[0] != label_counts[0] {
        return Err(DataError::Disagree {
            what: "number of items",
            left: (images.to_owned(), counts[0].to_string()),
            right: (labels.to_owned(), label_counts[0].to_string()),
        });
    }
    let zero = (0..3).find(|dimension| counts[*dimension] == 0);
    if let Some(dimension) = zero {
        let place = format!("offset {}", 4 + 4 * dimension);
        return Err(bad(images, place, "at least 1".to_owned(), 0));
    }
    if let Some(at) = values.iter().position(|label| *label >= CLASSES) {
        let place = format!("offset {}", 8 + at);
        return Err(bad(labels, place, format!("a label below {CLASSES}"), values[at].into()));
    }
    let shape = ImageShape { height: counts[1] as usize, width: counts[2] as usize, channels: 1 };
    Ok((Split { images: pixels, labels: values }, shape))
}

fn bad(path: &Path, place: String, expected: String, found: u32) -> DataError {
    DataError::BadValue { path: path.to_owned(), place, expected, found: found.to_string() }
}

/// The file `stem`, plain or packed, in `directory`.
fn find(kind: DataKind, directory: &Path, stem: &str) -> Result<PathBuf, DataError> {
    let plain = directory.join(stem);
    let packed = directory.join(format!("{stem}.gz"));
    if let Some(path) = [plain, packed.clone()].into_iter().find(|path| path.exists()) {
        return Ok(path);
    }
    let package = match kind {
        DataKind::FashionMnist => " (Debian and Ubuntu: apt install dataset-fashion-mnist)",
        _ => "",
    };
    let hint = format!("--data-dir names the folder of its four IDX files{package}");
    Err(DataError::NotFound { set: kind.name(), path: packed, hint })
}

/// The extents and the bytes of one file with `dimensions` extents.
fn read(path: &Path, magic: u32, dimensions: usize) -> Result<(Vec<u32>, Vec<u8>), DataError> {
    let refused = |source| DataError::Io { path: path.to_owned(), source };
    let mut input = open(path).map_err(refused)?;
    let mut header = Vec::new();
    let header_bytes = 4 + 4 * dimensions;
    input.by_ref().take(header_bytes as u64).read_to_end(&mut header).map_err(refused)?;
    let numbers: Vec<u32> = header
        .chunks_exact(4)
        .map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
        .collect();
    if let Some(found) = numbers.first().copied().filter(|found| *found != magic) {
        return Err(DataError::BadMagic { path: path.to_owned(), expected: magic, found });
    }
    let truncated = |offset: usize, expected, found: usize| DataError::Truncated {
        path: path.to_owned(),
        offset: offset as u64,
        expected,
        found: found as u64,
    };
    if header.len() < header_bytes {
        return Err(truncated(0, header_bytes as u64, header.len()));
    }
    let extents = numbers[1..].to_vec();
    let announced: u128 = extents.iter().map(|extent| u128::from(*extent)).product();
    let limit = LIMIT_BYTES;
    let Some(bytes) = u64::try_from(announced).ok().filter(|bytes| *bytes <= limit) else {
        return Err(DataError::TooLarge { path: path.to_owned(), announced, limit });
    };
    // One byte more than announced, to see whether there is more. The buffer grows with what is
    // really there, so a header that lies costs no memory.
    let mut data = Vec::new();
    input.take(bytes + 1).read_to_end(&mut data).map_err(refused)?;
    let found = data.len() as u64;
    if found < bytes {
        return Err(truncated(header_bytes, bytes, data.len()));
    }
    if found > bytes {
        let offset = header_bytes as u64 + bytes;
        return Err(DataError::Trailing { path: path.to_owned(), offset });
    }
    Ok((extents, data))
}

/// The file's content, unpacked where its first bytes say that it is packed.
fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut start = Vec::new();
    File::open(path)?.take(2).read_to_end(&mut start)?;
    let file = File::open(path)?;
    if start == MAGIC_GZIP {
        return Ok(Box::new(MultiGzDecoder::new(file)));
    }
    Ok(Box::new(file))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tempfile::TempDir;

    use super::*;

    /// A file of the given magic number, extents and data.
    fn idx(magic: u32, extents: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        extents.iter().for_each(|extent| bytes.extend(extent.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Two images of 1 x 2 pixels and what is wrong with them, if anything.
    fn outcome(images: &[u8], labels: &[u8]) -> Result<(Split, ImageShape), String> {
        let folder = TempDir::new().unwrap();
        let (images_path, labels_path) =
            (folder.path().join("images"), folder.path().join("labels"));
        fs::write(&images_path, images).unwrap();
        fs::write(&labels_path, labels).unwrap();
        read_split(&images_path, &labels_path).map_err(|error| {
            error.to_string().replace(&format!("{}/", folder.path().display()), "")
        })
    }

    #[test]
    fn plain_and_packed_files_read_the_same() {
        let images = idx(MAGIC_IMAGES, &[2, 1, 2], &[1, 2, 3, 255]);
        let labels = idx(MAGIC_LABELS, &[2], &[9, 0]);
        let expected = Split { images: vec![1, 2, 3, 255], labels: vec![9, 0] };
        let shape = ImageShape { height: 1, width: 2, channels: 1 };
        assert_eq!(outcome(&images, &labels), Ok((expected.clone(), shape)));
        assert_eq!(outcome(&packed(&images), &packed(&labels)), Ok((expected, shape)));
    }

    #[test]
    fn each_kind_of_damage_is_named_with_file_offset_expected_and_found() {
        let images = idx(MAGIC_IMAGES, &[2, 1, 2], &[1, 2, 3, 4]);
        let labels = idx(MAGIC_LABELS, &[2], &[9, 0]);
        let cases: [(&[u8], &[u8], &str); 9] = [
            (
                &labels,
                &labels,
                "images: not the expected kind of IDX file: offset 0 should hold \
                                0x00000803, but holds 0x00000801",
            ),
            (
                &images,
                b"hello",
                "labels: not the expected kind of IDX file: offset 0 should hold \
                                 0x00000801, but holds 0x68656c6c",
            ),
            (&[], &labels, "images: cut short: expected 16 bytes from offset 0 on, found 0"),
            (
                &images[..9],
                &labels,
                "images: cut short: expected 16 bytes from offset 0 on, found 9",
            ),
            (
                &images[..19],
                &labels,
                "images: cut short: expected 4 bytes from offset 16 on, found 3",
            ),
            (
                &images,
                &labels[..9],
                "labels: cut short: expected 2 bytes from offset 8 on, found 1",
            ),
            (
                &[&images[..], &[5]].concat(),
                &labels,
                "images: data goes on after its announced end at 20",
            ),
            (
                &images,
                &idx(MAGIC_LABELS, &[3], &[1, 2, 3]),
                "number of items differs: images has 2, labels has 3",
            ),
            (
                &images,
                &idx(MAGIC_LABELS, &[2], &[1, 10]),
                "labels, offset 9: expected a label below 10, found 10",
            ),
        ];
        for (images, labels, expected) in cases {
            assert_eq!(outcome(images, labels), Err(expected.to_owned()));
        }
    }

    #[test]
    fn extents_that_lie_are_refused_without_allocating_for_them() {
        let labels = idx(MAGIC_LABELS, &[2], &[9, 0]);
        let huge = idx(MAGIC_IMAGES, &[u32::MAX, u32::MAX, u32::MAX], &[]);
        let message = outcome(&huge, &labels).unwrap_err();
        assert!(message.starts_with("images: the header announces 79228162458924105385300197375"));
        let zero = idx(MAGIC_IMAGES, &[2, 0, 2], &[]);
        let expected = "images, offset 8: expected at least 1, found 0";
        assert_eq!(outcome(&zero, &labels), Err(expected.to_owned()));
    }

    #[test]
    fn a_damaged_gzip_stream_and_a_missing_file_are_errors_of_reading() {
        let images = packed(&idx(MAGIC_IMAGES, &[2, 1, 2], &[1, 2, 3, 4]));
        let labels = idx(MAGIC_LABELS, &[2], &[9, 0]);
        let message = outcome(&images[..images.len() - 9], &labels).unwrap_err();
        assert!(message.starts_with("cannot read images: "), "{message}");
        let folder = TempDir::new().unwrap();
        let error = load(DataKind::FashionMnist, Some(folder.path()), 0.0, 1.0).unwrap_err();
        assert!(matches!(error, DataError::NotFound { .. }));
        assert!(error.to_string().contains("train-images-idx3-ubyte.gz; --data-dir"), "{error}");
    }

    #[test]
    fn train_and_test_images_of_different_size_are_refused() {
        let folder = TempDir::new().unwrap();
        let write =
            |name: &str, bytes: Vec<u8>| fs::write(folder.path().join(name), bytes).unwrap();
        write("train-images-idx3-ubyte", idx(MAGIC_IMAGES, &[1, 1, 2], &[1, 2]));
        write("train-labels-idx1-ubyte.gz", packed(&idx(MAGIC_LABELS, &[1], &[1])));
        write("t10k-images-idx3-ubyte", idx(MAGIC_IMAGES, &[1, 2, 1], &[1, 2]));
        write("t10k-labels-idx1-ubyte", idx(MAGIC_LABELS, &[1], &[1]));
        let error = load(DataKind::Mnist, Some(folder.path()), 0.0, 1.0).unwrap_err();
        assert!(error.to_string().starts_with("size of the images differs: "), "{error}");
        write("t10k-images-idx3-ubyte", idx(MAGIC_IMAGES, &[1, 1, 2], &[3, 4]));
        let set = load(DataKind::Mnist, Some(folder.path()), 0.5, 2.0).unwrap();
        assert_eq!((set.test.images, set.train.labels), (vec![3, 4], vec![1]));
        assert_eq!((set.scale, set.offset), (1.0 / 510.0, -0.25));
    }

    #[test]
    fn the_real_fashion_mnist_reads_where_it_is_installed() {
        if !Path::new(FASHION_DIRECTORY).exists() {
            println!("skipped: {FASHION_DIRECTORY} is not there");
            return;
        }
        let set = Dataset::load(DataKind::FashionMnist, None, 0).unwrap();
        assert_eq!((set.train.len(), set.test.len()), (60_000, 10_000));
        assert_eq!(set.shape, ImageShape { height: 28, width: 28, channels: 1 });
        for class in 0..10 {
            assert_eq!(set.test.labels.iter().filter(|label| **label == class).count(), 1000);
        }
        // The constants that `Dataset::load` scales by are those of the data.
        let count = set.train.images.len() as f64;
        let mean = set.train.images.iter().map(|p| f64::from(*p)).sum::<f64>() / count / 255.0;
        assert!((mean - 0.2860).abs() < 1e-4, "{mean}");
    }
}
