use super::*;

fn run(optimiser: Optimiser, steps: &[(&[f32], f32)], w: &mut [f32], v: &[f32]) -> Moments {
    let mut moments = Moments::new(&optimiser, w.len());
    moments.first.copy_from_slice(v);
    for (updates, (gradient, rate)) in (0..).zip(steps) {
        optimiser.step(w, moments.all_mut(), gradient, StepSize::new(*rate, updates));
    }
    moments
}

#[test]
fn two_steps_of_sgd_by_hand() {
    let sgd = Sgd { momentum: 0.5, weight_decay: 0.25, is_nesterov: false };
    let mut w = [4.0, -8.0];
    let moments = run(sgd.into(), &[(&[1.0, 3.0], 0.5)], &mut w, &[0.0, 2.0]);
    assert_eq!((&moments.first[..], w), (&[2.0, 2.0][..], [3.0, -9.0]));
    let moments = run(sgd.into(), &[(&[0.25, 2.25], 0.5)], &mut w, &[2.0, 2.0]);
    assert_eq!((&moments.first[..], w), (&[2.0, 1.0][..], [2.0, -9.5]));
}

#[test]
fn nesterov_looks_one_step_ahead() {
    let sgd = Sgd { momentum: 0.5, weight_decay: 0.0, is_nesterov: true };
    let mut w = [1.0];
    // v = 0.5 * 4 + 1 = 3; w = 1 - 0.5 * (1 + 0.5 * 3)
    let moments = run(sgd.into(), &[(&[1.0], 0.5)], &mut w, &[4.0]);
    assert_eq!((moments.first[0], w[0]), (3.0, -0.25));
}

#[test]
fn adam_by_hand_and_its_first_step_has_the_length_of_the_rate() {
    let adam = Adam::default();
    for gradient in [1e-3_f32, 1.0, 250.0] {
        let mut w = [2.0];
        run(adam.into(), &[(&[gradient], 0.125)], &mut w, &[0.0]);
        assert!((w[0] - 1.875).abs() < 2e-5, "{w:?}");
    }
    // In f64, step by step, as the paper has it.
    let (mut m, mut u, mut expected) = (0.0_f64, 0.0_f64, 0.5_f64);
    let gradients = [0.3, -0.2, 0.7, 0.1];
    for (t, g) in (1..).zip(gradients) {
        m = 0.9 * m + 0.1 * g;
        u = 0.999 * u + 0.001 * g * g;
        let (m, u) = (m / (1.0 - 0.9_f64.powi(t)), u / (1.0 - 0.999_f64.powi(t)));
        expected -= 0.01 * m / (u.sqrt() + 1e-8);
    }
    let mut w = [0.5];
    let singles = gradients.map(|g| [g as f32]);
    let steps = singles.each_ref().map(|g| (&g[..], 0.01));
    run(adam.into(), &steps, &mut w, &[0.0]);
    assert!((f64::from(w[0]) - expected).abs() < 1e-6, "{} {expected}", w[0]);
}

#[test]
fn decoupled_decay_leaves_the_moments_alone() {
    let adamw = Adam { weight_decay: 0.1, is_decoupled: true, ..Adam::default() };
    let mut w = [2.0];
    let moments = run(adamw.into(), &[(&[0.0], 0.5)], &mut w, &[0.0]);
    assert_eq!((moments.first[0], moments.second[0]), (0.0, 0.0));
    assert!((w[0] - 1.9).abs() < 1e-6);
}

#[test]
fn a_preview_is_the_step_to_the_bit() {
    let mut random = fastrand::Rng::with_seed(5);
    for name in ["sgd", "nesterov", "adam", "adamw"] {
        let optimiser: Optimiser = name.parse().unwrap();
        let mut list = || (0..37).map(|_| random.f32() - 0.5).collect::<Vec<f32>>();
        let (mut w, gradient) = (list(), list());
        let mut moments = Moments::new(&optimiser, 37);
        let size = StepSize { learning_rate: 0.3, gradient_scale: 0.7, updates: 3 };
        optimiser.step(&mut w, moments.all_mut(), &list(), size);
        let mut seen = vec![0.0; 37];
        let own = gradient.iter().copied();
        optimiser.preview(&w, moments.range(0..37), own, size, &mut seen);
        optimiser.step(&mut w, moments.all_mut(), &gradient, size);
        assert_eq!(seen, w, "{name}");
    }
}

#[test]
fn without_decay_infinite_parameters_leave_the_velocity_finite() {
    let sgd = Sgd { momentum: 0.5, ..Sgd::default() };
    let moments = run(sgd.into(), &[(&[1.0], 0.1)], &mut [f32::INFINITY], &[1.0]);
    assert_eq!(moments.first, [1.5]);
}

#[test]
fn clipping_by_hand() {
    assert_eq!(clip_scale(10.0, Some(2.5)), 0.25);
    assert_eq!(clip_scale(2.0, Some(2.5)), 1.0);
    assert_eq!(clip_scale(10.0, None), 1.0);
    assert_eq!(clip_scale(f64::NAN, Some(1.0)), 1.0);
    assert_eq!(clip_scale(f64::INFINITY, Some(1.0)), 1.0);
    let values: Vec<f32> = (1..=11).map(|x| x as f32).collect();
    assert_eq!(sum_of_squares(&values), 506.0);
}

#[test]
fn bad_settings_are_named() {
    for (bad, text) in [
        (Optimiser::from(Sgd { momentum: 1.0, ..Sgd::default() }), "momentum"),
        (Sgd { weight_decay: f32::NAN, ..Sgd::default() }.into(), "decay"),
        (Adam { beta2: 1.0, ..Adam::default() }.into(), "beta2"),
        (Adam { epsilon: 0.0, ..Adam::default() }.into(), "epsilon"),
    ] {
        let error = bad.validate().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!("sdg".parse::<Optimiser>().unwrap_err().to_string().contains("'sdg'"));
}
