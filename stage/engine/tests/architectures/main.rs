//! Windows of every architecture give the whole model's logits, to the bit, wherever the model may be cut; where it may
//! not, planner and cutter say why. What was shown stands in `docs/architectures.md`, which this test writes.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod cuts;
mod page;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cuts::{Case, Shown, show};
use kvasir_engine::{Backend, Mode};
use kvasir_gguf::{Model, WindowRole, arch, window};
use kvasir_plan::ModelProfile;
use kvasir_tests::gguf::{File, Tensor, TensorType, Value};
use kvasir_tests::random_model::{Architecture, RandomModel};

/// Every architecture, and each of its variants that changes what a window's file holds.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for architecture in Architecture::ALL {
        let plain = Case {
            architecture,
            mtp: false,
            tied: false,
            layers: None,
        };
        cases.push(plain);
        if architecture.has_mtp() {
            cases.push(Case { mtp: true, ..plain });
        }
        if matches!(
            architecture,
            Architecture::Llama | Architecture::Qwen35 | Architecture::Deepseek2 | Architecture::Lfm2
        ) {
            cases.push(Case { tied: true, ..plain });
        }
    }
    // long enough for windows of as many layers as a light model has
    cases.push(Case {
        architecture: Architecture::Deepseek2,
        mtp: false,
        tied: false,
        layers: Some(30),
    });
    // the long ones first, so that no thread is left alone with one of them
    cases.sort_by_key(|case| std::cmp::Reverse(case.layers.unwrap_or_else(|| case.architecture.default_layers())));
    cases
}

/// What each case has shown, in the order of the architectures.
fn show_all() -> Vec<Shown> {
    let backend = Backend::init(Mode::Fast).unwrap();
    let cases = cases();
    let next = AtomicUsize::new(0);
    let shown = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from).min(4);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = show(backend, *case);
                    shown.lock().unwrap().push(found);
                }
            });
        }
    });
    let mut shown = shown.into_inner().unwrap();
    let place = |shown: &Shown| {
        let architecture = shown.case.architecture;
        let place = Architecture::ALL.iter().position(|other| *other == architecture);
        (place, shown.case.mtp, shown.case.tied, shown.case.layers)
    };
    shown.sort_by_key(place);
    shown
}

#[test]
fn windows_of_every_architecture_equal_the_whole_model() {
    let shown = show_all();
    for shown in &shown {
        let name = shown.case.label();
        assert!(!shown.two.is_empty(), "{name}: no cut into two windows was shown");
        assert_eq!(shown.three.len(), 10, "{name}: cuts into three windows");
        let cuts = shown.two.len() + shown.refused.len();
        assert_eq!(cuts as u32, shown.layers - 1, "{name}: cuts shown and cuts refused");
    }
    page::compare(&page::render(&shown));
}

/// A file of an architecture's name, of which nothing but the name is right.
fn file_of(name: &str) -> File {
    let mut file = File::default();
    file.set("general.architecture", Value::String(name.to_owned()));
    file.set(format!("{name}.block_count"), Value::U32(8));
    file.set(format!("{name}.embedding_length"), Value::U32(32));
    for tensor in ["token_embd.weight", "output_norm.weight"] {
        file.tensors.push(Tensor {
            name: tensor.to_owned(),
            shape: vec![32, 1],
            kind: TensorType::F32,
            data: vec![0; 128],
        });
    }
    file
}

#[test]
fn architectures_that_are_not_cut_are_refused_by_name_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut names = 0;
    for (name, why) in arch::known().filter_map(|known| known.cut.err().map(|why| (known.name, why))) {
        std::fs::write(&path, file_of(name).to_bytes()).unwrap();
        let model = Model::open(&path).unwrap();
        let planned = ModelProfile::of(&model).unwrap_err();
        let role = WindowRole {
            layers: 0..4,
            last: false,
        };
        let cut = window::window(&model, &role).unwrap_err();
        assert_eq!(planned.reason(), "UnsupportedArchitecture", "{name}");
        assert_eq!(cut.reason(), "UnsupportedArchitecture", "{name}");
        for said in [planned.to_string(), cut.to_string()] {
            assert!(said.contains(name) && said.contains(why), "{name}: {said}");
        }
        names += 1;
    }
    assert!(
        names > 50,
        "llama.cpp has more than {names} architectures that aren't cut"
    );
}

#[test]
fn a_model_that_llama_cpp_knows_by_its_number_of_layers_is_refused_with_that_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // heads as wide as in Gemma 3 27B, where embedding length over heads is another number
    RandomModel::new(Architecture::Gemma3)
        .layers(62)
        .metadata("gemma3.attention.key_length", Value::U32(128))
        .write(&path)
        .unwrap();
    let profile = ModelProfile::of(&Model::open(&path).unwrap()).unwrap();
    for cut in [1, 31, 61] {
        let refused = cuts::planned(&profile, &[cut]).unwrap_err();
        assert_eq!(refused.reason(), "InvalidPlan");
        assert!(refused.to_string().contains("62 layers"), "{refused}");
    }
}
