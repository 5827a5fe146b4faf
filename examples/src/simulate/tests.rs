//! From words typed to table and JSON.

use clap::{CommandFactory, Parser};

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    options: SimulateOptions,
}

fn parse(line: &str) -> Result<SimulateOptions, String> {
    let words = std::iter::once("simulate").chain(line.split_whitespace());
    Command::try_parse_from(words).map(|c| c.options).map_err(|error| error.to_string())
}

fn report(line: &str) -> SimulateReport {
    simulate(&parse(&format!("--quiet {line}")).unwrap()).unwrap()
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9 * b.abs(), "{a} is not {b}");
}

#[test]
fn the_definition_is_sound() {
    Command::command().debug_assert();
}

#[test]
fn bsp_by_hand_and_osp_hides_all_it_may() {
    // 100 MB at 10 Gbit/s are 80 ms, twice 7/8 of it on the wire: 140 ms, and no latency.
    let report = report("--ranks 8 --bandwidth 10G --latency 0 --models bsp,osp --compute 200ms");
    let [bsp, osp] = &report.cells[0].runs[..] else { panic!("two models") };
    near(bsp.step_ms, 340.0);
    near(bsp.samples_per_s, 8.0 * 32.0 / 0.34);
    near(bsp.exposed_comm_pct, 14000.0 / 340.0);
    // More would hide: the cap is 80 %, so that 28 ms are left.
    assert!((osp.deferred_pct - 80.0).abs() < 0.5, "{}", osp.deferred_pct);
    assert!((osp.step_ms - 228.0).abs() < 1.0, "{}", osp.step_ms);
    assert!(report.cells[0].verdict().starts_with("8 ranks, 10 Gbit/s: OSP, 1.49 x"));
}

/// As above, on servers: shards hide about as much as reductions; one server's link carries seven
/// pushes and then seven replies of 80 ms, be it on a rank beside them or on one of them.
#[test]
fn osp_on_servers_is_bound_by_their_links() {
    let line = "--ranks 8 --bandwidth 10G --latency 0 --compute 200ms --models bsp,osp-ps,\
                osp-ps:placement=colocated@3,osp-ps:placement=dedicated";
    let report = report(line);
    let [_, sharded, colocated, dedicated] = &report.cells[0].runs[..] else { panic!("four") };
    assert!((75.0..=80.0).contains(&sharded.deferred_pct), "{}", sharded.deferred_pct);
    // 28 ms of 140 at the least, as slices allow, and a little more for heads.
    assert!((228.0..235.0).contains(&sharded.step_ms), "{}", sharded.step_ms);
    for run in [colocated, dedicated] {
        let all = 14.0 * 80.0;
        assert!((200.0 + 0.5 * all..200.0 + all).contains(&run.step_ms), "{}", run.step_ms);
        assert!((10.0..50.0).contains(&run.deferred_pct), "{}", run.deferred_pct);
    }
    assert!((dedicated.step_ms / colocated.step_ms - 1.0).abs() < 0.02);
    let workers = |run: &ModelRun| (run.samples_per_s * run.step_ms / 32e3).round();
    assert_eq!([workers(sharded), workers(colocated), workers(dedicated)], [8.0, 8.0, 7.0]);
}

#[test]
fn a_free_link_leaves_nothing_to_gain() {
    let report = report("--ranks 2,4 --bandwidth none --latency 0");
    for cell in &report.cells {
        assert!(cell.verdict().contains("free link: BSP; no other"), "{}", cell.verdict());
        for run in &cell.runs {
            assert_eq!((run.exposed_comm_pct, run.ratio_to_bsp.unwrap().round()), (0.0, 1.0));
        }
    }
}

