//! Softmax cross entropy, and counting right answers. Called by `network`.

/// Mean of `-ln softmax(scores)[label]` over a batch; replaces `scores` by its derivative.
///
/// `scores` has one row of `classes` values per label.
pub(crate) fn cross_entropy(scores: &mut [f32], labels: &[u8], classes: usize) -> f32 {
    let share = 1.0 / labels.len() as f32;
    let mut loss = 0.0;
    for (row, label) in scores.chunks_exact_mut(classes).zip(labels) {
        let label = usize::from(*label);
        // Shifted by the largest score, no exponential overflows and the sum is at least 1.
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|score| *score -= largest);
        let own = row[label];
        row.iter_mut().for_each(|score| *score = score.exp());
        let sum: f32 = row.iter().sum();
        loss += sum.ln() - own;
        row.iter_mut().for_each(|score| *score *= share / sum);
        row[label] -= share;
    }
    loss * share
}

/// Sum of `-ln softmax(scores)[label]` over a batch. Infinite or NaN if a score is.
pub(crate) fn total(scores: &[f32], labels: &[u8], classes: usize) -> f64 {
    let of_row = |(row, label): (&[f32], &u8)| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|score| (score - largest).exp()).sum();
        f64::from(sum.ln() - (row[usize::from(*label)] - largest))
    };
    scores.chunks_exact(classes).zip(labels).map(of_row).sum()
}

/// How many rows have their largest score at their label.
pub(crate) fn correct(scores: &[f32], labels: &[u8], classes: usize) -> usize {
    let is_right = |(row, label): (&[f32], &u8)| {
        let own = row[usize::from(*label)];
        // With NaN among the scores nothing is right.
        row.iter().enumerate().all(|(at, score)| at == usize::from(*label) || *score < own)
    };
    scores.chunks_exact(classes).zip(labels).filter(|pair| is_right(*pair)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_derivative_of_a_known_case() {
        let mut scores = [0.0, 3f32.ln(), 1000.0, 0.0];
        let sum = total(&scores, &[1, 0], 2);
        let loss = cross_entropy(&mut scores, &[1, 0], 2);
        assert!((sum - 2.0 * f64::from(loss)).abs() < 1e-6, "{sum}");
        assert!(total(&[f32::NAN, 0.0], &[1], 2).is_nan());
        assert!((loss - 0.5 * (4.0f32 / 3.0).ln()).abs() < 1e-6, "{loss}");
        let expected = [0.125, -0.125, 0.0, 0.0];
        assert!(scores.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6), "{scores:?}");
    }

    #[test]
    fn only_a_single_largest_score_is_right() {
        assert_eq!(correct(&[1.0, 2.0, 2.0, 1.0], &[1, 1], 2), 1);
        assert_eq!(correct(&[1.0, 1.0, f32::NAN, 1.0], &[1, 1], 2), 0);
    }
}
