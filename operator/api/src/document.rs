//! A Ring from YAML, under the rules of the cluster with strict field validation.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::schema;
use crate::{API_VERSION, KIND, Ring};

/// Bytes of a document at most; the API server takes 3 MiB.
const MAX_BYTES: usize = 3 << 20;

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// where: `spec.windows[1].layers`
    pub path: String,
    /// what, lower-case and without a full stop
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.path, self.problem)
        }
    }
}

/// Why a text is no Ring.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// not YAML
    #[error("the text is not valid YAML")]
    Syntax(#[source] serde_yaml::Error),
    /// larger than the API server would take
    #[error("the text has {0} bytes; a Ring has {MAX_BYTES} at most")]
    TooLarge(usize),
    /// none or several documents
    #[error("expected one YAML document, found {0}")]
    Documents(usize),
    /// another resource
    #[error("expected {API_VERSION} {KIND}, found {found}")]
    NotARing {
        /// what its apiVersion and kind say
        found: String,
    },
    /// faults, in the order of the document; at least one
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Fault>),
    /// the schema accepts what the types don't
    #[error("the Ring can't be read")]
    Decode(#[source] serde_json::Error),
    /// the definition can't be written
    #[error("the custom resource definition can't be written")]
    Write(#[source] serde_yaml::Error),
}

impl Error {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Syntax(_) => "InvalidYaml",
            Error::TooLarge(_) => "TooLarge",
            Error::Documents(_) => "NotOneDocument",
            Error::NotARing { .. } => "NotARing",
            Error::Invalid(_) | Error::Decode(_) => "InvalidSpec",
            Error::Write(_) => "Internal",
        }
    }
}

/// Reads one Ring, checked as the API server would check it: no unknown field, every limit and every CEL rule. All
/// faults of the first kind that fails are in the error, each with its path.
pub fn from_yaml(text: &str) -> Result<Ring, Error> {
    let document = single_document(text)?;
    let value = serde_json::to_value(document).map_err(Error::Decode)?;
    check_kind(&value)?;

    let mut faults = Vec::new();
    check_root(&value, &mut faults);
    if faults.is_empty() {
        let ring = decode(value, &mut faults)?;
        if let Err(broken) = ring.validate_cel() {
            let fault = |e: kube::core::cel::ValidationError| Fault {
                path: e.field_path,
                problem: e.message,
            };
            faults.extend(broken.into_iter().map(fault));
        }
        if faults.is_empty() {
            return Ok(ring);
        }
    }
    Err(Error::Invalid(faults))
}

fn single_document(text: &str) -> Result<serde_yaml::Value, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::TooLarge(text.len()));
    }
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let value = serde_yaml::Value::deserialize(document).map_err(Error::Syntax)?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    let count = documents.len();
    documents.pop().filter(|_| count == 1).ok_or(Error::Documents(count))
}

fn check_kind(value: &Value) -> Result<(), Error> {
    let of = |field: &str| value[field].as_str();
    match (of("apiVersion"), of("kind")) {
        (Some(API_VERSION), Some(KIND)) => Ok(()),
        (api_version, kind) => {
            let found = format!(
                "{} {}",
                api_version.unwrap_or("no apiVersion"),
                kind.unwrap_or("and no kind")
            );
            Err(Error::NotARing { found })
        }
    }
}

/// Everything but what a typed reading finds in `metadata`, for which a definition has no schema.
fn check_root(value: &Value, faults: &mut Vec<Fault>) {
    const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
    for (name, member) in value.as_object().into_iter().flatten() {
        if !FIELDS.contains(&name.as_str()) {
            faults.push(schema::unknown_field(name, name, FIELDS.into_iter()));
        } else if let Some(property) = schema::root()["properties"].get(name) {
            schema::check(property, member, name, faults);
        }
    }
    match value.get("metadata") {
        Some(metadata) if !metadata.is_object() && !metadata.is_null() => faults.push(Fault {
            path: "metadata".into(),
            problem: format!("expected an object, found {}", schema::kind(metadata)),
        }),
        metadata => {
            let name = metadata
                .and_then(|metadata| metadata.get("name"))
                .unwrap_or(&Value::Null);
            let problem = match name {
                Value::String(_) => None,
                Value::Null => Some("missing".to_owned()),
                other => Some(format!(
                    "must be a string, found {}: put it in quotes",
                    schema::kind(other)
                )),
            };
            faults.extend(problem.map(|problem| Fault {
                path: "metadata.name".into(),
                problem,
            }));
        }
    }
    if value.get("spec").is_none() {
        faults.push(Fault {
            path: "spec".into(),
            problem: "missing".into(),
        });
    }
}

fn decode(mut value: Value, faults: &mut Vec<Fault>) -> Result<Ring, Error> {
    // checked already, and no fields of the Rust type
    if let Some(root) = value.as_object_mut() {
        root.retain(|name, _| name != "apiVersion" && name != "kind");
    }
    serde_ignored::deserialize(value, |path| {
        let path = path.to_string();
        faults.push(Fault {
            path: path.replace('?', ""),
            problem: "unknown field".into(),
        });
    })
    .map_err(Error::Decode)
}
