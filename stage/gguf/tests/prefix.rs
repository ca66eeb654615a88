//! The prefix parser against files in the wild, hostile ones, and llama.cpp's own reader.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::metadata::Value as Read;
use kvasir_gguf::prefix::{Error, MAX_PREFIX, Prefix, PrefixParser, Progress};
use kvasir_gguf::tensor::TensorType;
use kvasir_tests::gguf::{File, Tensor, TensorType as Written, Value};
use kvasir_tests::models;
use llama_cpp_2::gguf::GgufContext;
use proptest::prelude::*;
use support::bytes::Bytes;

fn whole(bytes: &[u8]) -> Prefix {
    Prefix::parse(bytes).unwrap().unwrap()
}

fn refused(bytes: &Bytes) -> Error {
    Prefix::parse(&bytes.0).unwrap_err()
}

#[test]
fn a7_one_name_twice_is_refused_by_name() {
    let bytes = Bytes::head(2, 0).tensor("blk.0.a", &[1], 0).tensor("blk.0.a", &[1], 32);
    assert_eq!(
        refused(&bytes),
        Error::Duplicate {
            field: "tensor blk.0.a".into(),
            at: 24 + 39
        }
    );
    let bytes = Bytes::head(0, 2).entry("k", "a").entry("k", "b");
    assert_eq!(
        refused(&bytes),
        Error::Duplicate {
            field: "metadata key k".into(),
            at: 24 + 22
        }
    );
}

#[test]
fn a7_dimensions_whose_product_wraps_are_refused() {
    let error = refused(&Bytes::head(1, 0).tensor("w", &[u64::MAX, 2], 0)).to_string();
    assert!(
        error.contains("the dimensions of w at byte 37") && error.contains("wraps"),
        "{error}"
    );
    // 2^62 values of 4 bytes: the count fits, the bytes don't
    let error = refused(&Bytes::head(1, 0).tensor("w", &[1 << 62], 0)).to_string();
    assert!(error.contains("the dimensions of w"), "{error}");
}

#[test]
fn a7_more_than_four_dimensions_are_refused() {
    for n_dims in [5, 9, u32::MAX] {
        let error = refused(&Bytes::head(1, 0).text("w").u32(n_dims));
        let field = "the number of dimensions of w".into();
        assert_eq!(
            error,
            Error::TooLarge {
                field,
                at: 33,
                value: n_dims.into(),
                limit: 4
            }
        );
    }
}

#[test]
fn a7_an_array_longer_than_any_file_is_refused_at_its_count() {
    let bytes = Bytes::head(0, 1).text("k").u32(9).u32(4).u64(u64::MAX / 64);
    assert_eq!(bytes.0.len(), 49);
    let field = "the number of elements of k".into();
    assert_eq!(
        refused(&bytes),
        Error::TooLarge {
            field,
            at: 41,
            value: u64::MAX / 64,
            limit: MAX_PREFIX / 4
        }
    );
}

#[test]
fn a7_lengths_and_counts_that_cannot_be_are_refused() {
    let error = refused(&Bytes::head(0, 1).u64(1 << 63)).to_string();
    assert!(
        error.contains("the length of metadata key 0 at byte 24 is 9223372036854775808"),
        "{error}"
    );
    let error = refused(&Bytes::head(0, 1).text("k").u32(8).u64(1 << 63)).to_string();
    assert!(error.contains("the length of the value of k at byte 37"), "{error}");
    let error = refused(&Bytes::head(1 << 61, 0)).to_string();
    assert!(
        error.contains("the number of tensors at byte 8 is 2305843009213693952"),
        "{error}"
    );
    let error = refused(&Bytes::head(0, 1 << 61)).to_string();
    assert!(error.contains("the number of metadata entries at byte 16"), "{error}");
    // string arrays have no fixed size: each length is checked when its turn comes
    let error = refused(&Bytes::head(0, 1).text("k").u32(9).u32(8).u64(2).text("a").u64(u64::MAX)).to_string();
    assert!(error.contains("the length of element 1 of k at byte 58"), "{error}");
}

#[test]
fn a7_an_alignment_that_cannot_be_is_refused() {
    for alignment in [0, 3, 48, 1 << 31] {
        let error = refused(&Bytes::head(0, 1).text("general.alignment").u32(4).u32(alignment)).to_string();
        assert!(
            error.contains(&format!("general.alignment at byte 53: {alignment} is not")),
            "{error}"
        );
    }
    let prefix = whole(
        &Bytes::head(1, 1)
            .text("general.alignment")
            .u32(4)
            .u32(256)
            .tensor("w", &[1], 256)
            .0,
    );
    assert_eq!((prefix.alignment, prefix.data_offset % 256), (256, 0));
    // an offset off the alignment
    let error = refused(&Bytes::head(1, 0).tensor("w", &[1], 16)).to_string();
    assert!(error.contains("the offset of w at byte 49"), "{error}");
}

