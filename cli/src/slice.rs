//! `kvasir slice`: cuts one window out of a model into a GGUF of its own.

use std::{
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail, ensure};
use kvasir_gguf::{ModelSource, WindowRole, fetch, source, window};
use kvasir_stage::trial::Gives;

use crate::{failure::Usage, planned, table::bytes};

/// Cut a window of layers out of a model. Of a model elsewhere, only the bytes of the window are fetched.
#[derive(Debug, clap::Args)]
#[command(after_help = planned::TOKEN_HELP)]
#[allow(clippy::doc_markdown, reason = "help texts, which are no Markdown")]
pub struct Slice {
    /// Model: a path, an http or https URL, or hf://OWNER/NAME/FILE.gguf (@REVISION after NAME for another than main)
    #[arg(value_parser = parse_source)]
    source: ModelSource,
    /// Layers START..END, END not among them
    #[arg(value_parser = Layers::from_str)]
    layers: Layers,
    /// File to write
    #[arg(short, long, env = "KVASIR_OUT")]
    out: PathBuf,
    /// The window is rank 0's: write OUT.vocab.gguf too, with the vocabulary and the embedding
    #[arg(long, env = "KVASIR_FIRST")]
    first: bool,
    /// The window is the last rank's: it must end at the model's last layer
    #[arg(long, env = "KVASIR_LAST")]
    last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Layers(std::ops::Range<u32>);

impl Slice {
    /// Runs the command.
    pub async fn run(self) -> anyhow::Result<()> {
        self.spare(&self.out)?;
        if self.first {
            self.spare(&self.vocabulary())?;
        }
        let reader = source::open(&self.source, &planned::access(&self.source))?;
        let model = source::read_model(&*reader, &[]).await?;
        let Layers(layers) = self.layers.clone();
        if self.first {
            ensure!(
                layers.start == 0,
                Usage(format!(
                    "--first is for the window that starts at layer 0, this one starts at {}",
                    layers.start
                ))
            );
        }
        let last = self.last || layers.end == model.layers();
        let whole = layers.start == 0 && last;
        let window = window::window(&model, &WindowRole { layers, last })?;
        let gives = if last { Gives::Logits } else { Gives::Hidden };
        planned::try_out(&model).await?;
        planned::trial().of_file(&window, gives).await?;
        let mut minis = vec![(self.out.clone(), window)];
        if self.first {
            let with_embedding = !(whole && window::is_tied(&model));
            minis.push((self.vocabulary(), window::vocabulary(&model, with_embedding)?));
        }
        for (path, mini) in minis {
            let fetched = fetch::fetch(&*reader, &mini, &path, |_| {}).await;
            if !matches!(fetched, Err(fetch::Error::Locked { .. })) {
                // A slice is one file: nothing goes on with the rest of a broken one, or checks a whole one.
                fetch::forget(&path);
            }
            let fetched = fetched?;
            let (size, fetched) = (bytes(mini.len), bytes(fetched.bytes_fetched));
            writeln!(std::io::stdout(), "{}: {size}, {fetched} fetched", path.display())?;
        }
        Ok(())
    }

    /// Where the vocabulary of a first window goes.
    fn vocabulary(&self) -> PathBuf {
        self.out.with_extension("vocab.gguf")
    }

    /// Refuses to make a folder that may be a typing error, to replace the model itself, under whatever name, and
    /// anything that is no file.
    fn spare(&self, out: &Path) -> anyhow::Result<()> {
        let Ok(there) = std::fs::metadata(out) else {
            let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let there = std::fs::metadata(folder)
                .with_context(|| format!("can't write into {}: make the folder first", folder.display()))?;
            ensure!(there.is_dir(), "can't write into {}: it is no folder", folder.display());
            return Ok(());
        };
        if !there.is_file() {
            bail!("{} is no file: name one to write", out.display());
        }
        let ModelSource::File { path } = &self.source else {
            return Ok(());
        };
        // A model that isn't there is told when it is read.
        let Ok(model) = std::fs::metadata(path) else {
            return Ok(());
        };
        ensure!(
            (model.dev(), model.ino()) != (there.dev(), there.ino()),
            "{} is the model itself: name another file to write",
            out.display()
        );
        Ok(())
    }
}

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text
            .split_once("..")
            .and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
        range
            .filter(|range: &std::ops::Range<u32>| !range.is_empty())
            .map(Layers)
            .ok_or_else(|| "write START..END with START below END, such as 0..10".to_owned())
    }
}

pub(crate) fn parse_source(text: &str) -> Result<ModelSource, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        return Ok(ModelSource::Http { url: text.to_owned() });
    }
    let Some(path) = text.strip_prefix("hf://") else {
        return match planned::address(text) {
            Some((scheme, _)) => Err(format!(
                "{scheme}:// is not supported: give a path, an http:// or https:// URL, or hf://OWNER/NAME/FILE.gguf"
            )),
            None => Ok(ModelSource::File { path: text.into() }),
        };
    };
    let parts: Vec<&str> = path.splitn(3, '/').collect();
    let [owner, name, file] = parts[..] else {
        return Err("write hf://OWNER/NAME/FILE.gguf".to_owned());
    };
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    if [owner, name, file, revision].iter().any(|part| part.is_empty()) {
        return Err("write hf://OWNER/NAME/FILE.gguf".to_owned());
    }
    let (repo, file) = (format!("{owner}/{name}"), file.to_owned());
    Ok(ModelSource::HuggingFace {
        repo,
        file,
        revision: revision.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_range_that_holds_some() {
        assert_eq!("0..10".parse(), Ok(Layers(0..10)));
        for wrong in ["", "3", "3..3", "4..3", "-1..2", "a..b", "0...10", "0..=10"] {
            assert!(wrong.parse::<Layers>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_source_is_a_path_a_url_or_a_file_on_the_hub() {
        let path = "models/a.gguf";
        assert_eq!(parse_source(path), Ok(ModelSource::File { path: path.into() }));
        let url = "https://example.com/a.gguf";
        assert_eq!(parse_source(url), Ok(ModelSource::Http { url: url.to_owned() }));
        let hub = |revision: &str| ModelSource::HuggingFace {
            repo: "o/n".to_owned(),
            file: "q4/a.gguf".to_owned(),
            revision: revision.to_owned(),
        };
        assert_eq!(parse_source("hf://o/n/q4/a.gguf"), Ok(hub("main")));
        assert_eq!(parse_source("hf://o/n@v1/q4/a.gguf"), Ok(hub("v1")));
        assert!(
            parse_source("ftp://o/f.gguf")
                .unwrap_err()
                .contains("http:// or https://")
        );
        for wrong in ["hf://", "hf://o/n", "hf://o//f", "hf:///n/f", "hf://o/n@/f"] {
            assert!(parse_source(wrong).is_err(), "{wrong}");
        }
    }
}
