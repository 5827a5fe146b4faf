//! Convolution by 3 x 3 windows, stride 1, zeros around the edge, so that the image keeps its
//! size. Owned by `network`.
//!
//! Each pixel's window becomes a row of 9 * channels values, so that the convolution of the whole
//! batch is one matrix product with `W` of shape [3, 3, channels in, channels out]. With the
//! channels of a pixel side by side, a window is three contiguous runs of memory.

use std::ops::Range;

use super::layer::{Layer, Pass, set_rows, sum_rows};
use super::matmul::{Product, View};
use super::tensor::Tensor;
use crate::data::ImageShape;

const SIDE: usize = 3;

/// See the module.
#[derive(Debug)]
pub(crate) struct Conv {
    input: ImageShape,
    outputs: usize,
    /// Place of the weights among the parameters; the biases follow.
    weight: usize,
    /// The windows of the last batch.
    windows: Vec<f32>,
    product: Product,
}

impl Conv {
    /// A layer with `outputs` channels out, whose two tensors this appends to `parameters`.
    pub(crate) fn new(
        name: &str,
        input: ImageShape,
        outputs: usize,
        parameters: &mut Vec<Tensor>,
        random: &mut fastrand::Rng,
    ) -> Self {
        let weight = parameters.len();
        let shape = [SIDE, SIDE, input.channels, outputs];
        let inputs = SIDE * SIDE * input.channels;
        parameters.push(Tensor::he(format!("{name}.weight"), &shape, inputs, random));
        parameters.push(Tensor::zeros(format!("{name}.bias"), &[outputs]));
        Self { input, outputs, weight, windows: Vec::new(), product: Product::default() }
    }

    /// Shape of what comes out.
    pub(crate) fn output(&self) -> ImageShape {
        ImageShape { channels: self.outputs, ..self.input }
    }

    fn window_len(&self) -> usize {
        SIDE * SIDE * self.input.channels
    }

    /// Calls `f(at, range)` for each run of values that an image and its windows share: `at` is
    /// where it starts among the windows of the image, `range` where it lies in the image.
    fn for_runs(&self, mut f: impl FnMut(usize, Range<usize>)) {
        let ImageShape { height, width, channels } = self.input;
        for y in 0..height {
            for x in 0..width {
                let window = (y * width + x) * self.window_len();
                // The edge cuts off columns of the window left of 0 and right of width - 1.
                let left = usize::from(x == 0);
                let right = if x + 1 == width { SIDE - 1 } else { SIDE };
                for row in 0..SIDE {
                    let Some(source) = (y + row).checked_sub(1).filter(|y| *y < height) else {
                        continue;
                    };
                    let at = window + (row * SIDE + left) * channels;
                    let first = (source * width + x + left - 1) * channels;
                    f(at, first..first + (right - left) * channels);
                }
            }
        }
    }

    /// Replaces `windows` by those of `images`.
    fn unfold(&self, images: &[f32], windows: &mut Vec<f32>) {
        let per_image = self.input.height * self.input.width * self.window_len();
        let batch = images.len() / self.input.values();
        windows.clear();
        windows.resize(batch * per_image, 0.0);
        let pairs =
            windows.chunks_exact_mut(per_image).zip(images.chunks_exact(self.input.values()));
        for (windows, image) in pairs {
            self.for_runs(|at, range| {
                windows[at..at + range.len()].copy_from_slice(&image[range]);
            });
        }
    }

    /// Replaces `images` by the sum, at each of their values, of that value's places in `windows`.
    fn fold(&self, windows: &[f32], images: &mut [f32]) {
        let per_image = self.input.height * self.input.width * self.window_len();
        images.fill(0.0);
        let pairs =
            windows.chunks_exact(per_image).zip(images.chunks_exact_mut(self.input.values()));
        for (windows, image) in pairs {
            self.for_runs(|at, range| {
                let run = &windows[at..at + range.len()];
                image[range].iter_mut().zip(run).for_each(|(value, part)| *value += part);
            });
        }
    }
}

