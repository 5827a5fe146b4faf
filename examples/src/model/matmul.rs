//! Matrix product on one thread: blocked, packed, in plain loops that the compiler vectorises.
//!
//! ```text
//! c += a b, in blocks of DEPTH along the shared extent:
//!   pack b's block into panels of WIDE columns      b[k][0..WIDE], k = 0, 1, ...
//!   for each panel of TALL rows of a: pack it, then for each panel of b:
//!     a TALL x WIDE tile of sums stays in registers over the whole block, then is added to c
//! ```
//! Why not a crate: the well-kept `matrixmultiply` has only an unsafe entry, and picks fused
//! kernels by processor, so that its results differ between machines. These sums are in one fixed
//! order everywhere. Their speed is in `examples/MAP.md`.
//!
//! Called by the layers; never allocates once its scratch has grown.

/// Rows of a tile. TALL x WIDE sums, WIDE values of b and one of a fit in 16 vector registers.
const TALL: usize = 4;
/// Columns of a tile.
const WIDE: usize = 8;
/// Length of a block along the shared extent: a panel of b (DEPTH x WIDE) takes 8 KiB of cache.
const DEPTH: usize = 256;

/// A matrix in borrowed memory.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    /// Whether rows, or else columns, are contiguous.
    by_rows: bool,
}

impl<'a> View<'a> {
    /// `data` as `rows` rows of `columns` values.
    ///
    /// # Panics
    ///
    /// `data` has another length.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "{rows} x {columns}");
        Self { data, rows, columns, by_rows: true }
    }

    /// The same memory read as the transposed matrix.
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, by_rows: !self.by_rows, ..self }
    }
}

/// The product's scratch memory, kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct Product {
    panel: Vec<f32>,
    block: Vec<f32>,
}

impl Product {
    /// Adds the product of `a` and `b` to `c`, which is in row-major order.
    ///
    /// # Panics
    ///
    /// The extents do not fit together.
    pub fn add(&mut self, a: View<'_>, b: View<'_>, c: &mut [f32]) {
        assert_eq!(a.columns, b.rows, "shared extent");
        assert_eq!(c.len(), a.rows * b.columns, "extents of the result");
        if b.columns == 0 {
            return;
        }
        for start in (0..a.columns).step_by(DEPTH) {
            let depth = DEPTH.min(a.columns - start);
            self.block.clear();
            for column in (0..b.columns).step_by(WIDE) {
                pack::<WIDE>(b.transposed(), column, start, depth, &mut self.block);
            }
            for (row, band) in c.chunks_mut(TALL * b.columns).enumerate() {
                self.panel.clear();
                pack::<TALL>(a, row * TALL, start, depth, &mut self.panel);
                for (column, panel) in self.block.chunks_exact(depth * WIDE).enumerate() {
                    let tile = tile(&self.panel, panel);
                    add_tile(&tile, column * WIDE, b.columns, band);
                }
            }
        }
    }
}

/// Appends rows `first..first + LANES` of `view`, columns `start..start + depth`, column after
/// column. Rows past the end count as zero.
fn pack<const LANES: usize>(
    view: View<'_>,
    first: usize,
    start: usize,
    depth: usize,
    out: &mut Vec<f32>,
) {
    let lanes = LANES.min(view.rows - first);
    let from = out.len();
    out.resize(from + depth * LANES, 0.0);
    let packed = &mut out[from..];
    if view.by_rows {
        for lane in 0..lanes {
            let row = &view.data[(first + lane) * view.columns + start..][..depth];
            for (group, value) in packed.chunks_exact_mut(LANES).zip(row) {
                group[lane] = *value;
            }
        }
    } else if lanes == LANES {
        for (k, group) in packed.chunks_exact_mut(LANES).enumerate() {
            group.copy_from_slice(&view.data[(start + k) * view.rows + first..][..LANES]);
        }
    } else {
        for (k, group) in packed.chunks_exact_mut(LANES).enumerate() {
            let column = &view.data[(start + k) * view.rows + first..][..lanes];
            group[..lanes].copy_from_slice(column);
        }
    }
}

/// The product of a packed panel of a and one of b.
fn tile(a: &[f32], b: &[f32]) -> [[f32; WIDE]; TALL] {
    let mut sums = [[0.0f32; WIDE]; TALL];
    for (a, b) in a.as_chunks::<TALL>().0.iter().zip(b.as_chunks::<WIDE>().0) {
        for (row, a) in sums.iter_mut().zip(a) {
            for (sum, b) in row.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// Adds what of `tile` lies inside of `band`, up to `TALL` rows of `columns` values, from column
/// `column` on.
fn add_tile(tile: &[[f32; WIDE]; TALL], column: usize, columns: usize, band: &mut [f32]) {
    let wide = WIDE.min(columns - column);
    for (row, sums) in band.chunks_exact_mut(columns).zip(tile) {
        let row = &mut row[column..column + wide];
        row.iter_mut().zip(sums).for_each(|(value, sum)| *value += sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..len).map(|_| random.f32() - 0.5).collect()
    }

    #[test]
    fn products_of_all_shapes_and_layouts_match_the_textbook() {
        let shapes = [(1, 1, 1), (4, 256, 8), (5, 257, 9), (3, 600, 17), (33, 7, 31), (64, 9, 32)];
        for (rows, shared, columns) in shapes {
            let (a, b) = (random(rows * shared, 1), random(shared * columns, 2));
            let start = random(rows * columns, 3);
            let mut expected = vec![0.0; rows * columns];
            for (index, value) in expected.iter_mut().enumerate() {
                let (i, j) = (index / columns, index % columns);
                let sum: f64 = (0..shared)
                    .map(|k| f64::from(a[i * shared + k]) * f64::from(b[k * columns + j]))
                    .sum();
                *value = (f64::from(start[index]) + sum) as f32;
            }
            let flip = |data: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                (0..rows * columns).map(|i| data[i % rows * columns + i / rows]).collect()
            };
            let (a_flipped, b_flipped) = (flip(&a, rows, shared), flip(&b, shared, columns));
            let a_views =
                [View::new(&a, rows, shared), View::new(&a_flipped, shared, rows).transposed()];
            let b_views = [
                View::new(&b, shared, columns),
                View::new(&b_flipped, columns, shared).transposed(),
            ];
            for (a, b) in a_views.into_iter().flat_map(|a| b_views.map(|b| (a, b))) {
                let mut c = start.clone();
                Product::default().add(a, b, &mut c);
                for (value, expected) in c.iter().zip(&expected) {
                    assert!((value - expected).abs() < 1e-4, "{rows} {shared} {columns}");
                }
            }
        }
    }

    #[test]
    fn empty_extents_leave_the_result_alone() {
        let mut c = [1.0, 2.0];
        Product::default().add(View::new(&[], 2, 0), View::new(&[], 0, 1), &mut c);
        assert_eq!(c, [1.0, 2.0]);
        Product::default().add(View::new(&c, 2, 1), View::new(&[], 1, 0), &mut []);
    }
}
