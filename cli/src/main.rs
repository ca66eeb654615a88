//! The `kvasir` command.

fn main() -> std::process::ExitCode {
    kvasir_cli::run(std::env::args_os())
}
