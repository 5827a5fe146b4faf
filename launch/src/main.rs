//! The `syncline` command. Owns nothing but the entry point: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    syncline_launch::cli::main()
}
