//! The largest of each 2 x 2 square; an odd last row or column is left out. Owned by `network`.

use super::layer::{Layer, Pass};
use super::tensor::Tensor;
use crate::data::ImageShape;

const SIDE: usize = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct MaxPool {
    input: ImageShape,
}

impl MaxPool {
    /// A layer over images of shape `input`.
    pub(crate) fn new(input: ImageShape) -> Self {
        Self { input }
    }

    /// Shape of what comes out.
    pub(crate) fn output(&self) -> ImageShape {
        let ImageShape { height, width, channels } = self.input;
        ImageShape { height: height / SIDE, width: width / SIDE, channels }
    }

    /// Calls `f` with the place of each output pixel and those of its four input pixels, all
    /// images of a batch of `batch` after one another.
    fn for_squares(&self, batch: usize, mut f: impl FnMut(usize, [usize; SIDE * SIDE])) {
        let ImageShape { width, channels, .. } = self.input;
        let output = self.output();
        let mut to = 0;
        for image in 0..batch {
            for y in 0..output.height {
                for x in 0..output.width {
                    let corner = (SIDE * y * width + SIDE * x) * channels;
                    let first = image * self.input.values() + corner;
                    let below = first + width * channels;
                    f(to, [first, first + channels, below, below + channels]);
                    to += channels;
                }
            }
        }
    }
}

impl Layer for MaxPool {
    fn output_len(&self) -> usize {
        self.output().values()
    }

    fn forward(&mut self, _: &[Tensor], input: &[f32], output: &mut [f32]) {
        let channels = self.input.channels;
        self.for_squares(input.len() / self.input.values(), |to, from| {
            let output = &mut output[to..to + channels];
            output.copy_from_slice(&input[from[0]..][..channels]);
            for from in &from[1..] {
                let input = &input[*from..][..channels];
                output.iter_mut().zip(input).for_each(|(y, x)| *y = y.max(*x));
            }
        });
    }

    fn backward(
        &mut self,
        _: &[Tensor],
        pass: &Pass<'_>,
        _: &mut [Tensor],
        d_input: Option<&mut [f32]>,
    ) {
        let Some(d_input) = d_input else { return };
        let channels = self.input.channels;
        d_input.fill(0.0);
        self.for_squares(pass.input.len() / self.input.values(), |to, from| {
            for channel in 0..channels {
                let largest = pass.output[to + channel];
                // Where several are largest, the first of them takes it all.
                let at =
                    from.iter().map(|from| from + channel).find(|at| pass.input[*at] == largest);
                if let Some(at) = at {
                    d_input[at] = pass.d_output[to + channel];
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_goes_forward_and_takes_the_derivative_back() {
        let mut pool = MaxPool::new(ImageShape { height: 3, width: 5, channels: 1 });
        assert_eq!(pool.output(), ImageShape { height: 1, width: 2, channels: 1 });
        #[rustfmt::skip]
        let image = [
            1.0, 2.0, 5.0, 5.0, 9.0,
            4.0, 3.0, 0.0, 5.0, 9.0,
            9.0, 9.0, 9.0, 9.0, 9.0,
        ];
        let input = [image, image.map(|x| -x)].concat();
        let mut output = vec![0.0; 4];
        pool.forward(&[], &input, &mut output);
        assert_eq!(output, [4.0, 5.0, -1.0, 0.0]);
        let mut d_input = vec![8.0; 30];
        let pass = Pass { input: &input, output: &output, d_output: &[1.0, 2.0, 3.0, 4.0] };
        pool.backward(&[], &pass, &mut [], Some(&mut d_input));
        let mut expected = vec![0.0; 30];
        (expected[5], expected[2], expected[15], expected[22]) = (1.0, 2.0, 3.0, 4.0);
        assert_eq!(d_input, expected);
    }
}
