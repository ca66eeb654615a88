//! The examples are what the reader may copy: accepted under the cluster's own rules, and fit for their models.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

use std::fs;
use std::path::Path;

use kvasir_gguf::Model;
use kvasir_tests::models;

fn example(file: &str) -> kvasir_api::Ring {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(file);
    kvasir_api::from_yaml(&fs::read_to_string(path).unwrap()).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Layers that the windows cover from the first one on, without a gap.
fn covered(ring: &kvasir_api::Ring) -> i32 {
    ring.spec.windows.iter().fold(0, |end, window| {
        assert_eq!(window.layers.start, end, "windows in ring order, without a gap");
        window.layers.end
    })
}

#[test]
fn every_example_is_a_valid_ring() {
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")).unwrap();
    let files: Vec<String> = folder
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!files.is_empty());
    for file in files {
        example(&file);
    }
}

#[test]
fn the_examples_windows_are_all_layers_of_their_models() {
    for (file, model) in [
        ("smollm2-135m.yaml", models::smollm2()),
        ("gemma-3-270m.yaml", models::gemma3()),
    ] {
        let layers = Model::open(&model).unwrap().layers();
        assert_eq!(covered(&example(file)), layers as i32, "{file}");
    }
}
