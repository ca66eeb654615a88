//! `kvasir-stage profile`: what planning needs to know of a model, for an operator that can't read the model itself.

use anyhow::Context;
use kvasir_gguf::source::{self, Access, ModelSource};
use kvasir_plan::ModelProfile;

use super::say;
use crate::trial::Trial;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model's source as in a Ring, in JSON: {"file":{"path":"…"}}, {"http":{"url":"…"}} or {"huggingFace":{…}}
    #[arg(long, env = "KVASIR_SOURCE")]
    source: String,
}

impl Args {
    /// Reads the model's prefix, tries it, and writes its profile as one line of JSON on standard output.
    pub(super) async fn run(self, trial: &Trial) -> anyhow::Result<()> {
        let source: ModelSource = serde_json::from_str(&self.source).context("--source is no model source")?;
        let reader = source::open(&source, &Access::default())?;
        let model = source::read_model(&*reader, &[]).await?;
        let profile = ModelProfile::of(&model).context("the model can't be planned")?;
        trial.of_model(&model).await?;
        say(&serde_json::to_value(&profile)?);
        Ok(())
    }
}
