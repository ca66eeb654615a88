//! From a Ring in YAML to the objects that should be there, and from what is there to what the user reads.

#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod api_server;
mod build;
mod cases;
mod convergence;
mod files;
mod hindrances;
mod invites;
mod process;
mod reader;
mod rivals;
mod rolling;
mod running;
mod scaling;
mod status;
mod telling;
mod unchanged;
mod world;
