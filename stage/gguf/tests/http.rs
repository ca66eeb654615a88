//! Servers as they are: what is asked of them, what is taken from them, and what is said when they fail.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use futures::stream;
use kvasir_gguf::fetch::{Fetched, fetch, verify};
use kvasir_gguf::source::{Access, Error, RangeReader, open, read_model};
use kvasir_gguf::window::window;
use kvasir_gguf::{MiniGguf, Model, ModelSource, WindowRole};
use secrecy::SecretString;
use support::server::{Asked, Server, ranged, redirect, whole, with};
use support::{access, expected, heavy, model_at, names, reader};
use tempfile::TempDir;

/// Four layers of 2 MiB: bytes, and the window of layers 1 and 2 with the bytes that its file must have.
struct Case {
    bytes: Vec<u8>,
    mini: MiniGguf,
    wanted: Vec<u8>,
    folder: TempDir,
}

fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let bytes = heavy(4, 2 << 20).to_bytes();
    let path = folder.path().join("source");
    std::fs::write(&path, &bytes).unwrap();
    let mini = window(
        &Model::open(&path).unwrap(),
        &WindowRole {
            layers: 1..3,
            last: false,
        },
    )
    .unwrap();
    let wanted = expected(&path, &mini);
    std::fs::remove_file(path).unwrap();
    Case {
        bytes,
        mini,
        wanted,
        folder,
    }
}

impl Case {
    fn target(&self) -> PathBuf {
        self.folder.path().join("window.gguf")
    }

    async fn fetch(&self, reader: &dyn RangeReader) -> Result<Fetched, kvasir_gguf::fetch::Error> {
        fetch(reader, &self.mini, &self.target(), |_| {}).await
    }

    fn is_right(&self) -> bool {
        std::fs::read(self.target()).unwrap() == self.wanted
    }

    fn is_empty(&self) -> bool {
        names(self.folder.path()).is_empty()
    }
}

/// Bytes whose sending is counted.
fn counted(bytes: &[u8], sent: &Arc<AtomicU64>) -> Body {
    let pieces: Vec<Bytes> = bytes.chunks(16 << 10).map(Bytes::copy_from_slice).collect();
    let sent = Arc::clone(sent);
    Body::from_stream(stream::iter(pieces.into_iter().map(move |piece| {
        sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok::<_, std::io::Error>(piece)
    })))
}

#[tokio::test]
async fn b1_a_server_without_ranges_is_refused_before_it_sends_the_file() {
    let case = case();
    let sent = Arc::new(AtomicU64::new(0));
    let (bytes, counter) = (case.bytes.clone(), Arc::clone(&sent));
    let length = bytes.len().to_string();
    let server = Server::start(move |_| {
        let headers = [("accept-ranges", "bytes".into()), ("content-length", length.clone())];
        with(200, &headers, counted(&bytes, &counter))
    })
    .await;
    let url = server.url("m.gguf");
    let error = model_at(&url).await.unwrap_err();
    assert!(matches!(error, Error::NoRanges { .. }), "{error}");
    assert!(error.to_string().contains("does not honour ranges"), "{error}");

    // a window in the middle, and one that an earlier run left 29 bytes of
    for stale in [&[][..], &[7; 29]] {
        if !stale.is_empty() {
            std::fs::write(case.folder.path().join("window.gguf.part"), stale).unwrap();
        }
        let error = case.fetch(&*reader(&url, &access())).await.unwrap_err();
        assert_eq!(error.reason(), "RangesNotHonoured");
        assert!(case.is_empty(), "{:?}", names(case.folder.path()));
    }
    assert!(server.asked().iter().all(|asked| asked.range.is_some()));
    let (sent, size) = (sent.load(Ordering::Relaxed), case.bytes.len() as u64);
    assert!(
        sent < size * server.asked().len() as u64 / 2,
        "{sent} bytes of files of {size} were sent"
    );
}

#[tokio::test]
async fn b1_stale_bytes_are_not_built_upon() {
    let case = case();
    std::fs::write(case.folder.path().join("window.gguf.part"), [7; 29]).unwrap();
    std::fs::write(case.folder.path().join("window.gguf.journal"), "29 bytes are there").unwrap();
    let bytes = case.bytes.clone();
    let server = Server::start(move |asked| ranged(&bytes, asked)).await;
    case.fetch(&*reader(&server.url("m.gguf"), &access())).await.unwrap();
    assert!(case.is_right());
}

