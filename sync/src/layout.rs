//! Where the parameters are: tensors, the flat space they form, and the slices that it is cut into.
//!
//! Owns the arithmetic of offsets and the copies between a trainer's tensors and flat buffers.
//! Never changes a value and knows nothing of ranks. Called by the session, which checks that all
//! ranks have the same layout, and by the sync models.
//!
//! ```text
//! tensors   |--- conv.weight ---|b|------- dense.weight -------|b|
//! flat       0                                                    len
//! slices    |-- 0 --|--- 1 -----|2|-- 3 --|-- 4 ---|--- 5 -----|6|
//! ```
//!
//! A slice never crosses the border of a tensor. It is the unit of importance in OSP: with whole
//! tensors, as in the paper, one large tensor can make every byte budget useless.

use std::ops::Range;

/// Bytes of one parameter.
pub const ELEMENT_BYTES: usize = size_of::<f32>();

/// Name and length of one parameter tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// What the trainer calls it; the same on every rank.
    pub name: String,
    /// Elements.
    pub len: usize,
}

impl TensorSpec {
    /// A tensor of `len` elements.
    pub fn new(name: impl Into<String>, len: usize) -> Self {
        Self { name: name.into(), len }
    }
}

/// What a slice may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Parts of tensors, of about equal size. Our extension of the paper.
    Slices {
        /// Largest size of a slice; at least 4.
        max_bytes: usize,
    },
    /// One slice per tensor, as in the paper.
    Tensors,
}

/// A part of one tensor, and of the flat space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of its tensor.
    pub tensor: usize,
    /// First element in the tensor.
    pub start: usize,
    /// Elements.
    pub len: usize,
    /// First element in the flat space.
    pub offset: usize,
}

impl Slice {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        (self.len * ELEMENT_BYTES) as u64
    }

    /// Its elements in a flat buffer.
    pub fn flat(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Its elements in its tensor.
    pub fn within(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The parameters of one model: tensors in the trainer's order, and their slices.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    /// Flat offset of each tensor, and at the end the number of elements.
    offsets: Vec<usize>,
    slices: Vec<Slice>,
}

impl Layout {
    /// Lays `tensors` out one after the other and cuts them as `granularity` says.
    ///
    /// # Panics
    /// If the largest slice would hold no element.
    pub fn new(tensors: &[TensorSpec], granularity: Granularity) -> Self {
        let mut offsets = vec![0];
        let mut slices = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let offset = offsets[index];
            let parts = match granularity {
                Granularity::Slices { max_bytes } => {
                    let max_len = max_bytes / ELEMENT_BYTES;
                    assert!(max_len > 0, "a slice of {max_bytes} bytes holds no element");
                    tensor.len.div_ceil(max_len)
                }
                Granularity::Tensors => tensor.len.min(1),
            };
            for part in 0..parts {
                let start = part_start(tensor.len, parts, part);
                let len = part_start(tensor.len, parts, part + 1) - start;
                slices.push(Slice { tensor: index, start, len, offset: offset + start });
            }
            offsets.push(offset + tensor.len);
        }
        Self { tensors: tensors.to_vec(), offsets, slices }
    }

    /// The tensors.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The slices: together all elements, in flat order.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Elements of all tensors.
    pub fn len(&self) -> usize {
        self.offsets[self.tensors.len()]
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of all tensors.
    pub fn bytes(&self) -> u64 {
        (self.len() * ELEMENT_BYTES) as u64
    }

    /// The flat range of shard `index` of `count` shards of nearly equal length.
    pub fn shard(&self, index: usize, count: usize) -> Range<usize> {
        part_start(self.len(), count, index)..part_start(self.len(), count, index + 1)
    }

    /// The parts of tensors that the flat `range` covers, in order.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = Slice> + '_ {
        self.tensors.iter().enumerate().filter_map(move |(tensor, spec)| {
            let offset = self.offsets[tensor];
            let first = range.start.max(offset);
            let end = range.end.min(offset + spec.len);
            (first < end).then(|| Slice {
                tensor,
                start: first - offset,
                len: end - first,
                offset: first,
            })
        })
    }
}

/// Where part `index` of `count` nearly equal parts of `len` elements starts.
fn part_start(len: usize, count: usize, index: usize) -> usize {
    // In two terms, so that nothing overflows: `len * index` may.
    len / count * index + (len % count) * index / count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(lens: &[usize]) -> Vec<TensorSpec> {
        lens.iter().enumerate().map(|(i, len)| TensorSpec::new(format!("t{i}"), *len)).collect()
    }

    #[test]
    fn slices_cover_everything_once_and_keep_their_bound() {
        for max_len in [1, 3, 4, 100] {
            let granularity = Granularity::Slices { max_bytes: max_len * ELEMENT_BYTES + 1 };
            let layout = Layout::new(&specs(&[10, 0, 1, 4, 7]), granularity);
            let mut next = 0;
            for slice in layout.slices() {
                assert_eq!(slice.offset, next);
                assert!((1..=max_len).contains(&slice.len));
                assert_eq!(slice.offset - slice.start, layout.offsets[slice.tensor]);
                assert!(slice.within().end <= layout.tensors()[slice.tensor].len);
                next = slice.flat().end;
            }
            assert_eq!(next, 22);
        }
    }

    #[test]
    fn slices_of_a_tensor_are_nearly_equal() {
        let layout = Layout::new(&specs(&[10]), Granularity::Slices { max_bytes: 16 });
        let lens: Vec<usize> = layout.slices().iter().map(|slice| slice.len).collect();
        assert_eq!(lens, [3, 3, 4]);
    }

    #[test]
    fn whole_tensors_are_one_slice_and_empty_ones_none() {
        let layout = Layout::new(&specs(&[10, 0, 3]), Granularity::Tensors);
        let lens: Vec<usize> = layout.slices().iter().map(|slice| slice.len).collect();
        assert_eq!(lens, [10, 3]);
        assert_eq!((layout.len(), layout.bytes()), (13, 52));
    }

    #[test]
    fn shards_and_their_parts_cover_everything_once() {
        let layout = Layout::new(&specs(&[10, 0, 3, 8]), Granularity::Tensors);
        for count in 1..=25 {
            let mut next = 0;
            for index in 0..count {
                let range = layout.shard(index, count);
                assert_eq!(range.start, next);
                for part in layout.parts(range.clone()) {
                    assert_eq!(part.offset, next);
                    next += part.len;
                }
                assert_eq!(range.end, next);
            }
            assert_eq!(next, 21);
        }
    }

    #[test]
    fn huge_lengths_do_not_overflow() {
        assert_eq!(part_start(usize::MAX, 3, 3), usize::MAX);
    }
}
