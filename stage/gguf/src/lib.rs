//! GGUF model files: their prefix, cutting windows of layers out of them, and fetching just those bytes.

pub mod arch;
pub mod copy;
pub mod fetch;
mod header;
pub mod metadata;
pub mod model;
pub mod parts;
mod pieces;
pub mod prefix;
pub mod size;
pub mod source;
pub mod tensor;
pub mod window;

pub use model::{Model, ModelIdentity};
pub use source::ModelSource;
pub use window::{MiniGguf, WindowRole};