#[test]
fn a7_nothing_is_set_aside_for_what_has_not_arrived() {
    // as much as is allowed, announced by 100 bytes: the parser asks for more and holds what it has
    let mut parser = PrefixParser::new();
    let head = Bytes::head(1 << 20, 1).text("k").u32(9).u32(8).u64(MAX_PREFIX / 8);
    let Progress::NeedMore { at_least, likely } = parser.feed(&head.0).unwrap() else {
        panic!("it can't be done")
    };
    assert!(
        at_least > head.0.len() as u64 && likely <= MAX_PREFIX,
        "{at_least} {likely}"
    );
    assert_eq!(parser.received(), head.0.len() as u64);
}

#[test]
fn a7_an_unknown_tensor_type_keeps_its_number() {
    let bytes = Bytes::head(1, 0).text("w").u32(1).u64(32).u32(4711).u64(0);
    let prefix = whole(&bytes.0);
    assert_eq!(prefix.tensors[0].ty, TensorType(4711));
    assert_eq!(prefix.tensors[0].ty.bytes(&[32]), None);
}

#[test]
fn s2_a_tensor_at_offset_0_is_valid() {
    let prefix = whole(&Bytes::head(1, 0).tensor("w", &[2, 3], 0).0);
    assert_eq!((prefix.tensors[0].offset, prefix.data_offset), (0, 96));
    assert_eq!(prefix.tensors[0].dims, [2, 3]);
}

#[test]
fn a9_version_2_reads_like_version_3() {
    let bytes = Bytes::head(1, 1)
        .entry("general.architecture", "llama")
        .tensor("w", &[8], 0);
    let mut older = bytes.clone();
    older.0[4] = 2;
    let (three, two) = (whole(&bytes.0), whole(&older.0));
    assert_eq!((three.version, two.version), (3, 2));
    assert_eq!(two.metadata.str("general.architecture"), Some("llama"));
    assert_eq!((two.tensors, two.data_offset), (three.tensors, three.data_offset));
}

#[test]
fn a9_version_1_byte_order_and_magic_are_named() {
    let head = |magic: &[u8], version: [u8; 4]| Bytes([magic, &version].concat()).u64(0).u64(0);
    assert_eq!(refused(&head(b"GGUF", [1, 0, 0, 0])), Error::Version1);
    assert_eq!(refused(&head(b"GGUF", [0, 0, 0, 3])), Error::BigEndian { version: 3 });
    assert_eq!(
        refused(&head(b"GGUF", [4, 0, 0, 0])),
        Error::UnknownVersion { version: 4 }
    );
    assert_eq!(refused(&head(b"FUGG", [0, 0, 0, 3])), Error::Swapped);
    let page = Error::NotGguf {
        start: *b"<htm",
        looks_like: Some("an HTML page (a login or an error page?)"),
    };
    assert_eq!(refused(&head(b"<htm", [0; 4])), page);
    for (error, word) in [
        (Error::Version1, "version 1"),
        (Error::BigEndian { version: 3 }, "big-endian"),
        (Error::Swapped, "FUGG"),
    ] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_long_token_list_costs_its_bytes_and_the_estimate_follows_it() {
    let tokens = 100_000;
    let mut bytes = Bytes::head(0, 2)
        .text("tokenizer.ggml.tokens")
        .u32(9)
        .u32(8)
        .u64(tokens);
    for token in 0..tokens {
        bytes = bytes.text(&format!("token {token:06}"));
    }
    bytes = bytes.entry("general.architecture", "llama");
    let total = bytes.0.len() as u64;
    let mut parser = PrefixParser::new();
    for chunk in bytes.0.chunks(32 << 10) {
        if let Progress::NeedMore { at_least, likely } = parser.feed(chunk).unwrap() {
            assert!(at_least <= total);
            assert!((total - 100..total + 100).contains(&likely), "{likely} of {total}");
        }
    }
    let prefix = whole(&bytes.0);
    let list = prefix
        .metadata
        .get("tokenizer.ggml.tokens")
        .unwrap()
        .as_array()
        .unwrap();
    assert_eq!(list.len() as u64, tokens);
    assert_eq!(list.iter().nth(4711).unwrap().as_str(), Some("token 004711"));
    assert_eq!(prefix.metadata.str("general.architecture"), Some("llama"));
}

#[test]
fn llama_cpp_reads_the_real_models_alike() {
    for path in [models::smollm2(), models::gemma3()] {
        let theirs = GgufContext::from_file(&path).unwrap();
        let model = kvasir_gguf::Model::open(&path).unwrap();
        let metadata = model.metadata();
        assert_eq!(theirs.n_kv() as usize, metadata.len());
        assert_eq!(theirs.n_tensors() as usize, model.tensors().len());
        for (index, (key, value)) in metadata.iter().enumerate() {
            let index = index as i64;
            assert_eq!(theirs.key_at(index), Some(key));
            match value {
                Read::U32(v) => assert_eq!(theirs.val_u32(index), v),
                Read::I32(v) => assert_eq!(theirs.val_i32(index), v),
                Read::U64(v) => assert_eq!(theirs.val_u64(index), v),
                Read::String(v) => {
                    assert_eq!(theirs.val_str(index).map(str::as_bytes), Some(v));
                }
                _ => {}
            }
        }
        // the last tensor ends the file, padding aside
        let end = model
            .tensors()
            .iter()
            .map(|tensor| tensor.range().unwrap().end)
            .max()
            .unwrap();
        assert!(
            end <= model.size() && model.size() - end < 32,
            "{end} of {}",
            model.size()
        );
    }
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u32>().prop_map(Value::U32),
        (-1e6f32..1e6).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        proptest::collection::vec(any::<i32>(), 0..5).prop_map(Value::I32s),
        proptest::collection::vec(any::<bool>(), 0..5).prop_map(Value::Bools),
        proptest::collection::vec(".{0,9}", 0..5).prop_map(Value::Strings),
    ]
}

