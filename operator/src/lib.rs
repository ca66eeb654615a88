//! The operator: keeps each `Ring` of a cluster served by pods that hold one window each.
//!
//! A visit of a Ring goes through five steps, a module each: [`dereference`] (reads what the Ring names), [`validate`]
//! (can it be served, and by which plan), [`build`] (the objects that should be there), [`apply`] (makes it so), [`status`]
//! (says what is). `validate` and `build` have no client: the same Ring and model give the same objects. [`controller`] is
//! the loop around them.
//!
//! Beside them: [`model`] reads prefixes, [`market`] talks to relays, [`leader`] lets one process of several work,
//! [`holder`] tells whose a Ring is where several operators could serve it, [`newest`] whether a visit is out of date,
//! [`definition`] compares the served schema with the one needed, [`metrics`] and [`events`] tell what happens.

pub mod apply;
pub mod build;
pub mod cli;
pub mod compare;
pub mod context;
pub mod controller;
pub mod definition;
pub mod dereference;
pub mod events;
pub mod holder;
pub mod http;
pub mod labels;
pub mod leader;
pub mod market;
pub mod metrics;
pub mod model;
pub mod names;
pub mod newest;
pub mod offer;
pub mod reader;
pub mod release;
pub mod run;
pub mod settings;
pub mod source;
pub mod status;
pub mod switch;
pub mod validate;
