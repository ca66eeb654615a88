//! The relay over real sockets, in this process and as its own.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]
#![allow(clippy::float_cmp, reason = "counters are whole numbers")]

mod behind_nginx;
mod evil;
mod liveness;
mod pairing;
mod passage;
mod pressure;
mod process;
mod relay;
mod shutdown;
mod tls;
mod upgrade;
