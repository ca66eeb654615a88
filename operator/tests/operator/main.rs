//! From a Ring in YAML to the objects that should be there, and from what is there to what the user reads.

#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod api_server;
mod build;
mod cases;
mod convergence;
mod files;
mod invites;
mod process;
mod reader;
mod rolling;
mod running;
mod status;
mod unchanged;
mod world;