#[tokio::test]
async fn b3_a_truncated_answer_is_continued_from_the_last_good_byte() {
    let case = case();
    let bytes = case.bytes.clone();
    // each answer announces all and brings at most 1.5 MB
    let server = Server::start(move |asked: &Asked| {
        let range = asked.range.clone().unwrap();
        let end = range.end.min(bytes.len() as u64);
        let body = &bytes[range.start as usize..end.min(range.start + 1_500_000) as usize];
        let content = format!("bytes {}-{}/{}", range.start, end - 1, bytes.len());
        let headers = [
            ("content-range", content),
            ("content-length", (end - range.start).to_string()),
        ];
        let body = stream::iter([Ok(Bytes::copy_from_slice(body)), Err(std::io::Error::other("cut"))]);
        let body = if end - range.start > 1_500_000 {
            Body::from_stream(body)
        } else {
            ranged(&bytes, asked).into_body()
        };
        with(206, &headers, body)
    })
    .await;
    let fetched = case.fetch(&*reader(&server.url("m.gguf"), &access())).await.unwrap();
    assert!(case.is_right());
    let starts: Vec<u64> = server
        .asked()
        .iter()
        .map(|asked| asked.range.clone().unwrap().start)
        .collect();
    assert!(
        starts.len() >= 3 && starts.windows(2).all(|pair| pair[1] == pair[0] + 1_500_000),
        "{starts:?}"
    );
    assert!(fetched.bytes_fetched >= case.mini.fetched_bytes());
}

#[tokio::test]
async fn b3_answers_that_never_arrive_whole_are_an_error() {
    let case = case();
    let bytes = case.bytes.clone();
    let server = Server::start(move |asked: &Asked| {
        let range = asked.range.clone().unwrap();
        let headers = [(
            "content-range",
            format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len()),
        )];
        with(206, &headers, Body::empty())
    })
    .await;
    let error = case
        .fetch(&*reader(&server.url("m.gguf"), &access()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("tried 4 times"), "{error}");
    assert_eq!(error.reason(), "SourceUnreachable");
    assert!(case.is_empty());
}

#[tokio::test]
async fn b3_a_partial_that_is_complete_is_renamed_without_a_request() {
    let case = case();
    let bytes = case.bytes.clone();
    let server = Server::start(move |asked| ranged(&bytes, asked)).await;
    let url = server.url("m.gguf");
    case.fetch(&*reader(&url, &access())).await.unwrap();
    let requests = server.asked().len();
    // the process died before the rename
    std::fs::rename(case.target(), case.folder.path().join("window.gguf.part")).unwrap();
    let fetched = case.fetch(&*reader(&url, &access())).await.unwrap();
    assert_eq!((server.asked().len(), fetched.bytes_fetched), (requests, 0));
    assert!(case.is_right());
}

#[tokio::test]
async fn b3_wrong_bytes_of_the_right_length_are_fetched_again() {
    let case = case();
    let bytes = case.bytes.clone();
    let server = Server::start(move |asked| ranged(&bytes, asked)).await;
    let url = server.url("m.gguf");
    case.fetch(&*reader(&url, &access())).await.unwrap();
    let requests = server.asked().len();
    let mut damaged = case.wanted.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for name in ["window.gguf", "window.gguf.part"] {
        std::fs::rename(case.target(), case.folder.path().join(name)).unwrap();
        std::fs::write(case.folder.path().join(name), &damaged).unwrap();
        case.fetch(&*reader(&url, &access())).await.unwrap();
        assert!(case.is_right(), "{name}");
    }
    assert!(server.asked().len() > requests);
}

