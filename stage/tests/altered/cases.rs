//! Alterations of sound files, each with what has to be told of it.

use kvasir_tests::gguf::{File, Tensor, TensorType, Value};

/// An altered file.
pub struct Case {
    pub what: String,
    pub file: File,
    /// words that every refusal has to hold
    pub expected: Vec<String>,
}

/// The file's architecture.
pub fn of(file: &File) -> &str {
    match &file
        .metadata
        .iter()
        .find(|(key, _)| key == "general.architecture")
        .unwrap()
        .1
    {
        Value::String(name) => name,
        other => panic!("{other:?}"),
    }
}

struct Alter<'a> {
    sound: &'a File,
    cases: Vec<Case>,
}

impl<'a> Alter<'a> {
    fn new(sound: &'a File) -> Self {
        Alter {
            sound,
            cases: Vec::new(),
        }
    }

    fn by(&mut self, what: &str, expected: &[&str], alter: impl FnOnce(&mut File)) {
        let mut file = self.sound.clone();
        alter(&mut file);
        assert_ne!(&file, self.sound, "{what}: nothing is altered");
        self.cases.push(Case {
            what: what.to_owned(),
            file,
            expected: expected.iter().map(|&word| word.to_owned()).collect(),
        });
    }

    fn key(&mut self, short: &str, value: Value, expected: &[&str]) {
        let key = format!("{}.{short}", of(self.sound));
        self.by(&format!("{short} = {value:?}"), expected, |file| file.set(key, value));
    }

    /// The number at a key, unless it isn't one for all layers.
    fn number(&self, short: &str) -> Option<u32> {
        let key = format!("{}.{short}", of(self.sound));
        self.sound.metadata.iter().find_map(|(found, value)| match value {
            Value::U32(number) if *found == key => Some(*number),
            _ => None,
        })
    }
}

fn remove_key(file: &mut File, key: &str) {
    file.metadata.retain(|(found, _)| found != key);
}

fn at(file: &File, wanted: impl Fn(&Tensor) -> bool) -> usize {
    file.tensors.iter().position(wanted).unwrap()
}

/// Other data of the right length.
fn reshape(tensor: &mut Tensor, shape: Vec<u64>, kind: TensorType) {
    let values = vec![0.0; shape.iter().product::<u64>() as usize];
    (tensor.data, tensor.shape, tensor.kind) = (kind.encode(&values), shape, kind);
}

/// A matrix of the last window whose two sides differ.
fn oblong(file: &File, block: u32) -> usize {
    let start = format!("blk.{block}.");
    at(file, |tensor| {
        tensor.name.starts_with(&start) && tensor.shape.len() == 2 && tensor.shape[0] != tensor.shape[1]
    })
}

pub fn tensors(sound: &File) -> Vec<Case> {
    let mut cases = Alter::new(sound);
    // llama.cpp takes this one to be optional, and ends the process when it isn't there
    let is_optional = |name: &str| name.ends_with("attn_qkv.weight");
    for block in [1, 6] {
        let start = format!("blk.{block}.");
        let first = at(sound, |tensor| tensor.name.starts_with(&start));
        let last = sound
            .tensors
            .iter()
            .rposition(|tensor| tensor.name.starts_with(&start))
            .unwrap();
        for index in [first, last] {
            let name = sound.tensors[index].name.clone();
            let missing = [name.as_str(), "is missing"];
            let expected = if is_optional(&name) { &[] } else { &missing[..] };
            cases.by(&format!("without {name}"), expected, |file| {
                file.tensors.remove(index);
            });
        }
        let name = sound.tensors[first].name.clone();
        let other = format!("{start}other.weight");
        let told = if is_optional(&name) { &other } else { &name };
        cases.by(&format!("{name} under another name"), &[told], |file| {
            file.tensors[first].name.clone_from(&other);
        });
        let name = other;
        cases.by("a tensor too many", &["it has no use for", &name], |file| {
            file.tensors.push(Tensor {
                name: name.clone(),
                shape: vec![32],
                kind: TensorType::F32,
                data: vec![0; 128],
            });
        });
        let index = oblong(sound, block);
        let name = sound.tensors[index].name.clone();
        cases.by(&format!("{name} wider"), &[&name, "has the shape"], |file| {
            let tensor = &mut file.tensors[index];
            let shape = vec![tensor.shape[0], tensor.shape[1] + 32];
            reshape(tensor, shape, TensorType::F32);
        });
    }
    cases.by("without the embedding", &["token_embd.weight"], |file| {
        file.tensors.retain(|tensor| tensor.name != "token_embd.weight");
    });
    cases.cases
}

