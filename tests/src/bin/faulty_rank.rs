//! A rank that works until something goes wrong: the program of `tests/faults.rs`.
//!
//! Runs collectives of random kinds and sizes (the same on all ranks, from `SEED`), says `ready`,
//! and prints how it ended: `error KIND culprit=RANK text`. With `FAULT` set on rank `VICTIM` it
//! does something wrong in call number `AT`.

use std::io::Write;
use std::process::exit;
use syncline_comm::{Communicator, Error, ReduceOp};

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let number = |name: &str| variable(name).parse::<u64>().unwrap_or(u64::MAX);
    let (seed, at, victim) = (number("SEED"), number("AT"), number("VICTIM"));
    let fault = variable("FAULT");
    let world = match Communicator::init() {
        Ok(world) => world,
        Err(error) => end("join", &error),
    };
    let is_victim = u64::from(world.rank()) == victim;
    if let Err(error) = world.barrier() {
        end("barrier", &error);
    }
    say("ready");
    let mut random = fastrand::Rng::with_seed(seed);
    for call in 0_u64.. {
        let wrong = if is_victim && call == at { &*fault } else { "" };
        if let Err(error) = work(&world, &mut random, wrong) {
            end("call", &error);
        }
    }
}

/// One collective, or, on the victim at the appointed time, something else.
fn work(world: &Communicator, random: &mut fastrand::Rng, wrong: &str) -> Result<(), Error> {
    let count = 1 << random.u32(0..20);
    let kind = random.u32(0..4);
    let mut data = vec![1.0_f32; count];
    match wrong {
        "exit" => exit(7),
        "panic" => panic!("asked to"),
        "count" => return world.all_reduce(&mut vec![1.0_f32; count + 1], ReduceOp::Sum),
        "dtype" => return world.all_reduce(&mut vec![1_i32; count], ReduceOp::Sum),
        "op" => return world.all_reduce(&mut data, ReduceOp::Max),
        "kind" => return world.broadcast(&mut data, 0),
        _ => {}
    }
    match kind {
        0 | 1 => world.all_reduce(&mut data, ReduceOp::Sum),
        2 => {
            let mut gathered = vec![0.0; 100 * world.world_size() as usize];
            world.all_gather(&[1.0_f32; 100], &mut gathered)
        }
        _ => world.broadcast(&mut data, random.u32(0..world.world_size())),
    }
}

fn end(stage: &str, error: &Error) -> ! {
    let culprit = error.fault().and_then(|f| f.culprit).map_or(-1, i64::from);
    say(&format!("error {:?} culprit={culprit} stage={stage} {error}", error.kind()));
    exit(3)
}

fn say(line: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}
