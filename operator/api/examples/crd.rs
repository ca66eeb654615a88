//! Writes the custom resource definition to `crds/`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds/rings.kvasir.dev.yaml");
    std::fs::write(path, kvasir_api::crd_yaml()?)?;
    Ok(())
}
