//! `kvasir bench RING.yaml` and `kvasir bench relay` under one name.

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::{Bench, relay::RelayBench};

const RELAY: &str = "relay";

/// What is measured.
#[derive(Debug)]
pub enum BenchCommand {
    /// a ring against the whole model
    Ring(Box<Bench>),
    /// the relay against nginx
    Relay(RelayBench),
}

impl BenchCommand {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        match self {
            BenchCommand::Ring(ring) => ring.run().await,
            BenchCommand::Relay(relay) => relay.run().await,
        }
    }
}

impl FromArgMatches for BenchCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((RELAY, matches)) => RelayBench::from_arg_matches(matches).map(BenchCommand::Relay),
            _ => Bench::from_arg_matches(matches).map(|ring| BenchCommand::Ring(Box::new(ring))),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for BenchCommand {
    fn augment_args(command: Command) -> Command {
        Bench::augment_args(command)
            .subcommand(RelayBench::augment_args(Command::new(RELAY)))
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