#[test]
fn a_network_learns_in_virtual_time() {
    let line = "--gradients real --net mlp --ranks 2 --bandwidth 100mbit --compute 5ms --epochs 4 \
                --target 0.8";
    let report = report(line);
    for run in &report.cells[0].runs {
        let name = run.model.name();
        assert_eq!(run.curve.len(), 4, "{name}");
        assert!(run.final_accuracy.unwrap() > 0.85, "{name}: {:?}", run.curve);
        assert!(run.curve[3].loss < 0.5 * run.curve[0].loss, "{name}: {:?}", run.curve);
        assert!(run.time_to_target_s.unwrap() <= run.end_s, "{name}");
    }
    let text = report.text();
    assert!(text.contains("to 80 %") && text.contains("digits, MLP"), "{text}");
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<SimulateReport>(&json).unwrap(), report);
}

/// Two of three ranks learn, with as much of the data each as ranks of two.
#[test]
fn a_network_learns_beside_a_dedicated_server() {
    let options = "--gradients real --net mlp --bandwidth 100mbit --compute 5ms --epochs 4";
    let report = |rest: &str| report(&format!("{options} {rest}")).cells.remove(0).runs;
    let served = &report("--ranks 3 --models osp-ps:placement=dedicated@0:share=0")[0];
    let bsp = &report("--ranks 2 --models bsp")[0];
    assert_eq!(served.curve.len(), 4);
    // With nothing deferred it is BSP.
    for (served, bsp) in served.curve.iter().zip(&bsp.curve) {
        assert_eq!((served.loss, served.accuracy), (bsp.loss, bsp.accuracy));
    }
}

#[test]
fn testbeds_say_what_is_ours() {
    for (name, ranks, word) in [("osp9", 8, "Assumed"), ("sync-switch-s1", 8, "packets")] {
        let report = report(&format!("--testbed {name}"));
        assert_eq!((report.cells.len(), report.cells[0].ranks), (1, ranks));
        assert!(report.text().contains(word), "{}", report.text());
    }
    let options = parse("--testbed sync-switch-s2 --bandwidth 1G,25G --models bsp").unwrap();
    let plan = Plan::new(&options).unwrap();
    assert_eq!((plan.rates.len(), plan.stragglers.len()), (2, 8));
    // Two slow ranks, slow at the same time: 30 ms in 24 of 48 steps.
    let step_ms = |line: &str| report(line).cells[0].runs[0].step_ms;
    let slow = step_ms("--testbed sync-switch-s2 --models bsp");
    near(slow, step_ms("--testbed sync-switch-s2 --models bsp --straggler 0:0ms") + 15.0);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    for (line, reason) in [
        ("--ranks 0", "0 is not in 1..=4096"),
        ("--bandwidth 10", "write bits per second"),
        ("--bytes 7", "write 500kB"),
        ("--bytes nan", "write 500kB"),
        ("--compute 0", "takes some time"),
        ("--jitter 2", "a number from 0 to 1"),
        ("--models xsp", "no sync model 'xsp'"),
        ("--testbed moon", "possible values"),
    ] {
        let message = parse(line).unwrap_err();
        assert!(message.contains(reason), "{line}: {message}");
    }
    for (line, reason) in [
        ("--gradients real --ranks 65", "at most 64 ranks"),
        ("--ranks 4,8 --straggler 5:1ms", "no rank 5 among 4"),
        ("--gradients real --ranks 32 --batch 64", "choose a smaller --batch"),
        ("--ranks 8,4 --models osp-ps:placement=dedicated@6", "is below 4, not 6"),
        ("--models osp-ps:placement=dedicated --straggler 0:1ms", "rank 0 of 'osp-ps:placement"),
    ] {
        let error = simulate(&parse(&format!("-q {line}")).unwrap()).unwrap_err().to_string();
        assert!(error.contains(reason), "{line}: {error}");
    }
    let bytes = |text: &str| parse(&format!("--bytes {text}")).unwrap().bytes;
    assert_eq!([bytes("1.5MB"), bytes("2KiB")], [Some(1_500_000), Some(2048)]);
}
