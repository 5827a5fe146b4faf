//! Which variant a process uses, and what the environment can do about it.

use std::process::Command;

use syncline_kernels::{Variant, variant, variant_available};

/// Set in the child that reports its variant and ends.
const REPORT: &str = "KERNELS_TEST_REPORT_VARIANT";

/// The variant that a process with this setting reports.
fn variant_with(force_scalar: Option<&str>) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_reports", "--nocapture"]).env(REPORT, "1");
    match force_scalar {
        Some(value) => child.env("SYNCLINE_FORCE_SCALAR", value),
        None => child.env_remove("SYNCLINE_FORCE_SCALAR"),
    };
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let Some((_, rest)) = text.split_once("variant=") else { panic!("no report in {text:?}") };
    rest.split_whitespace().next().unwrap().to_owned()
}

/// Not a test by itself: what `variant_with` runs in a process of its own.
#[test]
fn child_reports() {
    if std::env::var_os(REPORT).is_some() {
        println!("variant={}", variant());
    }
}

#[test]
fn the_environment_forces_scalar() {
    assert_eq!(variant_with(Some("1")), "scalar");
}

#[test]
fn otherwise_the_most_capable_is_used() {
    let best = Variant::ALL.into_iter().rfind(|&variant| variant_available(variant)).unwrap();
    assert_eq!(variant_with(None), best.name());
    assert_eq!(variant_with(Some("0")), best.name());
    assert_eq!(variant_with(Some("")), best.name());
}

#[test]
fn scalar_is_always_available() {
    assert!(variant_available(Variant::Scalar));
    assert!(variant_available(variant()));
}
