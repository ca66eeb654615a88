//! Where the market of this relay keeps its rings.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, bail, ensure};
use kvasir_market::{Limits, Store};
use secrecy::SecretString;

/// Environment variable with the address of a PostgreSQL that several relays may share; it holds a password, so it is no
/// argument.
const DATABASE_URL: &str = "DATABASE_URL";

/// What every file of SQLite's begins with.
const SQLITE: &[u8] = b"SQLite format 3\0";

/// A database that is a file, or memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    Memory,
    File(PathBuf),
}

impl FromStr for Database {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            ":memory:" => Database::Memory,
            path => Database::File(path.into()),
        })
    }
}

impl Database {
    /// Opens PostgreSQL where `DATABASE_URL` names it, else this.
    pub(crate) async fn open(&self) -> anyhow::Result<Store> {
        let limits = Limits::default();
        let postgres = std::env::var(DATABASE_URL).ok().filter(|url| !url.is_empty());
        let store = match (postgres, self) {
            (Some(url), _) => Store::postgres(&SecretString::from(url), limits).await,
            (None, Database::Memory) => Store::memory(limits).await,
            (None, Database::File(path)) => {
                check(path)?;
                Store::file(path, limits).await
            }
        };
        store.context("the market's database can't be used")
    }
}

/// Refuses at once what SQLite would be asked again and again to open.
fn check(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let kind = match fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return check_folder(path),
        Err(error) => return Err(error).with_context(|| format!("the database {shown} can't be used")),
    };
    ensure!(
        kind.is_file(),
        "the database {shown} is no file: name a file with --database, which is made if it isn't there"
    );
    let mut begins = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SQLITE.len() as u64).read_to_end(&mut begins))
        .with_context(|| format!("the database {shown} can't be read"))?;
    // an empty one is new
    ensure!(
        begins.is_empty() || begins == SQLITE,
        "{shown} is not an SQLite database, and is left as it is: name another file with --database"
    );
    Ok(())
}

fn check_folder(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => bail!(
            "the folder {} of the database isn't there: make it, or name another file with --database",
            folder.display()
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        format!("{:#}", check(path).expect_err("a database that can't be used"))
    }

    #[test]
    fn what_is_no_database_is_refused_at_once_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("letter"), "Dear relay,").unwrap();
        let told = refusal(&file("letter"));
        assert!(
            told.contains("not an SQLite database") && told.contains("--database"),
            "{told}"
        );
        assert_eq!(fs::read_to_string(file("letter")).unwrap(), "Dear relay,");
        let told = refusal(folder.path());
        assert!(told.contains("is no file"), "{told}");
        let told = refusal(&file("none/market.sqlite"));
        assert!(told.contains("make it") && told.contains("none"), "{told}");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "nothing was made beside it");
    }

    #[tokio::test]
    async fn a_new_an_empty_and_an_old_database_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("market.sqlite");
        for how in ["new", "old"] {
            Database::File(path.clone()).open().await.expect(how);
        }
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        Database::File(empty).open().await.unwrap();
    }
}
