//! Writes what follows from the types: the custom resource definition to `crds/`, and the reference to `docs/`.

const EVERY_FIELD: &str = include_str!("../tests/good/cluster.yaml");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::fs::write(format!("{root}/crds/rings.kvasir.dev.yaml"), kvasir_api::crd_yaml()?)?;
    std::fs::write(format!("{root}/docs/ring.md"), kvasir_api::reference(EVERY_FIELD))?;
    Ok(())
}