#[tokio::test]
async fn b5_an_expired_signature_is_renewed_and_never_kept() {
    let case = case();
    let bytes = case.bytes.clone();
    let signatures = AtomicU64::new(0);
    let uses = AtomicU64::new(0);
    let server = Server::start(move |asked: &Asked| match asked.path.as_str() {
        "m.gguf" => {
            let signature = signatures.fetch_add(1, Ordering::Relaxed) + 1;
            uses.store(0, Ordering::Relaxed);
            redirect(302, &format!("/cdn/blob?signature=secret{signature}"))
        }
        _ => {
            let current = format!("signature=secret{}", signatures.load(Ordering::Relaxed));
            let expired = uses.fetch_add(1, Ordering::Relaxed) > 0 || asked.query.as_deref() != Some(&current);
            if expired {
                with(403, &[], "expired")
            } else {
                ranged(&bytes, asked)
            }
        }
    })
    .await;
    let source = reader(&server.url("m.gguf"), &access());
    let model = read_model(&*source, &[]).await.unwrap();
    let mini = window(
        &model,
        &WindowRole {
            layers: 1..3,
            last: false,
        },
    )
    .unwrap();
    // one connection after the other: each signature is good for one range
    for layers in [0..1, 1..2, 2..3] {
        let mini = window(&model, &WindowRole { layers, last: false }).unwrap();
        fetch(&*source, &mini, &case.target(), |_| {}).await.unwrap();
    }
    fetch(&*source, &mini, &case.target(), |_| {}).await.unwrap();
    assert!(case.is_right());
    for name in names(case.folder.path()).iter().filter(|name| *name != "window.gguf") {
        let text = std::fs::read_to_string(case.folder.path().join(name)).unwrap();
        assert!(
            !text.contains("secret") && !text.contains("signature"),
            "{name}: {text}"
        );
    }
    assert!(source.parts().iter().all(|part| !part.contains("secret")));
    let origin = server.asked().iter().filter(|asked| asked.path == "m.gguf").count();
    assert!((4..=5).contains(&origin), "the origin was asked {origin} times");
}

#[tokio::test]
async fn b5_a_secret_in_an_address_is_in_no_error() {
    let server = Server::start(|asked: &Asked| match asked.path.as_str() {
        "moved" => redirect(302, "/gone?signature=secret"),
        _ => with(404, &[], "no such file"),
    })
    .await;
    for path in ["gone?token=secret", "moved?token=secret"] {
        let error = model_at(&server.url(path)).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
    // nobody listens there
    let error = model_at("http://127.0.0.1:9/m.gguf?token=secret").await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(
        matches!(error, Error::Unreachable { tries: 4, .. }) && !text.contains("secret"),
        "{text}"
    );
    let secret = |url: &str| {
        open(&ModelSource::Http { url: url.into() }, &access())
            .err()
            .unwrap()
            .to_string()
    };
    assert!(!secret("http://user:secret@127.0.0.1/m.gguf").contains("secret"));
    assert!(!secret("ftp://127.0.0.1/m?secret").contains("secret"));
}

#[tokio::test]
async fn b6_the_token_stays_with_the_origin_and_the_range_goes_on() {
    let bytes = heavy(2, 1 << 10).to_bytes();
    for status in [301, 302, 307, 308] {
        let served = bytes.clone();
        let mirror = Server::start(move |asked: &Asked| match asked.path.as_str() {
            _ if asked.headers.contains_key("authorization") => with(400, &[], "two kinds of credentials"),
            "first" => redirect(302, "/second?signature=s"),
            _ => ranged(&served, asked),
        })
        .await;
        let to = mirror.url("first");
        let origin = Server::start(move |asked: &Asked| {
            let token = asked.headers.get("authorization").map(|value| value.to_str().unwrap());
            match (asked.path.as_str(), token) {
                (_, None) => with(401, &[], ""),
                ("m.gguf", Some("Bearer sesame")) => redirect(status, "/same-origin"),
                (_, Some("Bearer sesame")) => redirect(status, &to),
                _ => with(403, &[], ""),
            }
        })
        .await;
        let with_token = Access {
            token: Some(SecretString::from("sesame")),
            ..access()
        };
        let source = reader(&origin.url("m.gguf"), &with_token);
        read_model(&*source, &[]).await.unwrap();
        assert!(!format!("{with_token:?}").contains("sesame"));
        for asked in mirror.asked() {
            assert!(!asked.headers.contains_key("authorization") && !asked.headers.contains_key("cookie"));
            assert!(asked.range.is_some(), "Range is kept");
        }
        assert_eq!(origin.asked().len(), 2, "the token goes on within the origin");
    }
}

#[tokio::test]
async fn b6_redirects_that_lead_nowhere_end() {
    let server = Server::start(|asked: &Asked| match asked.path.as_str() {
        "loop" => redirect(302, "/loop"),
        "file" => redirect(302, "file:///etc/passwd"),
        _ => with(302, &[], ""),
    })
    .await;
    for path in ["loop", "file", "nowhere"] {
        let error = model_at(&server.url(path)).await.unwrap_err();
        assert!(matches!(error, Error::Redirect { .. }), "{error}");
    }
    assert!(server.asked().len() < 15);
}

#[tokio::test]
async fn b7_a_busy_server_is_waited_for() {
    let case = case();
    for (status, retry_after) in [
        (429, Some("120")),
        (429, Some("Sun, 06 Nov 2094 08:49:37 GMT")),
        (429, None),
        (503, None),
    ] {
        let bytes = case.bytes.clone();
        let server = Server::start(move |asked: &Asked| {
            let mut headers = vec![("content-type", "text/html".to_owned())];
            headers.extend(retry_after.map(|value| ("retry-after", value.to_owned())));
            if asked.index < 2 {
                with(status, &headers, "<html>slow down</html>")
            } else {
                ranged(&bytes, asked)
            }
        })
        .await;
        let source = reader(&server.url("m.gguf"), &access());
        read_model(&*source, &[]).await.unwrap();
        case.fetch(&*source).await.unwrap();
        assert!(case.is_right());
        std::fs::remove_file(case.target()).unwrap();
    }
}

#[tokio::test]
async fn b7_a_server_that_stays_busy_is_an_error_without_its_page() {
    let server = Server::start(|_| with(429, &[("retry-after", "120".into())], "<html>slow down</html>")).await;
    let error = model_at(&server.url("m.gguf")).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Busy {
                status: 429,
                tries: 4,
                ..
            }
        ),
        "{error}"
    );
    assert!(!error.to_string().contains("html"), "{error}");
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn b7_refusals_are_not_repeated_and_say_what_to_do() {
    let server = Server::start(|asked: &Asked| with(asked.path.parse().unwrap(), &[], "")).await;
    let with_token = Access {
        token: Some(SecretString::from("sesame")),
        ..access()
    };
    let mut texts = Vec::new();
    for (path, access) in [("401", &access()), ("401", &with_token), ("403", &with_token)] {
        let before = server.asked().len();
        let error = read_model(&*reader(&server.url(path), access), &[]).await.unwrap_err();
        assert_eq!((error.reason(), server.asked().len() - before), ("Unauthorized", 1));
        assert!(!error.to_string().contains("sesame"));
        texts.push(error.to_string());
    }
    for (text, word) in texts
        .iter()
        .zip(["wants a token", "doesn't accept the token", "licence"])
    {
        assert!(text.contains(word), "{text}");
    }
}

