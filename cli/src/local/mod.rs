//! A ring of processes on this machine, which `up` serves and `bench` measures: its folder, the fetch of its windows,
//! the command lines of its stages, and its market.

mod fetching;
mod folder;
mod market;
mod program;

pub(crate) use fetching::{Telling, fetch};
pub(crate) use folder::Folder;
pub(crate) use market::{RingMarket, reach, windows_of};
pub(crate) use program::{Program, Served};
