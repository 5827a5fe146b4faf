//! Sessions over real processes: this test binary starts itself once per rank.

#![expect(clippy::disallowed_methods, reason = "a rank is told by the environment what it is")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use syncline::comm::testing::free_port;
use syncline::{
    BudgetRule, Communicator, DsspConfig, Error, GradientModel, GradientSync, GradientSyncConfig,
    Granularity, ModelKind, OspConfig, OspServerConfig, Session, SessionConfig, SspConfig,
    TensorSpec,
};

const RANKS: u32 = 3;
const LEN: usize = 5000;
const MODELS: [&str; 11] =
    ["asp", "bsp", "ddp", "diloco", "dssp", "gba", "local-sgd", "osp", "osp-ps", "r2sp", "ssp"];
/// In place of a model: ranks that synchronise gradients.
const GRADIENTS: &str = "gradients";
/// Names the model, in a child only.
const MODEL: &str = "SYNCLINE_TEST_MODEL";
/// Says which rank ends without a word, and where: "1 step", "1 switch", "1 drain", "1 hold"; in a
/// child only.
const CRASH: &str = "SYNCLINE_TEST_CRASH";

fn config(name: &str) -> SessionConfig {
    let defer = |osp| OspConfig {
        budget: BudgetRule::fixed(0.7),
        granularity: Granularity::Slices { max_bytes: 1000 },
        ..osp
    };
    let model = match name.parse().expect("a model") {
        // Two steps after a rank has ended, the others are held.
        ModelKind::Ssp(ssp) => ModelKind::Ssp(SspConfig { staleness: 1, ..ssp }),
        ModelKind::Dssp(dssp) => ModelKind::Dssp(DsspConfig { lower: 1, r_max: 0, ..dssp }),
        ModelKind::Osp(osp) => ModelKind::Osp(defer(osp)),
        ModelKind::OspServer(server) => {
            ModelKind::OspServer(OspServerConfig { osp: defer(server.osp), ..server })
        }
        model => model,
    };
    SessionConfig { model, check_every: 5, audits: true, ..SessionConfig::default() }
}

/// One rank: trains, and prints a line with the sum of its final parameters' bits, or its error.
#[test]
#[ignore = "a rank of the other tests, which start it"]
fn rank() {
    let Ok(name) = std::env::var(MODEL) else { return };
    let world = Communicator::init().expect("joined");
    let crash = std::env::var(CRASH).unwrap_or_default();
    let place = crash.strip_prefix(&format!("{} ", world.rank())).unwrap_or_default();
    let is_held = crash.ends_with(" hold");
    let outcome = match name.as_str() {
        GRADIENTS => synchronise(&world, place),
        name => train(&world, &config(name), place, is_held),
    };
    match outcome {
        Ok(end) => println!("\nend {end}"),
        Err(Error::Communication(error)) => println!("\nend {:?}", error.kind()),
        Err(error) => panic!("{error}"),
    }
}

/// Trains, switches to another model after 20 steps, drains after 25. Ends at `place`, if any;
/// where ranks are to be held, when all others have begun the step in which they are.
fn train(
    world: &Communicator,
    config: &SessionConfig,
    place: &str,
    is_held: bool,
) -> syncline::Result<String> {
    let next = match config.model {
        ModelKind::Asp(_) => "bsp",
        ModelKind::Bsp | ModelKind::BspBuckets(_) | ModelKind::Gba(_) => "osp",
        ModelKind::Dssp(_) => "r2sp",
        ModelKind::R2sp(_) => "gba",
        ModelKind::Ssp(_) => "dssp",
        ModelKind::Osp(_) => "osp-ps",
        _ => "asp",
    };
    let crash_at = |here: &str| {
        if place == here {
            std::process::exit(0);
        }
    };
    let mut random = fastrand::Rng::with_seed(u64::from(world.rank()));
    let mut parameters: Vec<f32> = (0..LEN).map(|_| random.f32() - 0.5).collect();
    let specs = [TensorSpec::new("all", LEN)];
    let mut session = Session::new(world, &specs, &mut [&mut parameters], config)?;
    let mut deferred = 0;
    for step in 0..30 {
        match step {
            17 if place == "hold" => {
                [0, 2].into_iter().try_for_each(|rank| world.recv(&mut [0_u8], rank, 1))?;
                crash_at("hold");
            }
            17 => crash_at("step"),
            18 if is_held => world.send(&[1_u8], 1, 1)?,
            20 => {
                crash_at("switch");
                session.switch_to(self::config(next).model, &mut [&mut parameters])?;
            }
            25 => {
                crash_at("drain");
                session.drain(&mut [&mut parameters])?;
            }
            _ => {}
        }
        let gradient: Vec<f32> = (0..LEN).map(|_| random.f32() - 0.5).collect();
        deferred += session.step(&mut [&mut parameters], &[&gradient], 0.01, 1.0)?.bytes_deferred;
        if step % 10 == 9 {
            session.end_epoch(1.0)?;
        }
    }
    session.finish(&mut [&mut parameters])?;
    let bits = parameters
        .iter()
        .fold(0_u64, |sum, x| sum.wrapping_mul(31).wrapping_add(u64::from(x.to_bits())));
    Ok(format!("{bits:x} deferred {deferred}"))
}