#[tokio::test]
async fn b7_a_window_that_is_there_needs_no_network() {
    let case = case();
    let bytes = case.bytes.clone();
    let server = Server::start(move |asked| ranged(&bytes, asked)).await;
    case.fetch(&*reader(&server.url("m.gguf"), &access())).await.unwrap();
    let identity = case.mini.identity;
    verify(&case.target(), identity, Some(1..3)).unwrap();
    // nobody listens there, and nobody is asked
    let away = reader("http://127.0.0.1:9/m.gguf", &access());
    assert_eq!(case.fetch(&*away).await.unwrap(), Fetched::default());

    let refused = |layers, identity| verify(&case.target(), identity, layers).unwrap_err().to_string();
    assert!(refused(Some(0..3), identity).contains("it holds layers 1..3 and not layers 0..3"));
    assert!(refused(None, identity).contains("and not the vocabulary"));
    let other = "00".repeat(32).parse().unwrap();
    assert!(refused(Some(1..3), other).contains("is of model"));
    std::fs::write(case.target(), &case.wanted[..case.wanted.len() - 32]).unwrap();
    assert!(refused(Some(1..3), identity).contains("and should have"));
    let mut damaged = case.wanted.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(case.target(), damaged).unwrap();
    assert!(refused(Some(1..3), identity).contains("damaged"));
    std::fs::write(case.target(), &case.wanted).unwrap();
    verify(&case.target(), identity, Some(1..3)).unwrap();
    std::fs::remove_file(case.folder.path().join("window.gguf.journal")).unwrap();
    assert!(refused(Some(1..3), identity).contains("the hashes of its bytes are not beside it"));
    assert!(
        case.fetch(&*reader(&server.url("m.gguf"), &access()))
            .await
            .unwrap()
            .bytes_fetched
            > 0,
        "what can't be checked is fetched again"
    );
    verify(&case.target(), identity, Some(1..3)).unwrap();
    std::fs::write(case.target(), "<html>").unwrap();
    assert!(verify(&case.target(), identity, Some(1..3)).is_err());
}

