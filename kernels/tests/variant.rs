//! Which variant a process uses, and what the environment can do about it.

use std::process::Command;

use syncline_kernels::{Variant, variant, variant_available};

/// Set in the child that reports its variant and ends.
const REPORT: &str = "KERNELS_TEST_REPORT_VARIANT";

/// What a process with this setting prints when it reports its variant.
fn report_with(force_scalar: Option<&str>) -> std::io::Result<String> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--exact", "child_reports", "--nocapture"]).env(REPORT, "1");
    match force_scalar {
        Some(value) => child.env("SYNCLINE_FORCE_SCALAR", value),
        None => child.env_remove("SYNCLINE_FORCE_SCALAR"),
    };
    let output = child.output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Panics unless a process with this setting uses `wanted`.
#[track_caller]
fn assert_uses(force_scalar: Option<&str>, wanted: Variant) {
    let report = report_with(force_scalar).expect("the test can start itself");
    assert!(report.contains(&format!("variant={wanted};")), "{wanted} not in {report:?}");
}

/// Not a test by itself: what `report_with` runs in a process of its own.
#[test]
fn child_reports() {
    if std::env::var_os(REPORT).is_some() {
        println!("variant={};", variant());
    }
}

#[test]
fn the_environment_forces_scalar() {
    assert_uses(Some("1"), Variant::Scalar);
}

#[test]
fn otherwise_the_most_capable_is_used() {
    let best = Variant::ALL.into_iter().rfind(|&variant| variant_available(variant)).unwrap();
    assert_uses(None, best);
    assert_uses(Some("0"), best);
    assert_uses(Some(""), best);
}

#[test]
fn scalar_is_always_available() {
    assert!(variant_available(Variant::Scalar));
    assert!(variant_available(variant()));
}