/// Synchronises gradients, most of them deferred, and drains. Ends at `place`, if any.
fn synchronise(world: &Communicator, place: &str) -> syncline::Result<String> {
    let specs = [TensorSpec::new("all", LEN)];
    let config = GradientSyncConfig { model: GradientModel::osp(0.7), check_every: 5 };
    let mut sync = GradientSync::new(world, &specs, config)?;
    let mut gradient = vec![0.0; LEN];
    for step in 0..30 {
        if step == 17 && place == "step" {
            std::process::exit(0);
        }
        gradient.fill(world.rank() as f32);
        if let Err(error) = sync.synchronise(&mut [&mut gradient]) {
            let after = sync.drain(&mut [&mut gradient]);
            assert!(matches!(after, Err(Error::Finished { .. })), "{after:?}");
            return Err(error);
        }
    }
    if place == "drain" {
        std::process::exit(0);
    }
    sync.drain(&mut [&mut gradient])?;
    sync.resynchronise(&mut [&mut gradient])?;
    Ok("all".to_owned())
}

fn start(name: &str, rank: u32, port: u16, crash: &str) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--ignored", "--exact", "rank", "--nocapture"])
        .env(MODEL, name)
        .env(CRASH, crash)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", RANKS.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("SYNCLINE_JOB_SECRET", "5a".repeat(32))
        .env("SYNCLINE_TIMEOUT_S", "60")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn run(name: &str, crash: &str) -> Vec<String> {
    let port = free_port();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(name, rank, port, crash)).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    for rank in &mut ranks {
        while rank.try_wait().expect("its state").is_none() {
            if Instant::now() > deadline {
                // Leave nothing behind; the outputs below say how far it came.
                rank.kill().expect("killed");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let finish = |rank: Child| {
        let output = rank.wait_with_output().expect("its output");
        let [out, err] = [&output.stdout, &output.stderr].map(|x| String::from_utf8_lossy(x));
        assert!(output.status.success(), "{name}: {}\n{out}\n{err}", output.status);
        let line = out.lines().find(|line| line.starts_with("end "));
        line.unwrap_or("none").to_owned()
    };
    ranks.into_iter().map(finish).collect()
}

#[test]
fn processes_end_with_the_same_bits() {
    for name in MODELS {
        let ends = run(name, "");
        assert!(ends.iter().all(|end| *end == ends[0]), "{name}: {ends:?}");
        // OSP and DiLoCo defer; three others switch to OSP.
        let defers = ["bsp", "ddp", "diloco", "gba", "osp", "osp-ps"].contains(&name);
        assert_eq!(!ends[0].ends_with(" deferred 0"), defers, "{ends:?}");
    }
}

#[test]
fn a_rank_that_ends_is_a_lost_peer_to_all_others() {
    for place in ["step", "switch", "drain", "hold"] {
        let can_hold = |name: &&str| place != "hold" || ["ssp", "dssp"].contains(name);
        for name in MODELS.into_iter().filter(can_hold) {
            let ends = run(name, &format!("1 {place}"));
            assert_eq!(ends, ["end PeerLost", "none", "end PeerLost"], "{name}, {place}");
        }
    }
}

#[test]
fn a_rank_that_ends_is_lost_to_those_that_synchronise_gradients() {
    assert_eq!(run(GRADIENTS, ""), ["end all"; 3]);
    for place in ["step", "drain"] {
        let ends = run(GRADIENTS, &format!("1 {place}"));
        assert_eq!(ends, ["end PeerLost", "none", "end PeerLost"], "{place}");
    }
}