impl Layer for Conv {
    fn output_len(&self) -> usize {
        self.output().values()
    }

    fn tensors(&self) -> Range<usize> {
        self.weight..self.weight + 2
    }

    fn forward(&mut self, parameters: &[Tensor], input: &[f32], output: &mut [f32]) {
        let mut windows = std::mem::take(&mut self.windows);
        self.unfold(input, &mut windows);
        let pixels = output.len() / self.outputs;
        let weight = View::new(&parameters[self.weight].data, self.window_len(), self.outputs);
        set_rows(output, &parameters[self.weight + 1].data);
        self.product.add(View::new(&windows, pixels, self.window_len()), weight, output);
        self.windows = windows;
    }

    fn backward(
        &mut self,
        parameters: &[Tensor],
        pass: &Pass<'_>,
        gradients: &mut [Tensor],
        d_input: Option<&mut [f32]>,
    ) {
        let pixels = pass.d_output.len() / self.outputs;
        let mut windows = std::mem::take(&mut self.windows);
        let d_output = View::new(pass.d_output, pixels, self.outputs);
        let d_weight = &mut gradients[self.weight].data;
        d_weight.fill(0.0);
        let window_len = self.window_len();
        self.product.add(View::new(&windows, pixels, window_len).transposed(), d_output, d_weight);
        sum_rows(pass.d_output, &mut gradients[self.weight + 1].data);
        if let Some(d_input) = d_input {
            // The windows have done their work; their memory takes their derivative.
            windows.fill(0.0);
            let weight = View::new(&parameters[self.weight].data, window_len, self.outputs);
            self.product.add(d_output, weight.transposed(), &mut windows);
            self.fold(&windows, d_input);
        }
        self.windows = windows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: each output pixel sums over its window and the channels.
    fn direct(shape: ImageShape, outputs: usize, w: &[f32], b: &[f32], image: &[f32]) -> Vec<f32> {
        let ImageShape { height, width, channels } = shape;
        let mut out = Vec::new();
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            for o in 0..outputs {
                let mut sum = f64::from(b[o]);
                for (dy, dx) in (0..3).flat_map(|dy| (0..3).map(move |dx| (dy, dx))) {
                    let (sy, sx) = ((y + dy).wrapping_sub(1), (x + dx).wrapping_sub(1));
                    if sy >= height || sx >= width {
                        continue;
                    }
                    for c in 0..channels {
                        let pixel = image[(sy * width + sx) * channels + c];
                        let weight = w[((dy * 3 + dx) * channels + c) * outputs + o];
                        sum += f64::from(pixel) * f64::from(weight);
                    }
                }
                out.push(sum as f32);
            }
        }
        out
    }

    #[test]
    fn windows_and_product_equal_the_definition() {
        let mut random = fastrand::Rng::with_seed(4);
        for (height, width, channels) in [(1, 1, 1), (1, 4, 2), (5, 1, 1), (4, 6, 3)] {
            let shape = ImageShape { height, width, channels };
            let mut parameters = Vec::new();
            let mut conv = Conv::new("c", shape, 5, &mut parameters, &mut random);
            parameters[1].data.fill_with(|| random.f32());
            let images: Vec<f32> = (0..2 * shape.values()).map(|_| random.f32() - 0.5).collect();
            let mut output = vec![7.0; 2 * conv.output_len()];
            conv.forward(&parameters, &images, &mut output);
            let (w, b) = (&parameters[0].data, &parameters[1].data);
            let expected: Vec<f32> = images
                .chunks_exact(shape.values())
                .flat_map(|image| direct(shape, 5, w, b, image))
                .collect();
            for (value, expected) in output.iter().zip(&expected) {
                assert!((value - expected).abs() < 1e-5, "{height} {width} {channels}");
            }
        }
    }
}