#[tokio::test]
async fn s5_the_size_is_taken_from_the_first_range() {
    let bytes = heavy(2, 1 << 10).to_bytes();
    let size = bytes.len() as u64;
    let server = Server::start(move |asked| ranged(&bytes, asked)).await;
    let model = model_at(&server.url("m.gguf")).await.unwrap();
    assert_eq!(model.size(), size);
    assert!(
        server.asked().iter().all(|asked| asked.method == "GET"),
        "HEAD is not to be relied on"
    );
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_not_mixed() {
    let case = case();
    let (one, mut two) = (case.bytes.clone(), case.bytes.clone());
    two.reverse();
    let server = Server::start(move |asked: &Asked| {
        let (bytes, tag) = if asked.index < 1 {
            (&one, "\"one\"")
        } else {
            (&two, "\"two\"")
        };
        let asks_for_one = asked.headers.get("if-range").is_some_and(|value| value != tag);
        let mut response = if asks_for_one {
            whole(bytes)
        } else {
            ranged(bytes, asked)
        };
        response.headers_mut().insert("etag", tag.parse().unwrap());
        response
    })
    .await;
    let source = reader(&server.url("m.gguf"), &access());
    read_model(&*source, &[]).await.unwrap();
    assert_eq!(source.validator(0).as_deref(), Some("\"one\""));
    let error = case.fetch(&*source).await.unwrap_err();
    assert_eq!(error.reason(), "SourceChanged");
    assert!(case.is_empty());
    assert_eq!(server.asked()[1].headers["if-range"], "\"one\"");
}

#[tokio::test]
async fn a_partial_of_another_version_is_started_again() {
    let case = case();
    let serve = |tag: &'static str, bytes: Vec<u8>| {
        Server::start(move |asked: &Asked| {
            let mut response = ranged(&bytes, asked);
            response.headers_mut().insert("etag", tag.parse().unwrap());
            response
        })
    };
    let old = serve("\"old\"", vec![9; case.bytes.len()]).await;
    let source = reader(&old.url("m.gguf"), &access());
    source.open(0, 0..1).await.unwrap();
    case.fetch(&*source).await.unwrap();
    std::fs::rename(case.target(), case.folder.path().join("window.gguf.part")).unwrap();

    let new = serve("\"new\"", case.bytes.clone()).await;
    let source = reader(&new.url("m.gguf"), &access());
    read_model(&*source, &[]).await.unwrap();
    case.fetch(&*source).await.unwrap();
    assert!(case.is_right());
}

#[tokio::test]
async fn answers_with_other_bytes_than_asked_for_are_refused() {
    let content = [
        "bytes 5-9/100000",
        "bytes 0-99999/100000",
        "bytes 0-9/100000/3",
        "pages 1-2/3",
        "bytes 9-0/100000",
    ];
    for content in content {
        let server = Server::start(move |_| with(206, &[("content-range", content.into())], "0123456789")).await;
        let error = model_at(&server.url("m.gguf")).await.unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{content}: {error}");
    }
    let server = Server::start(|_| with(206, &[("content-encoding", "gzip".into())], "0123456789")).await;
    let error = model_at(&server.url("m.gguf")).await.unwrap_err();
    assert!(error.to_string().contains("encoded"), "{error}");
}

#[tokio::test]
async fn hugging_face_addresses_carry_repository_revision_and_file() {
    let bytes = heavy(2, 1 << 10).to_bytes();
    let server = Server::start(move |asked: &Asked| {
        let mut response = ranged(&bytes, asked);
        response
            .headers_mut()
            .insert("x-repo-commit", "0123abcd".parse().unwrap());
        response
    })
    .await;
    let access = Access {
        hub: server.address.clone(),
        ..access()
    };
    let source: ModelSource =
        serde_json::from_str(r#"{"huggingFace": {"repo": "owner/name", "file": "Q4 K/m.gguf"}}"#).unwrap();
    let source = open(&source, &access).unwrap();
    let model = read_model(&*source, &[]).await.unwrap();
    assert_eq!(server.asked()[0].path, "owner/name/resolve/main/Q4%20K/m.gguf");
    // a branch moves, a commit doesn't: it is the commit that identifies
    assert_eq!(source.revision(), "0123abcd");
    assert_eq!(
        model.identity(),
        Model::new(model.parts().to_vec(), "0123abcd").unwrap().identity()
    );
}
