//! How a model's prefix is read from a server: in steps that overshoot little, and no byte of weights with it.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use kvasir_gguf::source::{Error, read_model};
use kvasir_tests::gguf::{File, Value};
use support::server::{Asked, Server, ranged, whole, with};
use support::{access, add, heavy, model_at, reader, toy};

#[tokio::test]
async fn a5_a_missing_part_is_named_before_any_payload_is_fetched() {
    let mut parts = [toy(4), File::default()];
    for (part, file) in parts.iter_mut().enumerate() {
        file.set("split.no", Value::U32(part as u32));
        file.set("split.count", Value::U32(3));
        add(file, &format!("blk.{part}.attn_q.weight"), &[8, 65536]);
    }
    let bytes = parts.map(|file| file.to_bytes());
    let server = Server::start(move |asked: &Asked| match asked.path.as_str() {
        "m-00001-of-00003.gguf" => ranged(&bytes[0], asked),
        "m-00002-of-00003.gguf" => ranged(&bytes[1], asked),
        _ => with(404, &[], ""),
    })
    .await;
    let error = model_at(&server.url("m-00002-of-00003.gguf")).await.unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { url } if url.ends_with("m-00003-of-00003.gguf")),
        "{error}"
    );
    let payload = server
        .asked()
        .iter()
        .any(|asked| asked.range.clone().unwrap().end > 64 << 10);
    assert!(!payload, "only the prefixes were read");
}

/// A file whose prefix is `length` bytes long, by a value of the right length, with the architecture behind it.
fn with_prefix_of(length: usize) -> Vec<u8> {
    let file = |filling: usize| {
        let mut file = File::default();
        file.set("filling", Value::String("x".repeat(filling)));
        file.metadata.extend(toy(2).metadata);
        add(&mut file, "blk.0.attn_q.weight", &[8, 65536]);
        file
    };
    let prefix = |file: &File| {
        kvasir_gguf::prefix::Prefix::parse(&file.to_bytes())
            .unwrap()
            .unwrap()
            .bytes()
            .len()
    };
    let empty = prefix(&file(0));
    let file = file(length - empty);
    assert_eq!(prefix(&file), length);
    file.to_bytes()
}

#[tokio::test]
async fn a9_a_prefix_about_as_long_as_the_first_request_is_read() {
    for length in [(32 << 10) - 1, 32 << 10, (32 << 10) + 1] {
        let bytes = with_prefix_of(length);
        let server = Server::start(move |asked| ranged(&bytes, asked)).await;
        let model = model_at(&server.url("m.gguf")).await.unwrap();
        assert_eq!(model.prefix_bytes(), [length as u64]);
        let asked: Vec<_> = server
            .asked()
            .iter()
            .map(|asked| asked.range.clone().unwrap())
            .collect();
        assert_eq!(asked[0], 0..32 << 10);
        assert_eq!(asked.len(), if length > 32 << 10 { 2 } else { 1 });
        assert!(asked.last().unwrap().end <= length as u64 + (32 << 10), "{asked:?}");
    }
}

#[tokio::test]
async fn a9_a_prefix_of_10_mib_is_read_in_growing_bounded_steps() {
    let mut file = File::default();
    file.set(
        "tokenizer.ggml.tokens",
        Value::Strings((0..430_000).map(|token| format!("token of no. {token:06}")).collect()),
    );
    file.metadata.extend(toy(2).metadata);
    add(&mut file, "blk.0.attn_q.weight", &[8, 1 << 20]);
    let bytes = file.to_bytes();
    let length = kvasir_gguf::prefix::Prefix::parse(&bytes)
        .unwrap()
        .unwrap()
        .bytes()
        .len() as u64;
    assert!(length > 10 << 20);
    let server = Server::start(move |asked| ranged(&bytes, asked)).await;
    let url = server.url("m.gguf");
    let model = model_at(&url).await.unwrap();
    assert_eq!((model.prefix_bytes(), model.architecture()), (vec![length], "llama"));
    let asked: Vec<_> = server
        .asked()
        .iter()
        .map(|asked| asked.range.clone().unwrap())
        .collect();
    assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start), "{asked:?}");
    assert!(
        asked.iter().all(|range| range.end - range.start <= 8 << 20),
        "{asked:?}"
    );
    assert!(
        asked.len() <= 8 && asked.last().unwrap().end <= length + (32 << 10),
        "{asked:?} for {length}"
    );

    // where its length is known, one request brings it
    let source = reader(&url, &access());
    read_model(&*source, &[length]).await.unwrap();
    assert_eq!(server.asked().len(), asked.len() + 1);
    assert_eq!(server.asked().last().unwrap().range, Some(0..length));
    // a hint that is wrong does no harm
    for hint in [100, u64::MAX, 0, length + 77] {
        assert_eq!(
            read_model(&*source, &[hint]).await.unwrap().identity(),
            model.identity()
        );
    }
}

/// What a server makes of a request.
type Answer = Box<dyn Fn(&Asked) -> axum::response::Response + Send + Sync>;

#[tokio::test]
async fn a9_a_file_shorter_than_the_first_request_is_read_however_the_server_says_so() {
    let bytes = heavy(2, 32).to_bytes();
    assert!(bytes.len() < 32 << 10);
    let size = bytes.len() as u64;
    let short = bytes.clone();
    let kinds: [Answer; 4] = [
        Box::new(move |asked| ranged(&short, asked)),
        Box::new({
            let bytes = bytes.clone();
            move |_| whole(&bytes)
        }),
        Box::new({
            let bytes = bytes.clone();
            move |asked| match &asked.range {
                Some(range) if range.end <= size => ranged(&bytes, asked),
                _ => with(416, &[("content-range", format!("bytes */{size}"))], ""),
            }
        }),
        Box::new({
            let bytes = bytes.clone();
            move |asked| {
                if asked.range.is_some() {
                    with(416, &[], "")
                } else {
                    whole(&bytes)
                }
            }
        }),
    ];
    for answer in kinds {
        let server = Server::start(move |asked| answer(asked)).await;
        let model = model_at(&server.url("m.gguf")).await.unwrap();
        assert_eq!(model.size(), size);
    }
}

#[tokio::test]
async fn a9_a_file_that_ends_within_its_prefix_is_incomplete() {
    let bytes = with_prefix_of(50_000);
    for length in [100, 40_000] {
        let bytes = bytes[..length].to_vec();
        let server = Server::start(move |asked| ranged(&bytes, asked)).await;
        let error = model_at(&server.url("m.gguf")).await.unwrap_err();
        assert!(
            matches!(error, Error::Incomplete { size, .. } if size == length as u64),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a9_a_page_instead_of_a_model_is_called_that() {
    let server = Server::start(|_| whole(b"<html><body>please log in</body></html>")).await;
    let error = model_at(&server.url("m.gguf")).await.unwrap_err();
    assert_eq!(error.reason(), "NotGguf");
    let source = std::error::Error::source(&error).unwrap();
    assert!(!format!("{error} {source}").contains("log in"));
    let cause = source.source().unwrap().to_string();
    assert!(cause.contains("an HTML page (a login or an error page?)"), "{cause}");
}