fn file() -> impl Strategy<Value = File> {
    let entries = proptest::collection::btree_map("[a-z.]{1,12}", value(), 0..6);
    let tensors = proptest::collection::btree_map("[a-z.]{1,12}", 1u64..5, 0..6);
    (entries, tensors).prop_map(|(entries, tensors)| File {
        metadata: entries.into_iter().collect(),
        tensors: tensors
            .into_iter()
            .map(|(name, rows)| Tensor {
                name,
                shape: vec![2, rows],
                kind: Written::F32,
                data: vec![7; 8 * rows as usize],
            })
            .collect(),
    })
}

/// Everything that can be told apart.
fn summary(prefix: &Prefix) -> String {
    let metadata: Vec<String> = prefix
        .metadata
        .iter()
        .map(|(key, value)| format!("{key} {value:?}"))
        .collect();
    format!(
        "{metadata:?} {:?} {} {}",
        prefix.tensors,
        prefix.data_offset,
        prefix.bytes().len()
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read(file in file()) {
        let bytes = file.to_bytes();
        let prefix = whole(&bytes);
        prop_assert_eq!(prefix.metadata.len(), file.metadata.len());
        for ((key, value), (expected_key, expected)) in prefix.metadata.iter().zip(&file.metadata) {
            prop_assert_eq!(key, expected_key);
            let array = || value.as_array().unwrap().iter().collect::<Vec<_>>();
            match expected {
                Value::U32(v) => prop_assert_eq!(value, Read::U32(*v)),
                Value::F32(v) => prop_assert_eq!(value, Read::F32(*v)),
                Value::Bool(v) => prop_assert_eq!(value, Read::Bool(*v)),
                Value::String(v) => prop_assert_eq!(value, Read::String(v.as_bytes())),
                Value::I32s(v) => prop_assert_eq!(array(), v.iter().map(|v| Read::I32(*v)).collect::<Vec<_>>()),
                Value::Bools(v) => prop_assert_eq!(array(), v.iter().map(|v| Read::Bool(*v)).collect::<Vec<_>>()),
                Value::Strings(v) => {
                    prop_assert_eq!(array(), v.iter().map(|v| Read::String(v.as_bytes())).collect::<Vec<_>>());
                }
            }
        }
        prop_assert_eq!(prefix.tensors.len(), file.tensors.len());
        for (read, written) in prefix.tensors.iter().zip(&file.tensors) {
            prop_assert_eq!((&read.name, &read.dims), (&written.name, &written.shape));
            let start = (prefix.data_offset + read.offset) as usize;
            prop_assert_eq!(&bytes[start..start + written.data.len()], &written.data[..]);
        }
    }

    #[test]
    fn any_split_gives_the_same(file in file(), steps in proptest::collection::vec(1usize..40, 1..20)) {
        let bytes = file.to_bytes();
        let mut parser = PrefixParser::new();
        let (mut rest, mut steps) = (&bytes[..], steps.iter().cycle());
        let prefix = loop {
            let (piece, left) = rest.split_at((*steps.next().unwrap()).min(rest.len()));
            prop_assert!(!piece.is_empty(), "the file is whole and the parser asks for more");
            rest = left;
            let needed = match parser.feed(piece).unwrap() {
                Progress::Done(prefix) => break prefix,
                Progress::NeedMore { at_least, .. } => at_least,
            };
            prop_assert!(needed > parser.received() && needed <= bytes.len() as u64);
        };
        prop_assert_eq!(summary(&prefix), summary(&whole(&bytes)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Prefix::parse(&bytes);
        let _ = Prefix::parse(&[&b"GGUF\x03\0\0\0"[..], &bytes].concat());
        let _ = Prefix::parse(&[&Bytes::head(1, 1).0[..], &bytes].concat());
    }

    #[test]
    fn one_wrong_byte_never_panics(file in file(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = file.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(Some(prefix)) = Prefix::parse(&bytes) {
            let _ = summary(&prefix);
        }
    }
}