pub fn numbers(sound: &File) -> Vec<Case> {
    let mut cases = Alter::new(sound);
    for short in [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
    ] {
        let Some(number) = cases.number(short) else { continue };
        cases.key(short, Value::U32(2 * number), &[]);
        cases.key(short, Value::U32(1 << 20), &[]);
    }
    if let Some(number) = cases.number("attention.head_count") {
        cases.key("attention.head_count", Value::U32(number - 1), &[]);
        cases.key("attention.head_count", Value::U32(0), &[]);
    }
    let number = cases.number("feed_forward_length").unwrap();
    cases.key(
        "feed_forward_length",
        Value::U32(number + 32),
        &["blk.", "has the shape"],
    );
    cases.key("feed_forward_length", Value::U32(0), &["blk."]);
    cases.key("embedding_length", Value::U32(128), &["token_embd.weight"]);
    for (more, words) in [(1, "no tensor of block"), (u32::MAX, "belongs to block")] {
        let number = cases.number("block_count").unwrap();
        cases.key("block_count", Value::U32(number.wrapping_add(more)), &[words]);
    }
    for short in ["block_count", "embedding_length", "attention.layer_norm_rms_epsilon"] {
        let key = format!("{}.{short}", of(sound));
        let expected = [key.as_str(), "is missing"];
        cases.by(&format!("without {key}"), &expected, |file| remove_key(file, &key));
    }
    cases.key(
        "expert_shared_count_of_nobody",
        Value::I32s(vec![1; cases.number("block_count").unwrap() as usize]),
        &["expert_shared_count_of_nobody"],
    );
    cases.cases
}

pub fn experts(sound: &File) -> Vec<Case> {
    let mut cases = Alter::new(sound);
    let experts = cases.number("expert_count").unwrap();
    cases.key("expert_count", Value::U32(experts + 1), &[]);
    cases.key("expert_count", Value::U32(0), &[]);
    cases.key("expert_used_count", Value::U32(experts + 1), &[]);
    if let Some(width) = cases.number("expert_feed_forward_length") {
        cases.key(
            "expert_feed_forward_length",
            Value::U32(width + 32),
            &["blk.", "has the shape"],
        );
    }
    cases.cases
}

pub fn scalars(sound: &File) -> Vec<Case> {
    let mut cases = Alter::new(sound);
    for (short, wrong) in [
        (
            "attention.layer_norm_rms_epsilon",
            vec![f32::NAN, -1.0, 0.0, f32::INFINITY],
        ),
        ("rope.freq_base", vec![f32::NAN, 0.0, -10_000.0]),
        ("rope.scaling.factor", vec![f32::NAN, -2.0]),
        ("attention.scale", vec![f32::NAN]),
        ("final_logit_softcapping", vec![f32::NAN, -30.0]),
    ] {
        for number in wrong {
            cases.key(short, Value::F32(number), &[short, "it should be a finite number"]);
        }
    }
    if of(sound) == "gemma2" {
        cases.key(
            "attn_logit_softcapping",
            Value::F32(0.0),
            &["attn_logit_softcapping is 0"],
        );
    }
    let matrix = oblong(sound, 6);
    let norm = at(sound, |tensor| tensor.name == "blk.6.attn_norm.weight");
    for (index, kind) in [(matrix, TensorType::I32), (norm, TensorType::F16)] {
        let name = sound.tensors[index].name.clone();
        cases.by(&format!("{name} as {kind:?}"), &[&name, "of type"], |file| {
            let shape = file.tensors[index].shape.clone();
            reshape(&mut file.tensors[index], shape, kind);
        });
    }
    cases.cases
}

pub fn tokenizer(sound: &File) -> Vec<Case> {
    let mut cases = Alter::new(sound);
    cases.by("without tokenizer keys", &["tokenizer"], |file| {
        file.metadata.retain(|(key, _)| !key.starts_with("tokenizer."));
    });
    cases.by("without tokens", &["tokenizer.ggml.tokens"], |file| {
        remove_key(file, "tokenizer.ggml.tokens");
    });
    cases.by("with the name of no tokenizer", &["tokenizer"], |file| {
        file.set("tokenizer.ggml.model", Value::String("nobody".to_owned()));
    });
    // llama.cpp loads it, and throws at the first text that it has no token for
    cases.by("without the tokens of bytes", &["tokenizer"], |file| {
        file.set("tokenizer.ggml.model", Value::String("llama".to_owned()));
    });
    cases.cases
}
