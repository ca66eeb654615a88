//! The folder of one Ring on this machine: its windows, keys and logs, from one run to the next.
//!
//! ```text
//! lock                       held while a ring runs here
//! owner.key  rank-N.key      keys of the owner and of each stage
//! plan.json                  the plan that the stages read
//! rank-N.log                 what a stage said in its last run
//! windows/ID-START-END/      files of a window, ID being the beginning of the model's identity
//! ```

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use kvasir_plan::{LayerRange, Rank, RankManifest};
use kvasir_wire::trust::{NodeKeys, OwnerKey};

/// Digits of a model's identity in names of folders; the stage checks the whole of it.
const IDENTITY_DIGITS: usize = 16;

/// An open folder, which no other run uses meanwhile.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Opens `path`, or the ring's folder for `purpose` in the cache, and makes it when it isn't there.
    pub(crate) fn open(path: Option<PathBuf>, purpose: &str, ring: &str) -> anyhow::Result<Self> {
        let path = path.map_or_else(|| Ok(cache()?.join(purpose).join(ring)), Ok::<_, anyhow::Error>)?;
        let path = std::path::absolute(&path)?;
        let opened = fs::create_dir_all(&path).and_then(|()| File::create(path.join("lock")));
        let lock =
            opened.with_context(|| format!("can't use the folder {}: choose another with --dir", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => bail!(
                "another kvasir uses the folder {}: end it, or choose another with --dir",
                path.display()
            ),
            Err(TryLockError::Error(error)) => Err(error).context("can't lock the folder"),
        }
    }

    /// The owner's key in the folder of a ring that runs or has run, which may be in use; none when it never ran.
    pub(crate) fn known_owner(path: Option<&PathBuf>, ring: &str) -> anyhow::Result<Option<OwnerKey>> {
        let path = path.map_or_else(
            || Ok(cache()?.join("up").join(ring)),
            |path| Ok::<_, anyhow::Error>(path.clone()),
        )?;
        let path = path.join("owner.key");
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(OwnerKey::load(&path)?))
    }

    /// The same, made when there is none yet.
    pub(crate) fn owner_to_be(path: Option<&PathBuf>, ring: &str) -> anyhow::Result<OwnerKey> {
        match Folder::known_owner(path, ring)? {
            Some(owner) => Ok(owner),
            None => Folder::open(path.cloned(), "up", ring)?.owner_key(),
        }
    }

    /// The key of this device in the folder of `kvasir join` for a relay's host, which may be in use.
    pub(crate) fn node_of(path: Option<PathBuf>, host: &str) -> anyhow::Result<NodeKeys> {
        let path = path.map_or_else(|| Ok(cache()?.join("join").join(host)), Ok::<_, anyhow::Error>)?;
        NodeKeys::load(&path.join(key_of(0))).with_context(|| {
            format!(
                "{} holds no key of this device: join once with `kvasir join`, or name its folder with --dir",
                path.display()
            )
        })
    }

    /// The owner's key, made at the first run.
    pub(crate) fn owner_key(&self) -> anyhow::Result<OwnerKey> {
        let path = self.path.join("owner.key");
        if path.exists() {
            return Ok(OwnerKey::load(&path)?);
        }
        let key = OwnerKey::generate()?;
        key.save(&path)?;
        Ok(key)
    }

    /// Where a stage keeps its key.
    pub(crate) fn node_key(&self, rank: usize) -> PathBuf {
        self.path.join(key_of(rank))
    }

    /// Where a stage's stderr goes.
    pub(crate) fn log(&self, rank: usize) -> PathBuf {
        self.path.join(format!("rank-{rank}.log"))
    }

    /// Empties the log of a rank, so that it tells of this run alone.
    pub(crate) fn new_log(&self, rank: usize) -> io::Result<PathBuf> {
        let path = self.log(rank);
        File::create(&path)?;
        Ok(path)
    }

    /// The folder of a rank's window.
    pub(crate) fn window(&self, manifest: &RankManifest, rank: &Rank) -> PathBuf {
        self.path.join("windows").join(window_name(manifest, rank))
    }

    /// The folder of layers of a model, by the model's identity.
    pub(crate) fn window_of(&self, identity: &str, layers: LayerRange) -> PathBuf {
        self.path.join("windows").join(name_of(identity, layers))
    }

    /// Writes the plan for the stages to read.
    pub(crate) fn write_plan(&self, manifest: &RankManifest) -> anyhow::Result<PathBuf> {
        self.write("plan.json", &serde_json::to_vec_pretty(manifest)?)
    }

    /// Writes the Ring's own chat template, if it has one.
    pub(crate) fn write_chat_template(&self, template: Option<&str>) -> anyhow::Result<Option<PathBuf>> {
        template
            .map(|template| self.write("chat-template.jinja", template.as_bytes()))
            .transpose()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, bytes).with_context(|| format!("can't write {}", path.display()))?;
        Ok(path)
    }

    /// Removes the windows that this plan doesn't use.
    pub(crate) fn forget_other_windows(&self, manifest: &RankManifest) -> io::Result<()> {
        let used: Vec<String> = manifest.ranks.iter().map(|rank| window_name(manifest, rank)).collect();
        for entry in fs::read_dir(self.path.join("windows"))? {
            let entry = entry?;
            if !used.iter().any(|name| entry.file_name() == name.as_str()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

fn key_of(rank: usize) -> String {
    format!("rank-{rank}.key")
}

fn window_name(manifest: &RankManifest, rank: &Rank) -> String {
    name_of(&manifest.model.identity, rank.layers)
}

/// The identity comes from a market too: only its digits go into a path.
fn name_of(identity: &str, layers: LayerRange) -> String {
    let digits = identity.chars().filter(char::is_ascii_hexdigit);
    let identity: String = digits.take(IDENTITY_DIGITS).collect();
    format!("{identity}-{}-{}", layers.start, layers.end)
}

/// `$KVASIR_CACHE`, or `~/.cache/kvasir`.
fn cache() -> anyhow::Result<PathBuf> {
    if let Some(cache) = std::env::var_os("KVASIR_CACHE").filter(|cache| !cache.is_empty()) {
        return Ok(cache.into());
    }
    let home = std::env::home_dir().context("there is no home folder for windows: name a folder with --dir")?;
    Ok(Path::new(&home).join(".cache/kvasir"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(identity: &str, windows: &[(u32, u32)]) -> RankManifest {
        serde_json::from_value(serde_json::json!({
            "ring": "tea", "epoch": 0, "boundaryType": "Bf16", "exact": false, "contextLength": 1, "sequences": 1,
            "maxLaps": 1, "maxLapTokens": 1,
            "model": {"name": "m", "architecture": "llama", "identity": identity, "embeddingLength": 1, "layers": 4,
                "vocabulary": 1},
            "ranks": windows.iter().map(|(start, end)| serde_json::json!({
                "layers": {"start": start, "end": end}, "bytes": 1, "memory": 1,
            })).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_serves_one_run_at_a_time() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("a/b");
        let first = Folder::open(Some(path.clone()), "up", "tea").unwrap();
        let error = Folder::open(Some(path.clone()), "up", "tea").unwrap_err();
        assert!(
            error.to_string().starts_with("another kvasir uses the folder"),
            "{error}"
        );
        drop(first);
        Folder::open(Some(path), "up", "tea").unwrap();
    }

    #[test]
    fn the_owner_stays_the_same_from_run_to_run() {
        let temporary = tempfile::tempdir().unwrap();
        let open = || Folder::open(Some(temporary.path().into()), "up", "tea").unwrap();
        let first = open().owner_key().unwrap().public();
        assert_eq!(open().owner_key().unwrap().public(), first);
    }

    #[test]
    fn windows_of_other_plans_are_forgotten_and_shared_ones_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::open(Some(temporary.path().into()), "up", "tea").unwrap();
        let (ours, identity) = ("a".repeat(64), "b".repeat(64));
        let (old, new) = (
            manifest(&ours, &[(0, 2), (2, 4)]),
            manifest(&ours, &[(0, 2), (2, 3), (3, 4)]),
        );
        let other_model = manifest(&identity, &[(0, 2)]);
        for plan in [&old, &new, &other_model] {
            for rank in &plan.ranks {
                fs::create_dir_all(folder.window(plan, rank)).unwrap();
            }
        }
        folder.forget_other_windows(&new).unwrap();
        let short = "a".repeat(16);
        assert_eq!(
            names(&temporary.path().join("windows")),
            [format!("{short}-0-2"), format!("{short}-2-3"), format!("{short}-3-4")]
        );
    }
}
