//! The API server's log of who wrote what.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The log from some moment on.
#[derive(Debug)]
pub struct Audit {
    file: PathBuf,
    from: usize,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete`…
    pub verb: String,
    /// kind of object, with its subresource: `deployments`, `rings/status`
    pub resource: String,
    /// the object
    pub name: String,
    /// the answer's HTTP status
    pub status: u64,
}

impl Audit {
    /// The log from now on.
    pub(super) fn of(file: &Path) -> Self {
        let from = fs::read(file).map_or(0, |log| log.len());
        Audit {
            file: file.to_owned(),
            from,
        }
    }

    /// What a service account has written since.
    pub fn writes_of(&self, namespace: &str, account: &str) -> Vec<Write> {
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let log = fs::read(&self.file).unwrap();
        let log = String::from_utf8_lossy(&log[self.from..]).into_owned();
        // a last line without its end is still being written
        let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let events = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let theirs = events.filter(|event| event["user"]["username"] == user.as_str());
        theirs.map(|event| write(&event)).collect()
    }
}

fn write(event: &Value) -> Write {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let subresource = object["subresource"].as_str().map(|name| format!("/{name}"));
    Write {
        verb: text(&event["verb"]),
        resource: text(&object["resource"]) + &subresource.unwrap_or_default(),
        name: text(&object["name"]),
        status: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_since_and_by_whom_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.log");
        let line = |user: &str, name: &str| {
            format!(
                "{{\"verb\":\"patch\",\"user\":{{\"username\":\"system:serviceaccount:ns:{user}\"}},\
                 \"objectRef\":{{\"resource\":\"rings\",\"subresource\":\"status\",\"name\":\"{name}\"}},\
                 \"responseStatus\":{{\"code\":200}}}}\n"
            )
        };
        fs::write(&file, line("operator", "before")).unwrap();
        let audit = Audit::of(&file);
        let added = [
            line("operator", "before"),
            line("operator", "since"),
            line("other", "since"),
        ]
        .concat();
        fs::write(&file, added + "{\"verb\":\"half").unwrap();
        let expected = Write {
            verb: "patch".to_owned(),
            resource: "rings/status".to_owned(),
            name: "since".to_owned(),
            status: 200,
        };
        assert_eq!(audit.writes_of("ns", "operator"), [expected]);
    }
}
