//! Models in parts: cut like one file, and refused by the name of what doesn't fit.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::WindowRole;
use kvasir_gguf::model::{Error as ModelError, Model};
use kvasir_gguf::prefix::Prefix;
use kvasir_gguf::window::{Source, window};
use kvasir_tests::gguf::{File, Value};
use support::{add, expected, head, toy};

fn role(start: u32, end: u32, last: bool) -> WindowRole {
    WindowRole {
        layers: start..end,
        last,
    }
}

/// The same model as one file and as three parts; the cut goes through block 3 and block 5.
fn in_parts(folder: &std::path::Path) -> (File, Vec<std::path::PathBuf>) {
    let mut file = toy(6);
    add(&mut file, "token_embd.weight", &[8, 16]);
    for block in 0..6 {
        add(&mut file, &format!("blk.{block}.attn_norm.weight"), &[8]);
        add(&mut file, &format!("blk.{block}.ffn_norm.weight"), &[8]);
    }
    add(&mut file, "output_norm.weight", &[8]);
    let mut parts = [file.clone(), File::default(), File::default()];
    parts[0].tensors.clear();
    for (index, tensor) in file.tensors.iter().enumerate() {
        parts[[(0, 8), (8, 12), (12, 99)]
            .iter()
            .position(|(from, to)| (*from..*to).contains(&index))
            .unwrap()]
        .tensors
        .push(tensor.clone());
    }
    let paths = (0..3u32).map(|part| {
        let file = &mut parts[part as usize];
        file.set("split.no", Value::U32(part));
        file.set("split.count", Value::U32(3));
        file.set("split.tensors.count", Value::I32s(vec![]));
        file.set("split.tensors.count", Value::U32(14));
        let path = folder.join(format!("m-{:05}-of-00003.gguf", part + 1));
        std::fs::write(&path, file.to_bytes()).unwrap();
        path
    });
    let paths = paths.collect();
    (file, paths)
}

#[test]
fn a5_a_window_across_parts_is_that_of_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, paths) = in_parts(folder.path());
    let single = folder.path().join("best-of-breed.gguf");
    std::fs::write(&single, file.to_bytes()).unwrap();
    let one = Model::open(&single).unwrap();
    for path in &paths {
        let model = Model::open(path).unwrap();
        assert_eq!((model.parts().len(), model.architecture()), (3, "llama"));
        for (start, end) in [(0, 2), (2, 6), (3, 6)] {
            let mini = window(&model, &role(start, end, end == 6)).unwrap();
            let (cut, same) = (
                expected(path, &mini),
                window(&one, &role(start, end, end == 6)).unwrap(),
            );
            let (ours, theirs) = (Prefix::parse(&cut).unwrap().unwrap(), head(&same));
            assert!(ours.metadata.iter().all(|(key, _)| !key.starts_with("split.")));
            assert_eq!(ours.tensors, theirs.tensors);
            let whole = expected(&single, &same);
            assert_eq!(cut[ours.data_offset as usize..], whole[theirs.data_offset as usize..]);
        }
    }
    // blocks 2…3 lie in parts 1 and 2: part 3 isn't touched
    let mini = window(&Model::open(&paths[1]).unwrap(), &role(2, 4, false)).unwrap();
    let touched = mini.tensors.iter().filter_map(|tensor| match tensor.source {
        Source::Range { part, .. } => Some(part),
        _ => None,
    });
    assert_eq!(
        touched
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>(),
        [0, 1]
    );
}

#[test]
fn a5_parts_that_are_missing_or_of_another_model_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (_, paths) = in_parts(folder.path());
    let third = std::fs::read(&paths[2]).unwrap();
    std::fs::remove_file(&paths[2]).unwrap();
    let error = Model::open(&paths[1]).unwrap_err();
    assert!(error.to_string().contains("m-00003-of-00003.gguf"), "{error}");

    std::fs::write(&paths[2], std::fs::read(&paths[1]).unwrap()).unwrap();
    let error = Model::open(&paths[0]).unwrap_err();
    assert!(
        error.to_string().contains("part 3") && error.to_string().contains("split.no"),
        "{error}"
    );

    std::fs::write(&paths[2], &third[..third.len() - 64]).unwrap();
    let error = Model::open(&paths[0]).unwrap_err();
    assert_eq!(error.reason(), "IncompleteFile");
    assert!(error.to_string().contains("part 3"), "{error}");
}

#[test]
fn a7_one_tensor_in_two_parts_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (_, paths) = in_parts(folder.path());
    let mut second = File::default();
    second.set("split.no", Value::U32(1));
    second.set("split.count", Value::U32(3));
    for tensor in ["a", "b", "c", "d"] {
        add(&mut second, &format!("blk.3.{tensor}.weight"), &[8]);
    }
    second.tensors[0].name = "blk.0.attn_norm.weight".into();
    std::fs::write(&paths[1], second.to_bytes()).unwrap();
    let error = Model::open(&paths[0]).unwrap_err();
    assert!(matches!(&error, ModelError::Duplicate { name, first: 1, second: 2 } if name == "blk.0.attn_norm.weight"));
}
